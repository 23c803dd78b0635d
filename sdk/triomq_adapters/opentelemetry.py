"""Traces of OpenTelemetry: spans of sends, pulls and handlers, joined by the context in messages' properties.

::

    RocketMQInstrumentor().instrument()

Producers and consumers created afterwards have spans; ``opentelemetry-instrument`` finds the class by its entry point.
Names and attributes are those of the semantic conventions for messaging. A message that is delivered again, or has
become a dead letter, keeps its properties, and so its trace.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

import triomq
from triomq import Later, MessageQueue, MQError, PullResult, ReceivedMessage, SendResult
from triomq.plugins import ConsumeContext, PullContext, SendContext, process_hooks

__all__ = ["RocketMQInstrumentor"]

LINKS_MAX: Final = 128
"""The most links of one span; OpenTelemetry's own default."""

Attributes = dict[str, AttributeValue]


class RocketMQInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Adds spans to the producers and consumers of this process.

    ``instrument(tracer_provider=...)`` affects those created afterwards, until ``uninstrument()`` is called.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """The instrumented package and its versions."""
        return ["triomq >= 0.1"]

    def _instrument(self, **given: Any) -> None:
        tracer = trace.get_tracer(
            "triomq",
            triomq.__version__,
            given.get("tracer_provider"),
            schema_url="https://opentelemetry.io/schemas/1.37.0",
        )
        kinds: list[tuple[list[Any], Any]] = [
            (process_hooks.send, _SendSpans(tracer)),
            (process_hooks.pull, _ReceiveSpans(tracer)),
            (process_hooks.consume, _ProcessSpans(tracer)),
        ]
        self._hooks = kinds
        for hooks, hook in kinds:
            hooks.append(hook)

    def _uninstrument(self, **_given: Any) -> None:
        for hooks, hook in self._hooks:
            hooks.remove(hook)


class _Announced(threading.local):
    """The spans of the batch whose messages are being announced one by one, in this thread: each client has its own."""

    def __init__(self) -> None:
        self.creates: list[Span] = []


