"""Sends Kombu's messages to topics."""

from __future__ import annotations

from typing import Any

import triomq
import triomq.blocking
from triomq_adapters.delays import Clock, due_of, message_due
from triomq_adapters.envelopes import eta_ms, plain_text

HELD_MS = 10_000
"""A task due within this time, in ms, waits in the worker, which is more precise than delay levels."""


class Sender:
    """Sends Kombu messages to topics.

    Args:
        producer: the producer.
        clock: returns the time in ms since 1970.
    """

    def __init__(self, producer: triomq.blocking.Producer, clock: Clock) -> None:
        self._producer = producer
        self.clock = clock

    def send(self, topic: str, message: dict[str, Any], body: bytes) -> None:
        """Send a packed message; a task that is due later waits at the broker."""
        due_ms = eta_ms(message)
        self._send(
            topic, body, plain_text(message["headers"].get("task")), plain_text(message["headers"].get("id")), due_ms
        )

    def send_on(self, topic: str, received: triomq.ReceivedMessage) -> None:
        """Send a received message again, unchanged."""
        keys = received.keys
        self._send(topic, received.body, received.tags, keys[0] if keys else None, due_of(received.properties))

    def _send(self, topic: str, body: bytes, tag: str | None, key: str | None, due_ms: int | None) -> None:
        now_ms = self.clock()
        if due_ms is not None and due_ms - now_ms <= HELD_MS:
            due_ms = None
        self._producer.send(message_due(topic, body, tags=tag, keys=key, due_ms=due_ms, now_ms=now_ms))
