"""A received message: the stored record's bytes, decoded field by field on access.

Upstream: ``MessageExt``, ``MessageClientExt``, ``MessageDecoder`` (docs/protocol/messages.md §14.1).
"""

from __future__ import annotations

import attrs

from triomq._error_text import one_line
from triomq._message.compression import MAX_DECOMPRESSED_BYTES, decompress
from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.hosts import pack_host
from triomq_protocol.java_text import utf8
from triomq_protocol.names import ARRIVE_TIME, MAX_PROPERTIES_BYTES
from triomq_protocol.properties import append_property, remove_property
from triomq_protocol.record.encode import encode_topic, head_for, write_record
from triomq_protocol.record.layout import COMPRESSED, IPV4_HOST_BYTES, PROPERTIES_LENGTH
from triomq_protocol.record.view import RecordView, queue_offset_at, stored_body
from triomq_protocol.requests.send import ReplyMessageRequest


class Page:
    """The common data of one pulled answer's messages; its bytes stay as long as one of them does.

    Args:
        body: records, one after the other.
        queue: the queue they were pulled from.
        min_offset: first offset of the queue when it was pulled.
        max_offset: offset after its last message at that time.
        namespace: the namespace whose prefix the stored topics may have; None: no namespace.
    """

    __slots__ = ("body", "decompressed_bytes", "max_offset", "min_offset", "namespace", "queue")

    def __init__(
        self,
        body: bytes,
        queue: MessageQueue,
        min_offset: int = -1,
        max_offset: int = -1,
        namespace: Namespace | None = None,
    ) -> None:
        self.body: bytes = body
        self.decompressed_bytes: int = 0  # bytes of decompressed bodies that its messages keep
        self.queue: MessageQueue = queue
        self.min_offset: int = min_offset
        self.max_offset: int = max_offset
        self.namespace: Namespace | None = namespace or None


class ReceivedMessage:
    """A stored message; each field is decoded when it is first read.

    Args:
        record: the stored record.
        queue: the queue it was pulled from.
        min_offset: first offset of the queue when it was pulled.
        max_offset: offset after its last message at that time.
        namespace: the namespace whose prefix its topic may have; None: no namespace.
    """

    # Pulled messages arrive at 100,000 per second: they store only their page and their position in it.
    __slots__ = ("_at", "_body", "_properties", "_record", "page")

    _record: RecordView | None
    _body: bytes | None
    _properties: dict[str, str] | None

    def __init__(
        self,
        record: RecordView,
        queue: MessageQueue,
        min_offset: int = -1,
        max_offset: int = -1,
        namespace: Namespace | None = None,
    ) -> None:
        self.page: Page = Page(b"", queue, min_offset, max_offset, namespace)
        self._at = 0
        self._record = record
        self._body = None
        self._properties = None

    @property
    def record(self) -> RecordView:
        """The stored record."""
        record = self._record
        if record is None:
            record = self._record = RecordView(self.page.body, self._at)
        return record

    @property
    def queue(self) -> MessageQueue:
        """The queue it was pulled from."""
        return self.page.queue

    @property
    def min_offset(self) -> int:
        """First offset of the queue when it was pulled."""
        return self.page.min_offset

    @property
    def max_offset(self) -> int:
        """Offset after the queue's last message when it was pulled."""
        return self.page.max_offset

    @property
    def topic(self) -> str:
        """The topic it is stored under, without the client's namespace."""
        topic, namespace = self.record.topic, self.page.namespace
        return topic if namespace is None else namespace.unwrap(topic)

    @property
    def body(self) -> bytes:
        """The payload, decompressed if needed.

        Raises:
            MessageIllegal: it cannot be decompressed.
            InvalidCall: the library for it is not installed.
        """
        body = self._body
        if body is None:
            if self._record is None:
                body = stored_body(self.page.body, self._at, COMPRESSED)
            if body is None:
                body = decompress(self.record.body, self.record.sys_flag)
                # 2 kB may become 64 MiB: the bytes kept per answer are bounded; the rest is decompressed when read.
                if self.page.decompressed_bytes + len(body) > MAX_DECOMPRESSED_BYTES:
                    return body
                self.page.decompressed_bytes += len(body)
            self._body = body
        return body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the broker's included."""
        if self._properties is None:
            self._properties = self.record.properties
        return self._properties

    @property
    def tags(self) -> str | None:
        """The tag that it was sent with."""
        return self.record.tags

    @property
    def keys(self) -> list[str]:
        """The index keys."""
        return (self.record.keys or "").split()

    @property
    def message_id(self) -> str:
        """The sender's id (``UNIQ_KEY``) if there is one, otherwise the broker's."""
        return self.record.unique_key or self.record.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: its address and the offset in its commit log."""
        return self.record.offset_message_id

    @property
    def queue_id(self) -> int:
        """The queue's number on its broker."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue."""
        if self._record is None:
            return queue_offset_at(self.page.body, self._at)
        return self._record.queue_offset

    @property
    def physical_offset(self) -> int:
        """Its offset in the broker's commit log, in bytes."""
        return self.record.physical_offset

    @property
    def flag(self) -> int:
        """The sender's flag."""
        return self.record.flag

    @property
    def sys_flag(self) -> int:
        """Bits of docs/protocol/messages.md §4."""
        return self.record.sys_flag

    @property
    def born_ms(self) -> int:
        """When it was sent, by the sender's clock, in ms since 1970."""
        return self.record.born_timestamp

    @property
    def born_host(self) -> tuple[str, int]:
        """Address of the sender, as the broker saw it."""
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
        """How often it was sent back to be retried."""
        return self.record.reconsume_times

    @property
    def transaction_id(self) -> str | None:
        """``UNIQ_KEY`` of a transactional message."""
        if self.properties.get("TRAN_MSG", "").lower() != "true":
            return None
        return self.record.unique_key

    def __repr__(self) -> str:
        # One line, which logs can have: any sender chooses the id, and the topic of a message that is delivered again.
        topic, message_id = map(one_line, (self.topic, self.message_id))
        return f"<ReceivedMessage {topic} queue {self.queue_id} offset {self.queue_offset} id {message_id}>"


