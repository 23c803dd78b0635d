"""The message record: the same bytes in commit log, replication stream and pull answer (messages.md section 14).

Also the elements of a batch body, which become records (messages.md section 7). Upstream `CommitLog`, `MessageDecoder`.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812

import attrs

from triomq_protocol.checksum import crc32
from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.hosts import format_host, pack_host, unpack_host
from triomq_protocol.message_id import offset_message_id
from triomq_protocol.properties import KEYS, TAGS, UNIQ_KEY, decode_properties, get_property

__all__ = [
    "BLANK_MAGIC",
    "BORN_HOST_AT",
    "BORN_TIMESTAMP_AT",
    "FIXED_BYTES",
    "MESSAGE_MAGIC",
    "PHYSICAL_OFFSET_AT",
    "QUEUE_ID_AT",
    "QUEUE_OFFSET_AT",
    "STORE_TIMESTAMP_AT",
    "SYS_FLAG_AT",
    "BatchElement",
    "RecordCheck",
    "RecordView",
    "check_record",
    "crc32",
    "encode_batch_element",
    "encode_record",
    "format_host",
    "iter_batch",
    "iter_records",
    "pack_host",
    "queue_offset_at",
    "record_bytes",
    "record_starts",
    "store_timestamp_at",
    "stored_body",
    "unpack_host",
]

MESSAGE_MAGIC = -626843481
"""0xDAA320A7 as signed int32."""
BLANK_MAGIC = -875286124
"""0xCBD43194 as signed int32: filler at the end of a log file; the first word is then the rest of the file."""
QUEUE_ID_AT = 12
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = 56
"""For an IPv4 born host; see `store_timestamp_at`."""
FIXED_BYTES = 91
"""Size of a record with IPv4 hosts, without body, topic and properties."""

_MAX_TOPIC_BYTES = 127
_MAX_PROPERTIES_BYTES = 32767
_V6_EXTRA_BYTES = 12
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_ANY_V6 = _BORN_V6 | _STORE_V6

# size, magic, crc, queue id, flag, queue offset, physical offset, sysFlag, born timestamp | born host
_HEAD = Struct(">iiiiiqqiq")
# store timestamp, store host, reconsume times, prepared offset, body length; the hosts have two sizes each
_MIDDLE = {8: Struct(">q8siqi"), 20: Struct(">q20siqi")}
_ALL_V4 = Struct(">iiiiiqqiq8sq8siqi")
_pack_v4 = _ALL_V4.pack
_unpack_head = _HEAD.unpack_from
_SIZE_AND_MAGIC = Struct(">ii").unpack_from
_SHAPE_V4 = Struct(">i32xi44xi").unpack_from  # size, sysFlag, body length
_BODY_V4_AT = 88
_INT32 = Struct(">i").unpack_from
_INT64 = Struct(">q").unpack_from
_INT16 = Struct(">h").unpack_from


def store_timestamp_at(sys_flag: int) -> int:
    """Where the store timestamp stands: 56, or 68 behind an IPv6 born host."""
    return STORE_TIMESTAMP_AT + _V6_EXTRA_BYTES if sys_flag & _BORN_V6 else STORE_TIMESTAMP_AT


def record_bytes(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int = 0) -> int:
    """Size of a record."""
    extra = (_V6_EXTRA_BYTES if sys_flag & _BORN_V6 else 0) + (_V6_EXTRA_BYTES if sys_flag & _STORE_V6 else 0)
    return FIXED_BYTES + extra + body_bytes + topic_bytes + properties_bytes


def encode_record(
    topic: bytes,
    queue_id: int,
    body: bytes | memoryview,
    properties: bytes,
    *,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_host: bytes,
    queue_offset: int = 0,
    physical_offset: int = 0,
    store_timestamp: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
) -> bytes:
    """One record; the caller may pass the three late values at once, or patch them at their `*_AT` offsets.

    The v6 bits of `sys_flag` are set from the hosts' lengths. Raises LocalProtocolError if a part does not fit.
    """
    body_bytes, topic_bytes, properties_bytes = len(body), len(topic), len(properties)
    if topic_bytes > _MAX_TOPIC_BYTES or properties_bytes > _MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(
            f"topic of {topic_bytes} or properties of {properties_bytes} bytes do not fit a record"
        )
    crc = crc32(body) if body_crc is None else body_crc
    try:
        if len(born_host) == 8 and len(store_host) == 8:
            head = _pack_v4(
                FIXED_BYTES + body_bytes + topic_bytes + properties_bytes, MESSAGE_MAGIC, crc, queue_id, flag,
                queue_offset, physical_offset, sys_flag & ~0x30, born_timestamp, born_host, store_timestamp,
                store_host, reconsume_times, prepared_transaction_offset, body_bytes,
            )  # fmt: skip
        elif len(born_host) not in _MIDDLE:
            raise LocalProtocolError(f"born host of {len(born_host)} bytes")
        else:
            sys_flag = sys_flag & ~0x30 | (_BORN_V6 if len(born_host) == 20 else 0)
            sys_flag |= _STORE_V6 if len(store_host) == 20 else 0
            size = record_bytes(body_bytes, topic_bytes, properties_bytes, sys_flag)
            head = (
                _HEAD.pack(
                    size, MESSAGE_MAGIC, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp
                )
                + born_host
                + _MIDDLE[len(store_host)].pack(
                    store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body_bytes
                )
            )
    except (StructError, KeyError) as error:
        raise LocalProtocolError(f"record field out of range: {error}") from error
    return b"".join(
        (head, body, topic_bytes.to_bytes(1, "big"), topic, properties_bytes.to_bytes(2, "big"), properties)
    )


class RecordView:
    """A record inside a buffer; fields are decoded when asked for.

    Args:
        data: bytes or memoryview that hold the record; it is kept alive by the view.
        at: where it starts.

    Attributes:
        size_bytes: of the whole record.
        sys_flag: bits of `flags`: compression, transaction, IPv6 hosts.

    Raises BodyError if the record does not lie wholly inside the buffer or its lengths disagree.
    """

    __slots__ = (
        "_at", "_body_at", "_body_bytes", "_buffer", "_middle", "_properties_at", "_topic_at", "size_bytes", "sys_flag",
    )  # fmt: skip

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        try:
            # Every message of a pull answer comes by here: one unpacking for the most common shape, IPv4 at both ends.
            size, sys_flag, body_bytes = _SHAPE_V4(data, at)
            if size < FIXED_BYTES or at + size > len(data):
                raise _bad(f"size {size} at {at} of {len(data)} bytes")
            if sys_flag & _ANY_V6:
                middle = at + (68 if sys_flag & _BORN_V6 else 56)
                body_at = middle + (44 if sys_flag & _STORE_V6 else 32)
                body_bytes = _INT32(data, body_at - 4)[0]
            else:
                middle = at + 56
                body_at = at + 88
            topic_at = body_at + body_bytes + 1
            if body_bytes < 0 or topic_at > at + size:
                raise _bad(f"body of {body_bytes} bytes in a record of {size} bytes")
            properties_at = topic_at + data[topic_at - 1] + 2
            properties_bytes = _INT16(data, properties_at - 2)[0]
        except (StructError, IndexError) as error:
            raise _bad("it ends too early") from error
        if properties_bytes < 0 or properties_at + properties_bytes != at + size:
            raise _bad(f"size {size} disagrees with its parts")
        self.size_bytes = size
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
    def magic(self) -> int:
        """MESSAGE_MAGIC for a sound record; a client does not care."""
        return int(_INT32(self._buffer, self._at + 4)[0])

    @property
    def body_crc(self) -> int:
        """The checksum as stored."""
        return int(_INT32(self._buffer, self._at + 8)[0])

    @property
    def queue_id(self) -> int:
        """Queue inside the topic."""
        return int(_INT32(self._buffer, self._at + 12)[0])

    @property
    def flag(self) -> int:
        """The producer's own number."""
        return int(_INT32(self._buffer, self._at + 16)[0])

    @property
    def queue_offset(self) -> int:
        """Position in the queue."""
        return int(_INT64(self._buffer, self._at + QUEUE_OFFSET_AT)[0])

    @property
    def physical_offset(self) -> int:
        """Position in the commit log."""
        return int(_INT64(self._buffer, self._at + PHYSICAL_OFFSET_AT)[0])

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, ms since 1970."""
        return int(_INT64(self._buffer, self._at + BORN_TIMESTAMP_AT)[0])

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
        return int(_INT64(self._buffer, self._middle)[0])

    @property
    def store_host_bytes(self) -> bytes:
        """The storing broker's address, packed."""
        return bytes(self._buffer[self._middle + 8 : self._body_at - 16])

    @property
    def store_host(self) -> tuple[str, int]:
        """The storing broker's address."""
        return unpack_host(self.store_host_bytes)

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back."""
        return int(_INT32(self._buffer, self._body_at - 16)[0])

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message a committed one came from."""
        return int(_INT64(self._buffer, self._body_at - 12)[0])

    @property
    def body(self) -> bytes:
        """The body as stored (compressed if sys_flag says so)."""
        return bytes(self._buffer[self._body_at : self._body_at + self._body_bytes])

    @property
    def body_view(self) -> memoryview:
        """The same without a copy."""
        return memoryview(self._buffer)[self._body_at : self._body_at + self._body_bytes]

    @property
    def body_bytes(self) -> int:
        """Length of the stored body."""
        return int(self._body_bytes)

    @property
    def topic_bytes(self) -> bytes:
        """The topic in UTF-8."""
        return bytes(self._buffer[self._topic_at : self._properties_at - 2])

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
        """The properties; decoded anew at every call."""
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
    """Where the records of a pull answer start; the first that cannot be decoded ends them, as in `iter_records`.

    For readers who want few fields of each record, or none yet: it costs a third of a `RecordView` each.
    """
    starts: list[int] = []
    found, shape = starts.append, _SHAPE_V4
    at, end = 0, len(body)
    try:
        while at < end:
            size, sys_flag, body_bytes = shape(body, at)
            following = at + size
            if sys_flag & _ANY_V6:
                RecordView(body, at)
            else:
                properties_at = at + 91 + body_bytes
                properties_at += body[properties_at - 3]
                # What is asked for here together implies all that RecordView asks one by one.
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


