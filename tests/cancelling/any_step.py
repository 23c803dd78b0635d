"""Cancelling before the steps of all tasks, since servers work in tasks of their own."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from cancellation import CancelAtStep


class CancelAtAnyStep(CancelAtStep):
    """Counts the steps of every task of the run."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        super().before_task_step(task)


def each_step_of_all_tasks(stride: int = 1) -> Iterator[CancelAtStep]:
    """A cancel before one of the first steps, before a later one, and so on, until a body has come to its end
    uncancelled.

    Args:
        stride: 1 tries every step; more for bodies that are long and slow.
    """
    step, left = 1, 0
    while left <= 0:
        cancel = CancelAtAnyStep(step)
        yield cancel
        step, left = step + stride, cancel.left
