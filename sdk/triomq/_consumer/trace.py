"""Traces of consumption: a record when a message is passed to its handler, and another when the handler has finished.

Upstream: ``ConsumeMessageTraceHookImpl`` (docs/protocol/consumer.md §15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import attrs

from triomq._cluster.identity import UniqueKeys
from triomq._message.hooks import ConsumeContext
from triomq._message.received import ReceivedMessage
from triomq._producer.trace import Tracer
from triomq_protocol.errors import ProtocolError
from triomq_protocol.trace import ConsumeOutcome, encode_consumed, encode_consuming


@attrs.frozen
class _Given:
    """Data kept about messages while their handler runs."""

    request_id: str
    started_ms: int
    messages: tuple[tuple[str, str | None], ...]
    """Id and keys of each."""


class ConsumeTrace:
    """A consume hook that traces.

    Args:
        tracer: takes the records.
        unique_keys: creates the ids that join two records.
        timeout_s: seconds after which a handler has taken too long; None: never.
        is_answer: whether an error is a handler's deliberate answer that it failed, rather than an unexpected failure.
    """

    def __init__(
        self,
        tracer: Tracer,
        unique_keys: UniqueKeys,
        *,
        timeout_s: float | None = None,
        is_answer: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        self._tracer = tracer
        self._unique_keys = unique_keys
        self._timeout_ms = None if timeout_s is None else timeout_s * 1000
        self._is_answer = is_answer
        # A handler that is cancelled has no outcome: its data is freed with the context.
        self._given: WeakKeyDictionary[ConsumeContext, _Given] = WeakKeyDictionary()

    def before_consume(self, context: ConsumeContext, /) -> None:
        """Trace that messages are given to a handler."""
        tracer = self._tracer
        now_ms = tracer.clock()
        request_id = self._unique_keys.next(now_ms)
        kept = []
        for message in context.messages:
            identified = self._identify(message)
            if identified is None:
                continue
            message_id, keys = identified
            kept.append((message_id, keys))
            record = encode_consuming(
                time_ms=now_ms,
                region=message.properties.get("MSG_REGION"),
                group=tracer.namespace.unwrap(context.group),
                request_id=request_id,
                message_id=message_id,
                retry_times=message.reconsume_times,
                keys=keys,
            )
            tracer.add(record, message_id, keys)
        if kept:
            self._given[context] = _Given(request_id, now_ms, tuple(kept))

    def after_consume(self, context: ConsumeContext, error: Exception | None, /) -> None:
        """Trace their outcome."""
        given = self._given.pop(context, None)
        if given is None:
            return
        tracer = self._tracer
        now_ms = tracer.clock()
        elapsed_ms = max(0, now_ms - given.started_ms)
        outcome = self._outcome(error, elapsed_ms)
        for message_id, keys in given.messages:
            record = encode_consumed(
                request_id=given.request_id,
                message_id=message_id,
                cost_ms=elapsed_ms // len(given.messages),
                keys=keys,
                outcome=outcome,
                time_ms=now_ms,
                group=tracer.namespace.unwrap(context.group),
            )
            tracer.add(record, message_id, keys)

    def polled(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Trace messages that were given to a caller without a handler: they count as consumed."""
        if messages:
            context = ConsumeContext(group, messages)
            self.before_consume(context)
            self.after_consume(context, None)

    def _identify(self, message: ReceivedMessage) -> tuple[str, str | None] | None:
        """Id and keys of a message that is traced."""
        try:
            is_traced = message.properties.get("TRACE_ON") != "false" and self._tracer.covers(message.topic)
            identified = message.message_id, message.record.keys
        except ProtocolError:
            return None  # the handler finds out that it cannot be read
        return identified if is_traced else None

    def _outcome(self, error: Exception | None, elapsed_ms: int) -> ConsumeOutcome:
        # In this order, as Java decides.
        if error is not None and not self._is_answer(error):
            return ConsumeOutcome.EXCEPTION
        if self._timeout_ms is not None and elapsed_ms >= self._timeout_ms:
            return ConsumeOutcome.TIMEOUT
        return ConsumeOutcome.SUCCESS if error is None else ConsumeOutcome.FAILED
