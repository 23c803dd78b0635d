"""Reads records field by field on access: the same bytes in commit log, replication stream and pull answer.

The readers trust that a broker has checked the record; `check` does that. Upstream `MessageDecoder`.
"""

from collections.abc import Iterator
from struct import error as StructError  # noqa: N812

from triomq_protocol.errors import BodyError
from triomq_protocol.hosts import unpack_host
from triomq_protocol.message_id import offset_message_id
from triomq_protocol.names import KEYS, TAGS, UNIQ_KEY
from triomq_protocol.properties import decode_properties, get_property
from triomq_protocol.record.layout import (
    ANY_HOST_V6,
    BODY_AFTER_TIMESTAMP,
    BODY_AFTER_TIMESTAMP_V6,
    BODY_AT,
    BODY_CRC_AT,
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_AT,
    BORN_HOST_V6,
    BORN_TIMESTAMP_AT,
    FIXED_BYTES,
    FLAG_AT,
    INT32,
    INT64,
    MARKED_SHAPE_V4,
    MESSAGE_MAGIC,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_BEFORE_BODY,
    PROPERTIES_LENGTH,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_BEFORE_BODY,
    SHAPE_V4,
    STORE_HOST_AFTER_TIMESTAMP,
    STORE_HOST_V6,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_AT_V6,
    TOPIC_LENGTH_BYTES,
)

_shape_v4, _int32, _int64, _length = (
    SHAPE_V4.unpack_from,
    INT32.unpack_from,
    INT64.unpack_from,
    PROPERTIES_LENGTH.unpack_from,
)
_LENGTH_BYTES = PROPERTIES_LENGTH.size