def queue_offset_at(data: bytes, at: int) -> int:
    """The queue offset of the record that starts there; the caller knows that there is one."""
    return int(_INT64(data, at + QUEUE_OFFSET_AT)[0])


def stored_body(data: bytes, at: int, unless: int) -> bytes | None:
    """The body of the record that starts there; None if `sys_flag` has one of these bits, or hosts are not IPv4.

    The caller knows that there is a record.
    """
    _, sys_flag, body_bytes = _SHAPE_V4(data, at)
    if sys_flag & (unless | _ANY_V6):
        return None
    at += _BODY_V4_AT
    return data[at : at + body_bytes]


@attrs.frozen(slots=True)
class RecordCheck:
    """Result of check_record.

    Attributes:
        ok: a sound record, or the filler at a file's end.
        blank: the filler; go on with the next file.
        size_bytes: what to step on by; for a failure the size the record claims, or -1 if that is not known.
        reason: why it failed; "" if it did not.
    """

    ok: bool
    blank: bool
    size_bytes: int
    reason: str


def check_record(
    data: bytes | memoryview, at: int = 0, *, check_crc: bool = True, offset: int | None = None
) -> RecordCheck:
    """The test of recovery and dispatch (store.md section 14.2); never raises.

    Args:
        data: bytes of the log.
        at: where the record should start.
        check_crc: whether to compute the body's checksum.
        offset: physical offset of `data[at]`; if given, the record's own must equal it (a safe improvement on Java).
    """
    if len(data) - at < 8:
        return RecordCheck(False, False, -1, "less than 8 bytes left")
    size, magic = _SIZE_AND_MAGIC(data, at)
    if magic == BLANK_MAGIC:
        return RecordCheck(True, True, size, "")
    if magic != MESSAGE_MAGIC:
        return RecordCheck(False, False, -1, f"magic {magic & 0xFFFFFFFF:08X}")
    try:
        view = RecordView(data, at)
    except BodyError as error:
        return RecordCheck(False, False, size, str(error))
    if check_crc and view.body_bytes and crc32(view.body_view) != view.body_crc:
        return RecordCheck(False, False, -1, "checksum of the body differs")
    if offset is not None and view.physical_offset != offset:
        return RecordCheck(False, False, -1, f"stands at {offset}, says {view.physical_offset}")
    return RecordCheck(True, False, size, "")


