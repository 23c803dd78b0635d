"""A message as a consumer sees it: the stored record's bytes, decoded field by field when asked.

Upstream: ``MessageExt``, ``MessageClientExt``, ``MessageDecoder`` (messages.md §14.1).
"""

from __future__ import annotations

from triomq._compression import decompress
from triomq._message import MessageQueue
from triomq_protocol.record import RecordView


class ReceivedMessage:
    """A stored message; nothing of it is decoded before it is asked for.

    Args:
        record: the stored record.
        queue: where it was pulled from; None when it was looked up by id.
        min_offset: first offset of the queue when it was pulled.
        max_offset: offset behind the last one then.
    """

    __slots__ = ("_body", "_properties", "max_offset", "min_offset", "queue", "record")

    def __init__(
        self, record: RecordView, queue: MessageQueue | None = None, min_offset: int = -1, max_offset: int = -1
    ) -> None:
        self.record = record
        self.queue = queue
        self.min_offset = min_offset
        self.max_offset = max_offset
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None

    @property
    def topic(self) -> str:
        """The topic it is stored under."""
        return self.record.topic

    @property
    def body(self) -> bytes:
        """The payload, decompressed if need be.

        Raises:
            MessageIllegal: it cannot be decompressed.
            InvalidCall: the library for it is not installed.
        """
        if self._body is None:
            self._body = decompress(self.record.body, self.record.sys_flag)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the broker's included."""
        if self._properties is None:
            self._properties = self.record.properties
        return self._properties

    @property
    def tags(self) -> str | None:
        """The tag."""
        return self.record.tags

    @property
    def keys(self) -> list[str]:
        """The index keys."""
        return (self.record.keys or "").split()

    @property
    def message_id(self) -> str:
        """The sender's id (``UNIQ_KEY``) if there is one, else the broker's."""
        return self.record.unique_key or self.record.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: its address and the commitlog offset."""
        return self.record.offset_message_id

    @property
    def queue_id(self) -> int:
        """The queue's number on its broker."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """Its place in the queue."""
        return self.record.queue_offset

    @property
    def physical_offset(self) -> int:
        """Its place in the broker's commitlog."""
        return self.record.physical_offset

    @property
    def flag(self) -> int:
        """The sender's flag."""
        return self.record.flag

    @property
    def sys_flag(self) -> int:
        """Bits of messages.md §4."""
        return self.record.sys_flag

    @property
    def born_ms(self) -> int:
        """When it was sent, by the sender's clock, in ms since 1970."""
        return self.record.born_timestamp

    @property
    def born_host(self) -> tuple[str, int]:
        """Who sent it, as the broker saw it."""
        return self.record.born_host

    @property
    def stored_ms(self) -> int:
        """When it was stored, by the broker's clock, in ms since 1970."""
        return self.record.store_timestamp

    @property
    def store_host(self) -> tuple[str, int]:
        """The broker that stored it."""
        return self.record.store_host

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back."""
        return self.record.reconsume_times

    @property
    def transaction_id(self) -> str | None:
        """``UNIQ_KEY`` of a transactional message."""
        if self.properties.get("TRAN_MSG", "").lower() != "true":
            return None
        return self.record.unique_key

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.topic} queue {self.queue_id} offset {self.queue_offset} id {self.message_id}>"
