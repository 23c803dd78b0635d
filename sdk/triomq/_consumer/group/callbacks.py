"""The user's callbacks of push and lite pull consumers: for queues that are assigned or revoked, and for events.

An exception in a callback is logged and changes nothing.  Upstream: ``MessageQueueListener``; events have no Java class.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import attrs
import trio

from triomq._arguments.kinds import check_callback
from triomq._message.log_fields import queue_fields
from triomq._message.message import MessageQueue
from triomq._message.pull_result import PullResult
from triomq._tasks.exception_groups import without_groups

log = logging.getLogger("triomq.consumer")

REVOKED_TIMEOUT_S: Final = 2.0
"""How long ``on_revoked`` may take at the end of a consumer that is cancelled."""

EventKind = Literal[
    "offset_illegal",
    "offset_unavailable",
    "offset_refused",
    "expired",
    "lock_lost",
    "duplicate_client_id",
    "not_a_member",
    "send_back_failed",
    "reset",
    "overtaken",
    "messages_missing",
]
"""What can happen to a consumer."""


@attrs.frozen
class ConsumerEvent:
    """Something that happened to a consumer; see :class:`triomq.ConsumerCallbacks`.

    Args:
        kind: what happened.
        text: one line that names cause and consequence.
        queue: the queue it concerns, if any.
    """

    kind: EventKind
    text: str
    queue: MessageQueue | None = None


def offset_unavailable(result: PullResult) -> ConsumerEvent:
    """The event for a queue whose offset is missing at every broker that may be asked.

    Args:
        result: the answer of a slave that does not have the offset.
    """
    text = (
        f"{result.queue} waits at offset {result.next_offset}, which no broker has that can be asked; "
        f"{result.broker_address}, a slave, has {result.min_offset} to {result.max_offset}. It goes on when the slave "
        "or a master has the offset, or after a seek or a reset"
    )
    return ConsumerEvent("offset_unavailable", text, result.queue)


OnEvent = Callable[[ConsumerEvent], object]
"""Called with each event; plain and quick."""

OnQueues = Callable[[Sequence[MessageQueue]], Awaitable[None] | None]
"""Called with queues that are assigned or revoked; async ones are awaited before the queue moves."""


@attrs.frozen(kw_only=True)
class ConsumerCallbacks:
    """Functions that a push or lite pull consumer calls, and :meth:`triomq.PullConsumer.share`.

    Args:
        on_assigned: called with queues before they are pulled; may be async.
        on_revoked: called with queues before they are given up; may be async.
        on_event: a plain function, called with a :class:`triomq.ConsumerEvent` for each event for operators. Not for
            ``share``: pass it to :meth:`triomq.Client.pull_consumer`.

    Raises:
        InvalidCall: one of them is not a function, or ``on_event`` is async.
    """

    on_assigned: OnQueues | None = None
    on_revoked: OnQueues | None = None
    on_event: OnEvent | None = None

    def __attrs_post_init__(self) -> None:
        check_callback("on_assigned", self.on_assigned)
        check_callback("on_revoked", self.on_revoked)
        check_callback("on_event", self.on_event, plain=True)


async def call_with_queues(callback: OnQueues | None, queues: Sequence[MessageQueue]) -> None:
    """Call ``on_assigned`` or ``on_revoked`` and wait for it."""
    if callback is None or not queues:
        return
    try:
        pending = callback(queues)
        if inspect.isawaitable(pending):
            await pending
    except Exception:
        # The user's code must not keep a queue from moving.
        log.exception("%r failed for %d queues", callback, len(queues))


def reporter(on_event: OnEvent | None) -> Callable[[ConsumerEvent], None]:
    """A function that logs an event and passes it to the user's callback."""

    def report(event: ConsumerEvent) -> None:
        fields = {"kind": event.kind, **(queue_fields(event.queue) if event.queue is not None else {})}
        log.warning("%s: %s", event.kind, event.text, extra=fields)
        if on_event is not None:
            try:
                on_event(event)
            except Exception:
                log.exception("the event handler %r failed", on_event)

    return report


async def call_at_end(give_up: Callable[[], Awaitable[None]], patience_s: float = math.inf) -> None:
    """Call ``on_revoked`` at a consumer's end.

    Args:
        give_up: calls it.
        patience_s: how long it may take. If cancelled before or meanwhile, it still gets :data:`REVOKED_TIMEOUT_S` from
            then on.
    """
    scope = trio.CancelScope(deadline=trio.current_time() + patience_s, shield=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_limit_when_cancelled, scope)
            with scope:
                await give_up()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise without_groups(group) from None


@trio.lowlevel.enable_ki_protection
async def _limit_when_cancelled(scope: trio.CancelScope) -> None:
    try:
        await trio.sleep_forever()
    finally:
        scope.deadline = min(scope.deadline, trio.current_time() + REVOKED_TIMEOUT_S)
