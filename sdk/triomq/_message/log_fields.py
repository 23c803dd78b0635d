"""The fields of log records in addition to their text, as ``extra``: topic, broker, queue, offset, message and group."""

from __future__ import annotations

from triomq._message.message import MessageQueue
from triomq._message.received import ReceivedMessage


def queue_fields(queue: MessageQueue, group: str | None = None) -> dict[str, object]:
    """The fields of a line about a queue."""
    fields: dict[str, object] = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
    if group is not None:
        fields["group"] = group
    return fields


def message_fields(message: ReceivedMessage, group: str | None = None) -> dict[str, object]:
    """The fields of a line about a stored message."""
    return {
        **queue_fields(message.queue, group),
        "topic": message.topic,
        "offset": message.queue_offset,
        "message_id": message.message_id,
    }
