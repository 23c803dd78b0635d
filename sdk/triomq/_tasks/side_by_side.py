"""Runs several calls concurrently, some of which may fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from triomq._tasks.exception_groups import open_plain_nursery
from triomq.errors import MQError


async def side_by_side(*calls: Callable[[], Awaitable[None]]) -> None:
    """Make several calls at once; if some fail, the others continue, and the first error is raised.

    Raises:
        MQError: a call failed.
    """
    failures: list[MQError] = []

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except MQError as error:
            failures.append(error)

    async with open_plain_nursery() as nursery:
        for call in calls:
            nursery.start_soon(make, call)
    if failures:
        raise failures[0]
