"""How a push consumer is set up, and what it is made of; the client puts the parts together.

Upstream: the fields of ``DefaultMQPushConsumer``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs

from triomq._consumer_events import ConsumerEvent
from triomq._filter_checks import FilterChecks
from triomq._heartbeats import Heartbeats
from triomq._hooks import ConsumeHook
from triomq._identity import Clock
from triomq._message import MessageQueue
from triomq._positions import Hear, Positions
from triomq._process_queue import FlowLimits
from triomq._pull_call import Puller
from triomq._queue_locks import QueueLocks
from triomq._rebalance import Assignee, Rebalance
from triomq._routes import Routes
from triomq._send_back import SendBack
from triomq_protocol.requests.heartbeat import BROADCASTING, CLUSTERING

log = logging.getLogger("triomq.consumer")


@attrs.frozen(kw_only=True)
class PushSettings:
    """How a push consumer consumes; Java's names in brackets.

    Args:
        group: consumer group.
        broadcast: every member gets every message (``messageModel``).
        ordered: one message of a queue after the other.
        limits: see :class:`FlowLimits`.
        pull_batch: messages per pull (``pullBatchSize``).
        pull_interval_s: pause between two pulls of a queue (``pullInterval``).
        expression_in_pulls: pulls carry this member's own expression (``postSubscriptionWhenPull``).
        batch_max: messages per call of the handler (``consumeMessageBatchMaxSize``).
        max_reconsume_times: failures before a message is a dead letter; None: 16, in order: never.
        suspend_s: how long an ordered queue rests after a failure (``suspendCurrentQueueTimeMillis``).
        consume_timeout_s: a message that is in hand for longer comes again (``consumeTimeout``).
        drain_s: how long the end waits for handlers (``awaitTerminationMillisWhenShutdown``).
    """

    group: str
    broadcast: bool = False
    ordered: bool = False
    limits: FlowLimits = attrs.Factory(FlowLimits)
    pull_batch: int = attrs.field(default=32, validator=[attrs.validators.ge(1), attrs.validators.le(1024)])
    pull_interval_s: float = attrs.field(default=0.0, validator=[attrs.validators.ge(0), attrs.validators.le(65.535)])
    expression_in_pulls: bool = False
    batch_max: int = attrs.field(default=1, validator=[attrs.validators.ge(1), attrs.validators.le(1024)])
    max_reconsume_times: int | None = None
    suspend_s: float = attrs.field(default=1.0, validator=[attrs.validators.ge(0.01), attrs.validators.le(30)])
    consume_timeout_s: float = attrs.field(default=900.0, validator=attrs.validators.gt(0))
    drain_s: float = attrs.field(default=10.0, validator=attrs.validators.ge(0))

    @property
    def message_model(self) -> str:
        """As heartbeats call it."""
        return BROADCASTING if self.broadcast else CLUSTERING

    def properties(self) -> dict[str, str]:
        """As operators see them, by Java's names."""
        return {
            "consumerGroup": self.group,
            "messageModel": self.message_model,
            "consumeMessageBatchMaxSize": str(self.batch_max),
            "pullBatchSize": str(self.pull_batch),
            "pullInterval": str(int(self.pull_interval_s * 1000)),
            "postSubscriptionWhenPull": str(self.expression_in_pulls).lower(),
            "suspendCurrentQueueTimeMillis": str(int(self.suspend_s * 1000)),
            "pullThresholdForQueue": str(self.limits.count),
            "pullThresholdSizeForQueue": str(self.limits.size_bytes >> 20),
            "pullThresholdForTopic": str(_or_unlimited(self.limits.topic_count)),
            "pullThresholdSizeForTopic": str(_or_unlimited(self.limits.topic_size_bytes, 20)),
            "consumeConcurrentlyMaxSpan": str(self.limits.span),
            "maxReconsumeTimes": str(self.max_times),
        }

    @property
    def max_times(self) -> int:
        """Failures before a message is a dead letter."""
        if self.max_reconsume_times is not None and self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return 2**31 - 1 if self.ordered else 16


@attrs.frozen(kw_only=True)
class ConsumerParts:
    """What a push consumer is made of; the client puts it together.

    Args:
        client_id: by which brokers know the client.
        clock: wall clock in ms.
        routes: where topics live.
        heartbeats: tell brokers of subscriptions.
        puller: does the single pulls.
        positions: where the group stands.
        filters: ask brokers about other than tag filters.
        send_back: where failed messages go; None: broadcast.
        locks: the brokers' queue locks; None unless ordered clustering.
        rebalance: makes the loop that hands queues to an assignee.
        report: hears events.
        on_assigned: hears of a queue before it is pulled.
        on_revoked: hears of a queue before its offset is persisted and it goes.
        hooks: see :class:`ConsumeHook`.
        leave: called at the end, to unregister the group.
    """

    client_id: str
    clock: Clock
    routes: Routes
    heartbeats: Heartbeats
    puller: Puller
    positions: Positions
    filters: FilterChecks
    send_back: SendBack | None
    locks: QueueLocks | None
    rebalance: Callable[[Assignee], Rebalance]
    report: Callable[[ConsumerEvent], None]
    leave: Callable[[], Awaitable[None]]
    on_assigned: Hear | None = None
    on_revoked: Hear | None = None
    hooks: Sequence[ConsumeHook] = ()


def _or_unlimited(limit: int | None, shift: int = 0) -> int:
    """A limit as Java shows it: -1 for none."""
    return -1 if limit is None else limit >> shift


async def tell(hear: Hear | None, queue: MessageQueue) -> None:
    """Call ``on_assigned`` or ``on_revoked`` and wait for it; what it raises is logged."""
    if hear is None:
        return
    try:
        answer = hear([queue])
        if answer is not None:
            await answer
    except Exception:
        # The user's code must not keep a queue from moving.
        log.exception("%r failed for %s", hear, queue)


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of a group of one, else the group."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