class RecordView:
    """A record inside a buffer; fields are decoded on access.

    Args:
        data: bytes or memoryview that hold the record; the view keeps a reference to it.
        at: start of the record.

    Attributes:
        size_bytes: size of the whole record.
        sys_flag: bits of `layout`: compression, transaction, IPv6 hosts.

    Raises BodyError if the record is not entirely inside the buffer or its lengths disagree.
    """

    __slots__ = (
        "_at", "_body_at", "_body_bytes", "_buffer", "_middle", "_properties_at", "_topic_at", "size_bytes", "sys_flag",
    )  # fmt: skip

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        try:
            # Runs for every message of a pull answer: one unpacking for the most common shape, IPv4 at both ends.
            size, sys_flag, body_bytes = _shape_v4(data, at)
            if size < FIXED_BYTES or at + size > len(data):
                raise _bad(f"size {size} at {at} of {len(data)} bytes")
            if sys_flag & ANY_HOST_V6:
                middle = at + (STORE_TIMESTAMP_AT_V6 if sys_flag & BORN_HOST_V6 else STORE_TIMESTAMP_AT)
                body_at = middle + (BODY_AFTER_TIMESTAMP_V6 if sys_flag & STORE_HOST_V6 else BODY_AFTER_TIMESTAMP)
                body_bytes = _int32(data, body_at - BODY_LENGTH_BEFORE_BODY)[0]
            else:
                middle = at + STORE_TIMESTAMP_AT
                body_at = at + BODY_AT
            topic_at = body_at + body_bytes + TOPIC_LENGTH_BYTES
            if body_bytes < 0 or topic_at > at + size:
                raise _bad(f"body of {body_bytes} bytes in a record of {size} bytes")
            properties_at = topic_at + data[topic_at - TOPIC_LENGTH_BYTES] + _LENGTH_BYTES
            properties_bytes = _length(data, properties_at - _LENGTH_BYTES)[0]
        except (StructError, IndexError) as error:
            raise _bad("it ends too early") from error
        if properties_bytes < 0 or properties_at + properties_bytes != at + size:
            raise _bad(f"size {size} disagrees with its parts")
        self.size_bytes: int = size
        self.sys_flag: int = sys_flag
        self._buffer = data
        self._at = at
        self._middle = middle
        self._body_at = body_at
        self._body_bytes = body_bytes
        self._topic_at = topic_at
        self._properties_at = properties_at

    @property
    def data(self) -> bytes:
        """The whole record."""
        return bytes(self._buffer[self._at : self._at + self.size_bytes])

    @property
    def body_crc(self) -> int:
        """The checksum as stored."""
        return int(_int32(self._buffer, self._at + BODY_CRC_AT)[0])

    @property
    def queue_id(self) -> int:
        """Queue inside the topic."""
        return int(_int32(self._buffer, self._at + QUEUE_ID_AT)[0])

    @property
    def flag(self) -> int:
        """The producer's own number."""
        return int(_int32(self._buffer, self._at + FLAG_AT)[0])

    @property
    def queue_offset(self) -> int:
        """Position in the queue."""
        return int(_int64(self._buffer, self._at + QUEUE_OFFSET_AT)[0])

    @property
    def physical_offset(self) -> int:
        """Position in the commit log."""
        return int(_int64(self._buffer, self._at + PHYSICAL_OFFSET_AT)[0])

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, ms since 1970."""
        return int(_int64(self._buffer, self._at + BORN_TIMESTAMP_AT)[0])

    @property
    def born_host_bytes(self) -> bytes:
        """The producer's address, packed."""
        return bytes(self._buffer[self._at + BORN_HOST_AT : self._middle])

    @property
    def born_host(self) -> tuple[str, int]:
        """The producer's address as the broker saw it."""
        return unpack_host(self.born_host_bytes)

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, ms since 1970."""
        return int(_int64(self._buffer, self._middle)[0])

    @property
    def store_host_bytes(self) -> bytes:
        """The storing broker's address, packed."""
        return bytes(
            self._buffer[self._middle + STORE_HOST_AFTER_TIMESTAMP : self._body_at - RECONSUME_TIMES_BEFORE_BODY]
        )

    @property
    def store_host(self) -> tuple[str, int]:
        """The storing broker's address."""
        return unpack_host(self.store_host_bytes)

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back."""
        return int(_int32(self._buffer, self._body_at - RECONSUME_TIMES_BEFORE_BODY)[0])

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message a committed one came from."""
        return int(_int64(self._buffer, self._body_at - PREPARED_OFFSET_BEFORE_BODY)[0])

    @property
    def body(self) -> bytes:
        """The body as stored (compressed if its bit in sys_flag is set)."""
        return bytes(self._buffer[self._body_at : self._body_at + self._body_bytes])

    @property
    def body_bytes(self) -> int:
        """Length of the stored body."""
        return int(self._body_bytes)

    @property
    def topic_bytes(self) -> bytes:
        """The topic in UTF-8."""
        return bytes(self._buffer[self._topic_at : self._properties_at - _LENGTH_BYTES])

    @property
    def topic(self) -> str:
        """The topic."""
        return self.topic_bytes.decode("utf-8", "replace")

    @property
    def properties_bytes(self) -> bytes:
        """The property string in UTF-8."""
        return bytes(self._buffer[self._properties_at : self._at + self.size_bytes])

    @property
    def properties_text(self) -> str:
        """The property string."""
        return self.properties_bytes.decode("utf-8", "replace")

    @property
    def properties(self) -> dict[str, str]:
        """The properties; decoded at every call."""
        return decode_properties(self.properties_text)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return get_property(self.properties_text, TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property: index keys separated by blanks."""
        return get_property(self.properties_text, KEYS)

    @property
    def unique_key(self) -> str | None:
        """The UNIQ_KEY property: the producer's id of the message."""
        return get_property(self.properties_text, UNIQ_KEY)

    @property
    def offset_message_id(self) -> str:
        """The broker's id of the message."""
        return offset_message_id(self.store_host_bytes, self.physical_offset)

    def __repr__(self) -> str:
        return f"<record {self.topic}-{self.queue_id}@{self.queue_offset}, {self.size_bytes} bytes>"


def _bad(reason: str) -> BodyError:
    return BodyError("message record", reason)


def iter_records(body: bytes | memoryview) -> Iterator[RecordView]:
    """The records of a pull answer; the first that cannot be decoded ends them (Java's client does the same)."""
    at, end = 0, len(body)
    while at < end:
        try:
            record = RecordView(body, at)
        except BodyError:
            return
        yield record
        at += record.size_bytes


def record_starts(body: bytes) -> list[int]:
    """The start positions of the records in a pull answer, up to the first that cannot be decoded, as in `iter_records`.

    For readers that need few fields of each record, or none yet: it costs a third of a `RecordView` each. In addition to
    `RecordView`'s checks, each record must have a record's magic number.
    """
    starts: list[int] = []
    found, shape, any_v6, marked = starts.append, MARKED_SHAPE_V4.unpack_from, ANY_HOST_V6, MESSAGE_MAGIC
    topic_length_at, fixed = BODY_AT, FIXED_BYTES
    at, end = 0, len(body)
    try:
        while at < end:
            size, magic, sys_flag, body_bytes = shape(body, at)
            following = at + size
            if magic != marked:
                break
            if sys_flag & any_v6:
                RecordView(body, at)
            else:
                properties_at = at + fixed + body_bytes
                properties_at += body[at + topic_length_at + body_bytes]
                # These conditions together imply all that RecordView checks one by one. Two indexes are cheaper than a
                # call of Struct; a first byte above 127 would make the length negative.
                if (
                    body_bytes < 0
                    or following > end
                    or body[properties_at - 2] > 127
                    or body[properties_at - 2] << 8 | body[properties_at - 1] != following - properties_at
                ):
                    break
            found(at)
            at = following
    except (StructError, IndexError, BodyError):
        pass
    return starts


def records_end(body: bytes, starts: list[int]) -> int:
    """The end of the last record that `record_starts` found; the body's length if all of it is records."""
    return starts[-1] + int(_int32(body, starts[-1])[0]) if starts else 0


def queue_offset_at(data: bytes, at: int) -> int:
    """The queue offset of the record that starts there; the caller guarantees that there is one."""
    return int(_int64(data, at + QUEUE_OFFSET_AT)[0])


def stored_body(data: bytes, at: int, unless: int) -> bytes | None:
    """The body of the record that starts there; None if `sys_flag` has one of these bits, or hosts are not IPv4.

    The caller guarantees that there is a record.
    """
    _, sys_flag, body_bytes = _shape_v4(data, at)
    if sys_flag & (unless | ANY_HOST_V6):
        return None
    at += BODY_AT
    return data[at : at + body_bytes]
