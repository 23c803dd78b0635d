"""What a lite pull consumer stands on, as the client puts it together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import attrs

from triomq._positions import Hear, Positions
from triomq._pull_call import Puller
from triomq._pull_engine import PullSettings
from triomq._queue_bounds import QueueBounds
from triomq._rebalance import Assignee, Rebalance
from triomq._subscription import Subscription

HELD_MAX: Final = 10_000
"""How many messages are fetched ahead over all queues (``pullThresholdForAll``)."""


@attrs.frozen(kw_only=True)
class LiteParts:
    """What a lite pull consumer stands on; put together by ``client.lite_pull_consumer``.

    Args:
        puller: does the pulls.
        positions: what is consumed.
        bounds: the queues' ranges.
        settings: how it pulls.
        auto_commit: whether what was polled is committed without being asked.
        held_max: messages fetched ahead, over all queues.
        clock: wall clock in ms.
        start_task: starts a task in the client's nursery and waits until it says it runs.
        check_filter: asks brokers whether they understand a subscription that is not by tags.
        tell: subscriptions have changed: heartbeats are to say so, beginning now.
        beat: sends heartbeats.
        leave: unregisters the group.
        make_rebalance: assignee and topics -> the loop.
        on_assigned: hears of queues before they are pulled.
        on_revoked: hears of queues before they are given up.
    """

    puller: Puller
    positions: Positions
    bounds: QueueBounds
    settings: PullSettings
    auto_commit: bool
    held_max: int
    clock: Callable[[], int]
    start_task: Callable[[Callable[..., Awaitable[None]]], Awaitable[object]]
    check_filter: Callable[[Subscription], Awaitable[None]]
    tell: Callable[[Collection[Subscription]], Awaitable[None]]
    beat: Callable[[], Awaitable[None]]
    leave: Callable[[], Awaitable[None]]
    make_rebalance: Callable[[Assignee, Callable[[], Collection[str]]], Rebalance]
    on_assigned: Hear | None
    on_revoked: Hear | None
