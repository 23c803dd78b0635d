"""Unwraps exception groups of one: a nursery wraps a single failure in a group, which callers should not see."""

from __future__ import annotations

import trio


def without_groups(error: BaseException) -> BaseException:
    """The one exception inside groups of one; a group of several stays as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def was_cancelled(error: BaseException | None) -> bool:
    """Whether a block ended by being cancelled, perhaps with several tasks of its own; nothing else failed in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


def without_cancels(error: BaseException) -> BaseException | None:
    """What is left of an error without trio's cancellations, alone or in groups; None: nothing."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error
