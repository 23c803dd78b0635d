"""Hooks: user code that sees every send, every pull and every call of a handler (docs/protocol/client.md §6.15).

They are plain functions, called before and after; what they raise is logged and changes nothing. Before a send a hook may
add properties to the message, such as the headers of a trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import attrs
from msgspec import structs

from triomq._message.message import Message, MessageQueue, check_properties
from triomq._message.pull_result import PullResult
from triomq._message.received import ReceivedMessage
from triomq._message.send_result import SendResult
from triomq.errors import MQError

log = logging.getLogger("triomq.hooks")

H = TypeVar("H")


@attrs.frozen
class SendContext:
    """A send, as hooks see it.

    Args:
        group: producer group.
        message: what is sent.
        message_id: its ``UNIQ_KEY``.
        oneway: whether nobody waits for an answer.
        batch_count: how many messages its request has; 1 unless it was sent in a batch.
    """

    group: str
    message: Message
    message_id: str
    oneway: bool = False
    batch_count: int = 1


class SendHook(Protocol):
    """Sees every message once before its first attempt and once after its last; of a batch each of its messages."""

    def before_send(self, context: SendContext, /) -> Mapping[str, str] | None:
        """The message is about to be sent.

        Returns:
            Properties to be added to it; they replace those of the same name. What is no property that users may set is
            logged, and nothing of it is added.
        """

    def after_send(self, context: SendContext, outcome: SendResult | MQError | None, /) -> None:
        """The send has ended; not called when its caller was cancelled.

        Args:
            context: as before.
            outcome: the result, for each message of a batch that of the batch; the error; None for a one-way message
                that is queued for writing.
        """


@attrs.frozen
class PullContext:
    """A pull, as hooks see it.

    Args:
        group: consumer group.
        queue: what is pulled.
        queue_offset: from where.
    """

    group: str
    queue: MessageQueue
    queue_offset: int


class PullHook(Protocol):
    """Sees every pull before it goes out and after its answer."""

    def before_pull(self, context: PullContext, /) -> None:
        """The request is about to be sent."""

    def after_pull(self, context: PullContext, outcome: PullResult | MQError, /) -> None:
        """The pull has ended; not called when its caller was cancelled."""


@attrs.frozen
class ConsumeContext:
    """Messages given to a handler, as hooks see it.

    Args:
        group: consumer group.
        messages: of one queue; one, unless the consumer takes batches.
    """

    group: str
    messages: Sequence[ReceivedMessage]


class ConsumeHook(Protocol):
    """Sees every call of a push consumer's handler."""

    def before_consume(self, context: ConsumeContext, /) -> None:
        """The handler is about to be called."""

    def after_consume(self, context: ConsumeContext, error: Exception | None, /) -> None:
        """The handler has returned, or raised; not called when it was cancelled."""


def _call_each(hooks: Sequence[H], when: str, call: Callable[[H], None]) -> None:
    for hook in hooks:
        try:
            call(hook)
        except Exception:
            log.exception("the hook %r failed %s", hook, when)


def call_before_send(hooks: Sequence[SendHook], context: SendContext) -> Message:
    """Call every hook; one that raises is logged. Returns the message with the properties that they add."""
    added: dict[str, str] = {}

    def call(hook: SendHook) -> None:
        given = hook.before_send(context)
        if given:
            check_properties(given)
            added.update(given)

    _call_each(hooks, "before a send", call)
    message = context.message
    return structs.replace(message, properties={**(message.properties or {}), **added}) if added else message


def call_after_send(hooks: Sequence[SendHook], context: SendContext, outcome: SendResult | MQError | None) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "after a send", lambda hook: hook.after_send(context, outcome))


def call_before_pull(hooks: Sequence[PullHook], context: PullContext) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "before a pull", lambda hook: hook.before_pull(context))


def call_after_pull(hooks: Sequence[PullHook], context: PullContext, outcome: PullResult | MQError) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "after a pull", lambda hook: hook.after_pull(context, outcome))


def call_before_consume(hooks: Sequence[ConsumeHook], context: ConsumeContext) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "before a handler", lambda hook: hook.before_consume(context))


def call_after_consume(hooks: Sequence[ConsumeHook], context: ConsumeContext, error: Exception | None) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "after a handler", lambda hook: hook.after_consume(context, error))
