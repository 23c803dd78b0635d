"""Options of push consumers, in addition to those of all group members.

Upstream: the fields of ``DefaultMQPushConsumer``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs

from triomq._arguments.numbers import counts, seconds_between
from triomq._consumer.group.process_queue import FlowLimits
from triomq._message.hooks import ConsumeHook, ConsumeWrapper
from triomq._producer.trace import Tracer
from triomq.errors import InvalidCall

SUSPEND_BOUNDS_S: Final = (0.01, 30.0)
"""The bounds of an ordered queue's rest after a failure, in seconds."""


@attrs.frozen(kw_only=True)
class PullOptions:
    """Settings of a push consumer's pulls; Java's names in brackets.

    Args:
        max_messages: messages per pull, 1-1024 (``pullBatchSize``).
        interval_s: pause between two pulls of a queue in seconds, up to 65.535 (``pullInterval``).
        expression_in_pulls: each pull carries this member's own expression (``postSubscriptionWhenPull``). Otherwise brokers
            take the subscription of the group's last heartbeat, and members that subscribe differently overwrite each other.
    """

    max_messages: int = attrs.field(default=32, validator=counts(1, 1024))
    interval_s: float = attrs.field(default=0.0, validator=seconds_between(0, 65.535))
    expression_in_pulls: bool = False


@attrs.frozen(kw_only=True)
class ConsumeRetries:
    """Settings for messages whose handler fails or takes too long; Java's names in brackets.

    Args:
        max_times: how often a message is delivered again before it becomes a dead letter, so that its handler is called
            once more than that; -1 or None: 16 times, or without limit if ordered (``maxReconsumeTimes``).
        suspend_s: seconds an ordered queue is suspended after a failure, 0.01-30 (``suspendCurrentQueueTimeMillis``).
        timeout_s: a message that a handler has held for more seconds is sent back and delivered again
            (``consumeTimeout``); not for ordered and broadcasting consumers.
    """

    max_times: int | None = attrs.field(default=None, validator=attrs.validators.optional(counts(-1)))
    suspend_s: float = attrs.field(
        default=1.0,
        validator=seconds_between(SUSPEND_BOUNDS_S[0], SUSPEND_BOUNDS_S[1]),
    )
    timeout_s: float = attrs.field(default=900.0, validator=seconds_between(0.001, math.inf))

    def limit(self, *, ordered: bool) -> int:
        """How often a message is delivered again before it is a dead letter."""
        if self.max_times is not None and self.max_times >= 0:
            return self.max_times
        return 2**31 - 1 if ordered else 16


@attrs.frozen(kw_only=True)
class PushOptions:
    """The arguments of ``client.push_consumer`` that lite pull consumers do not have.

    Args:
        ordered: whether the messages of a queue are handled one after the other.
        auto_commit: whether consumed messages are committed automatically; False: ordered handlers decide when.
        batch_max: messages per call of the handler, 1-1024 (``consumeMessageBatchMaxSize``).
        pulling: see :class:`PullOptions`.
        retries: see :class:`ConsumeRetries`.
        drain_s: how long the end waits for handlers (``awaitTerminationMillisWhenShutdown``).
        consume_hooks: see :class:`triomq.plugins.ConsumeHook` and :class:`triomq.plugins.ConsumeWrapper`.
        tracer: takes traces of consumed messages; None: no traces.
    """

    ordered: bool = False
    auto_commit: bool = True
    batch_max: int = attrs.field(default=1, validator=counts(1, 1024))
    pulling: PullOptions = attrs.Factory(PullOptions)
    retries: ConsumeRetries = attrs.Factory(ConsumeRetries)
    drain_s: float = attrs.field(default=10.0, validator=seconds_between(0, math.inf))
    consume_hooks: Sequence[ConsumeHook | ConsumeWrapper] = ()
    tracer: Tracer | None = None

    def __attrs_post_init__(self) -> None:
        if not self.auto_commit and not self.ordered:
            raise InvalidCall(
                "auto_commit=False needs ordered=True: concurrent handlers end in any order, each answers for its own "
                "message alone; a lite pull consumer commits by hand, too"
            )

    def properties(self, group: str, message_model: str, limits: FlowLimits) -> dict[str, str]:
        """The options as operators see them, under Java's names."""
        return {
            "consumerGroup": group,
            "messageModel": message_model,
            "consumeMessageBatchMaxSize": str(self.batch_max),
            "pullBatchSize": str(self.pulling.max_messages),
            "pullInterval": str(int(self.pulling.interval_s * 1000)),
            "postSubscriptionWhenPull": str(self.pulling.expression_in_pulls).lower(),
            "suspendCurrentQueueTimeMillis": str(int(self.retries.suspend_s * 1000)),
            "pullThresholdForQueue": str(limits.count),
            "pullThresholdSizeForQueue": str(limits.size_bytes >> 20),
            "pullThresholdForTopic": str(_or_unlimited(limits.topic_count)),
            "pullThresholdSizeForTopic": str(_or_unlimited(limits.topic_size_bytes, 20)),
            "consumeConcurrentlyMaxSpan": str(limits.span),
            "maxReconsumeTimes": str(self.retries.limit(ordered=self.ordered)),
        }


def _or_unlimited(limit: int | None, shift: int = 0) -> int:
    """A limit as Java shows it: -1 for none."""
    return -1 if limit is None else limit >> shift
