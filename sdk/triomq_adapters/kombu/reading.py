"""What consumers of both kinds of queues do: subscribe, and read bodies."""

from __future__ import annotations

from contextlib import ExitStack

import triomq
import triomq.blocking


def body_of(message: triomq.ReceivedMessage) -> bytes:
    """The body of a message.

    Raises:
        ValueError: it is compressed, and is damaged, or the library for it is not installed.
    """
    try:
        return message.body
    except (triomq.errors.MessageIllegal, triomq.errors.InvalidCall) as error:
        raise ValueError(str(error)) from error


def subscribed(consumer: triomq.blocking.PushConsumer, topic: str) -> triomq.blocking.PushConsumer:
    """Enter a consumer; it leaves its group again if it cannot subscribe, so that the next attempt can join."""
    with ExitStack() as unless_subscribed:
        unless_subscribed.enter_context(consumer)
        consumer.subscribe(topic)
        unless_subscribed.pop_all()
    return consumer
