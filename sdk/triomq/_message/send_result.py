"""The result of a send (docs/protocol/client.md §6.12; upstream ``SendResult``, ``SendStatus``)."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from triomq._message.message import MessageQueue
from triomq.errors import MQError


class SendStatus(enum.IntEnum):
    """How safely the broker stored a message; all but :attr:`SEND_OK` mean: stored, but less safely than configured."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True):
    """A message that a broker has stored.

    Args:
        status: whether flush and replication went as configured.
        message_id: the client's id, property ``UNIQ_KEY``; comma-joined for a batch.
        offset_message_id: the broker's id: its address and the offset in its commit log, in hex; comma-joined for a batch.
        queue: the queue it is in.
        queue_offset: its offset there; that of the first message for a batch.
        transaction_id: set by brokers for half messages only.
        region_id: the broker's region.
        trace_on: whether the broker wants traces.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True


class SendCallback(Protocol):
    """Called when a send has ended: exactly one of the two methods, exactly once, even if the producer closes.

    Either method may be a plain function, called from the link's reader and therefore fast, or an async one, which
    runs as a task of the client.  Their exceptions are logged and not propagated.
    """

    def on_success(self, result: SendResult, /) -> Awaitable[None] | None:
        """The broker has stored the message."""

    def on_exception(self, error: MQError, /) -> Awaitable[None] | None:
        """All attempts are used up, or the producer closed before the answer arrived."""


SendFunction = Callable[[SendResult | None, MQError | None], Awaitable[None] | None]
"""A callback as one function of ``(result, error)``, one of them None; otherwise as :class:`SendCallback`."""
