"""Exception groups of one: what a nursery makes of a single failure, and callers should not see."""

from __future__ import annotations


def without_groups(error: BaseException) -> BaseException:
    """The one exception inside groups of one; a group of several stays as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
