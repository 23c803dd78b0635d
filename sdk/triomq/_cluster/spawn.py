"""The type of ``nursery.start_soon``, with which parts of a client start tasks in its nursery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol


class Spawn(Protocol):
    """Starts a task."""

    def __call__(self, async_fn: Callable[..., Awaitable[object]], /, *args: object) -> None:
        """Start a task soon; its exception ends the nursery."""
