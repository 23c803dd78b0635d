"""Unwraps exception groups of one: a nursery wraps a single failure in a group, which callers should not see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_plain_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery in a task of the user's, whose single failure is raised as it is, and one Cancelled for several.

    Ctrl-C ends the wait for a nursery of the main task, and no task of it: programs expect a plain KeyboardInterrupt, and
    may have an ``except trio.Cancelled``.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        error = without_groups(group)
        while isinstance(error, BaseExceptionGroup) and was_cancelled(error):
            error = error.exceptions[0]
        raise error from None


def without_groups(error: BaseException) -> BaseException:
    """The exception inside nested groups of one; a group of several stays as it is.

    Of several SystemExit the first remains: Python would report a group of them as a failure, with another exit status.
    """
    while isinstance(error, BaseExceptionGroup) and (len(error.exceptions) == 1 or error.split(SystemExit)[1] is None):
        error = error.exceptions[0]
    return error


def was_cancelled(error: BaseException | None) -> bool:
    """Whether a block ended only by cancellation, perhaps of several of its tasks; nothing else failed in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


def without_cancels(error: BaseException) -> BaseException | None:
    """An error without trio's cancellations, alone or in groups; None if nothing else is left."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error