# ---------------------------------------------------------------- batches

_BATCH_HEAD = Struct(">iiiii")  # total size, magic 0, crc 0, flag, body length
_BATCH_FIXED_BYTES = 22


@attrs.frozen(slots=True)
class BatchElement:
    """One message of a batch body."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch_element(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """One element of a batch body. Raises LocalProtocolError if the properties are too long."""
    if len(properties) > _MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(f"properties of {len(properties)} bytes")
    size = _BATCH_FIXED_BYTES + len(body) + len(properties)
    head = _BATCH_HEAD.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, len(properties).to_bytes(2, "big"), properties))


def iter_batch(body: bytes | memoryview) -> Iterator[BatchElement]:
    """The elements of a batch body; size, magic and checksum words are ignored, as brokers do.

    Raises BodyError for a malformed one.
    """
    at, end = 0, len(body)
    while at < end:
        try:
            _, _, _, flag, body_bytes = _BATCH_HEAD.unpack_from(body, at)
            body_at = at + 20
            properties_at = body_at + body_bytes + 2
            if body_bytes < 0 or properties_at > end:
                raise BodyError("batch", f"body of {body_bytes} bytes at {at} of {end}")
            properties_bytes = _INT16(body, properties_at - 2)[0]
        except StructError as error:
            raise BodyError("batch", f"it ends inside the element at {at}") from error
        at = properties_at + properties_bytes
        if properties_bytes < 0 or at > end:
            raise BodyError("batch", f"properties of {properties_bytes} bytes do not fit")
        yield BatchElement(flag, bytes(body[body_at : properties_at - 2]), bytes(body[properties_at:at]))
