"""Finds out whether a user's function is async."""

from __future__ import annotations

import inspect


def is_async(function: object) -> bool:
    """Whether calling it returns a coroutine: an async function, or an object with an async ``__call__``."""
    if isinstance(function, type):
        return False  # it returns an object, also if its objects are async to call
    call = getattr(function, "__call__", None)  # noqa: B004 - an object may be async to call
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
