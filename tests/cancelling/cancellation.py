"""Cancelling a task before each of its steps, one step per attempt: what it worked on must be whole afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import trio

_STEPS_MAX = 1000


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope before the n-th step of the task that made it. Use as a context manager.

    Attributes:
        left: how many steps before the cancel; more than 0 afterwards if the body came to its end first.
    """

    def __init__(self, step: int) -> None:
        self.left = step
        self.scope = trio.CancelScope()
        self.task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()

    def __enter__(self) -> Self:
        trio.lowlevel.add_instrument(self)
        self.scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        trio.lowlevel.remove_instrument(self)
        return self.scope.__exit__(kind, error, trace)


def each_step() -> Iterator[CancelAtStep]:
    """A cancel before the first step, before the second, and so on, until a body has come to its end uncancelled."""
    for step in range(1, _STEPS_MAX):
        cancel = CancelAtStep(step)
        yield cancel
        if cancel.left > 0:
            return
    raise AssertionError(f"a body of more than {_STEPS_MAX} steps")