def received_messages(page: Page, starts: list[int]) -> list[ReceivedMessage]:
    """The messages of a pulled answer, in order, from the positions of their records."""
    make = ReceivedMessage.__new__
    messages = []
    for at in starts:
        # Not by the constructor: that would be a third of the whole cost.
        message = make(ReceivedMessage)
        message.page = page
        message._at = at  # noqa: SLF001
        message._record = message._body = message._properties = None  # noqa: SLF001
        messages.append(message)
    return messages


@attrs.define
class _ReplyFields:
    """The fields of a reply that :func:`write_record` needs."""

    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int = 0


def received_reply(header: ReplyMessageRequest, body: bytes, arrived_ms: int) -> ReceivedMessage:
    """A reply pushed by a broker, as a message; it was not pulled, so its offsets are 0.

    Raises:
        BodyError: its topic or its properties are longer than any message's.
    """
    topic = encode_topic(header.topic)
    text = append_property(remove_property(header.properties or "", ARRIVE_TIME), ARRIVE_TIME, str(arrived_ms))
    properties = utf8(text)
    if not topic or len(properties) > MAX_PROPERTIES_BYTES:
        raise BodyError("reply", f"topic of {len(header.topic)} characters, properties of {len(properties)} bytes")
    born_host, store_host = _packed(header.born_host), _packed(header.store_host)
    head, sys_flag = head_for(born_host, store_host, header.sys_flag)
    fields = _ReplyFields(
        header.queue_id, body, properties, header.flag, header.born_timestamp, born_host, store_host,
        header.reconsume_times or 0,
    )  # fmt: skip
    record = bytearray(head.size + len(body) + len(topic) + PROPERTIES_LENGTH.size + len(properties))
    write_record(record, 0, len(record), head, sys_flag, topic, 0, 0, header.store_timestamp, fields)
    return ReceivedMessage(RecordView(bytes(record)), MessageQueue(header.topic, "", header.queue_id))


def _packed(host: str) -> bytes:
    """``ip:port`` as in records; zeros for invalid text, as nothing depends on it."""
    ip, _, port = host.removeprefix("/").rpartition(":")
    try:
        return pack_host(ip.strip("[]"), int(port))
    except (LocalProtocolError, ValueError):
        return bytes(IPV4_HOST_BYTES)
