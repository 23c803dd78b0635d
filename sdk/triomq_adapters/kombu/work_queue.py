"""A queue that workers share: a topic with a consumer group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import triomq
import triomq.blocking
from triomq_adapters.delays import remaining_ms
from triomq_adapters.envelopes import unpack
from triomq_adapters.kombu.reading import body_of, subscribed
from triomq_adapters.kombu.sender import HELD_MS, Sender

log = logging.getLogger("triomq.adapters.kombu")


class WorkQueue:
    """A queue that workers share, read as a member of its group.

    Args:
        consumer: the consumer for the topic's group; this object enters and closes it.
        topic: the topic of the messages.
        sender: sends messages again that are not due.
    """

    def __init__(self, consumer: triomq.blocking.PushConsumer, topic: str, sender: Sender) -> None:
        self._topic = topic
        self._sender = sender
        self._unacknowledged: dict[str, triomq.blocking.Delivery] = {}
        self._cancelled = False
        self._consumer = subscribed(consumer, topic)

    def take(self, new_tag: Callable[[], str], wait_s: float = 0.0) -> dict[str, Any] | None:
        """The next Kombu message, with a delivery tag that :meth:`done` takes; None if there is none now."""
        while (delivery := self._consumer.poll(wait_s)) is not None:
            try:
                body = body_of(delivery.message)
                if remaining_ms(delivery.message.properties, self._sender.clock()) > HELD_MS:
                    # Sent before the answer: a worker that ends between the two causes a copy, and loses nothing.
                    self._sender.send_on(self._topic, delivery.message)
                    delivery.done()
                    continue
                message = unpack(body)
            except ValueError as error:
                log.error("%r is not a message of Kombu, and is delivered again later: %s", delivery.message, error)  # noqa: TRY400
                delivery.later()
                continue
            except triomq.MQError:
                delivery.later()
                raise
            tag = new_tag()
            message["properties"]["delivery_tag"] = tag
            message["properties"]["delivery_info"]["redelivered"] = delivery.message.reconsume_times > 0
            self._unacknowledged[tag] = delivery
            return message
        return None

    def has(self, tag: str) -> bool:
        """Whether a message was taken here and not acknowledged."""
        return tag in self._unacknowledged

    def done(self, tag: str, *, again: bool = False) -> bool:
        """Mark a message as consumed, or give it to any worker again at once.

        Returns:
            Whether the queue is cancelled, and this was its last message.
        """
        delivery = self._unacknowledged[tag]
        if again:
            self._sender.send_on(self._topic, delivery.message)
        # A message that took too long was delivered again, and that delivery counts.
        if not delivery.answered:
            delivery.done()
        del self._unacknowledged[tag]
        return self._cancelled and not self._unacknowledged

    def cancel(self) -> bool:
        """Stop taking messages; the group is left when the last message is acknowledged.

        Returns:
            Whether the group can be left now.
        """
        self._cancelled = True
        return not self._unacknowledged

    def resume(self) -> None:
        """Take messages again."""
        self._cancelled = False

    def close(self) -> None:
        """Leave the group; unacknowledged messages are given to other workers."""
        self._consumer.close()
