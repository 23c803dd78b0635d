"""Queues by broker: what is asked of each broker at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable

from triomq._message.message import MessageQueue
from triomq._tasks.exception_groups import open_plain_nursery


def by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """The queues of each broker name, in the given order."""
    parts: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        parts[queue.broker_name].append(queue)
    return list(parts.values())


async def at_each_broker(
    queues: Iterable[MessageQueue], call: Callable[[Collection[MessageQueue]], Awaitable[object]]
) -> None:
    """Call with each broker's queues, at the same time: a broker that is silent must not use up the others' time."""
    async with open_plain_nursery() as nursery:
        for theirs in by_broker(queues):
            nursery.start_soon(call, theirs)