class _SendSpans:
    """A span for each send, from before its first attempt to its end.

    A batch has one as well, linked to those of its messages.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # By the context's identity: it is the same object before and after. A cancelled send has no end; its spans end
        # when its context is freed.
        self._spans: dict[int, tuple[weakref.ref[SendContext], tuple[Span, ...]]] = {}
        self._announced = _Announced()

    def before_send(self, context: SendContext, /) -> Mapping[str, str] | None:
        message = context.message
        # By the conventions, a message that is sent with others in one request has a "create" span.
        operation = "send" if context.batch_count == 1 else "create"
        span = self._tracer.start_span(
            f"{operation} {message.topic}", kind=SpanKind.PRODUCER, attributes=_send_attributes(context, operation)
        )
        spans: tuple[Span, ...] = (span,)
        if context.batch_count > 1:
            if not context.batch_number:
                self._announced.creates.clear()
            self._announced.creates.append(span)
            if context.batch_number == context.batch_count - 1:
                spans = span, self._batch_span(context)
        number = id(context)

        def gone(_: weakref.ref[SendContext]) -> None:
            for left in self._spans.pop(number, (None, ()))[1]:
                left.set_status(StatusCode.ERROR, "cancelled")
                left.end()

        self._spans[number] = weakref.ref(context, gone), spans
        properties: dict[str, str] = {}
        propagate.inject(properties, context=trace.set_span_in_context(span))
        return properties

    def _batch_span(self, context: SendContext) -> Span:
        links = [Link(each.get_span_context()) for each in self._announced.creates[:LINKS_MAX]]
        self._announced.creates.clear()
        return self._tracer.start_span(
            f"send {context.message.topic}",
            kind=SpanKind.CLIENT,
            links=links,
            attributes=_attributes("send", context.message.topic)
            | {"messaging.batch.message_count": context.batch_count},
        )

    def after_send(self, context: SendContext, outcome: SendResult | MQError | None, /) -> None:
        for span in self._spans.pop(id(context), (None, ()))[1]:
            if isinstance(outcome, MQError):
                _fail(span, outcome)
            elif outcome is not None:
                span.set_attribute("messaging.destination.partition.id", _partition(outcome.queue))
                if outcome.status is not triomq.SendStatus.SEND_OK:
                    span.set_attribute("messaging.rocketmq.send.status", outcome.status.name)
            span.end()


def _attributes(operation: str, topic: str, queue: MessageQueue | None = None, group: str = "") -> Attributes:
    """The attributes of every span; those of consumers also have the queue and the group."""
    attributes: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if queue is not None:
        attributes["messaging.destination.partition.id"] = _partition(queue)
        attributes["messaging.consumer.group.name"] = group
    return attributes


def _send_attributes(context: SendContext, operation: str) -> Attributes:
    message = context.message
    attributes = _attributes(operation, message.topic) | {
        "messaging.message.id": context.message_id,
        "messaging.message.body.size": len(message.body),
        "messaging.rocketmq.message.type": _message_type(context),
    }
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = (
            [message.keys] if isinstance(message.keys, str) else list(message.keys)
        )
    if message.delay_level > 0:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    return attributes


def _message_type(context: SendContext) -> str:
    if context.transactional:
        return "transaction"
    return "delay" if context.message.delay_level > 0 else "normal"


class _ReceiveSpans:
    """A span for each pull of a pull consumer that returned messages, linked to their sends."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begun: dict[int, tuple[weakref.ref[PullContext], int]] = {}

    def before_pull(self, context: PullContext, /) -> None:
        number = id(context)
        gone = weakref.ref(context, lambda _: self._begun.pop(number, None))
        self._begun[number] = gone, time.time_ns()

    def after_pull(self, context: PullContext, outcome: PullResult | MQError, /) -> None:
        begun = self._begun.pop(id(context), None)
        if begun is None or (not isinstance(outcome, MQError) and not outcome):
            # A pull that found nothing is not an event of the program.
            return
        messages: Sequence[ReceivedMessage] = () if isinstance(outcome, MQError) else outcome.messages
        span = self._tracer.start_span(
            f"receive {context.queue.topic}",
            kind=SpanKind.CLIENT,
            start_time=begun[1],
            links=_links(messages),
            attributes=_attributes("receive", context.queue.topic, context.queue, context.group)
            | {"messaging.batch.message_count": len(messages)},
        )
        if isinstance(outcome, MQError):
            _fail(span, outcome)
        span.end()


class _ProcessSpans:
    """A span around each call of a handler: a child of the message's send, or linked to the sends of several."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def around_consume(self, context: ConsumeContext, /) -> Iterator[None]:
        messages = context.messages
        first = messages[0]
        attributes = _attributes("process", first.topic, first.queue, context.group)
        # Not the task's own context, which belongs to the code that started the consumer.
        parent = Context()
        links: Sequence[Link] = ()
        if len(messages) == 1:
            parent = propagate.extract(first.properties, parent)
            attributes["messaging.message.id"] = first.message_id
            if first.tags:
                attributes["messaging.rocketmq.message.tag"] = first.tags
            if first.keys:
                attributes["messaging.rocketmq.message.keys"] = first.keys
            if first.reconsume_times:
                attributes["messaging.rocketmq.message.reconsume_times"] = first.reconsume_times
        else:
            attributes["messaging.batch.message_count"] = len(messages)
            links = _links(messages)
        span = self._tracer.start_span(
            f"process {first.topic}", parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except Later:
                span.set_attribute("messaging.rocketmq.consume.later", True)
                raise
            except trio.Cancelled:
                span.set_status(StatusCode.ERROR, "cancelled")
                raise
            except Exception as error:
                _fail(span, error)
                raise


def _fail(span: Span, error: Exception) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR, str(error))


def _partition(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _links(messages: Sequence[ReceivedMessage]) -> list[Link]:
    """Links to the contexts in which messages were sent, for those that carry one."""
    found = []
    for message in messages[:LINKS_MAX]:
        context = trace.get_current_span(propagate.extract(message.properties, Context())).get_span_context()
        if context.is_valid:
            found.append(Link(context, {"messaging.message.id": message.message_id}))
    return found
