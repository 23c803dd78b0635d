"""The message record: the same bytes in commit log, replication stream and pull answer (messages.md section 14)."""

from collections.abc import Iterator
from typing import Protocol

import attrs

MESSAGE_MAGIC = -626843481
"""0xDAA320A7 as signed int32."""
BLANK_MAGIC = -875286124
"""0xCBD43194 as signed int32: filler at the end of a log file; the first word is then the rest of the file."""
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = 56
"""For an IPv4 born host; see `store_timestamp_at`."""
FIXED_BYTES = 91
"""Size of a record with IPv4 hosts, without body, topic and properties."""


def store_timestamp_at(sys_flag: int) -> int:
    """Where the store timestamp stands: 56, or 68 behind an IPv6 born host."""
    raise LookupError


def record_bytes(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int = 0) -> int:
    """Size of a record."""
    raise LookupError


def crc32(data: bytes | memoryview) -> int:
    """The body checksum: CRC-32 (IEEE) with the top bit cleared; 0 for no data."""
    raise LookupError


def pack_host(ip: str, port: int) -> bytes:
    """8 bytes for IPv4, 20 for IPv6. Raises LocalProtocolError."""
    raise LookupError


def unpack_host(host: bytes | memoryview) -> tuple[str, int]:
    """Address text and port of 8 or 20 bytes. Raises BodyError."""
    raise LookupError


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

    The v6 bits of `sys_flag` are set from the hosts' lengths. Raises LocalProtocolError if a part is too long.
    """
    raise LookupError


class RecordView:
    """A record inside a buffer; fields are decoded when asked for.

    Args:
        data: bytes or memoryview that hold the record.
        at: where it starts.

    Raises BodyError if the record does not lie wholly inside the buffer or its lengths disagree.
    """

    __slots__ = ()

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        raise LookupError

    size_bytes: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    born_host_bytes: bytes
    store_timestamp: int
    store_host: tuple[str, int]
    store_host_bytes: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    body_view: memoryview
    topic: str
    properties_bytes: bytes
    properties_text: str
    properties: dict[str, str]
    tags: str | None
    keys: str | None
    unique_key: str | None
    offset_message_id: str
    data: bytes


def iter_records(body: bytes | memoryview) -> Iterator[RecordView]:
    """The records of a pull answer; the first that cannot be decoded ends them (Java's client does the same)."""
    raise LookupError


class Check(Protocol):
    """Result of check_record: `ok`, `blank` (end of file) or a failure; `size_bytes` to step on by, -1 if unknown."""

    ok: bool
    blank: bool
    size_bytes: int
    reason: str


def check_record(data: bytes | memoryview, at: int = 0, *, check_crc: bool = True, offset: int | None = None) -> Check:
    """The test of recovery and dispatch (store.md section 14.2); never raises.

    Args:
        offset: physical offset of `data[at]`; if given, the record's own must equal it.
    """
    raise LookupError


@attrs.frozen(slots=True)
class BatchElement:
    """One message of a batch body."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch_element(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """One element of a batch body (messages.md section 7)."""
    raise LookupError


def iter_batch(body: bytes | memoryview) -> Iterator[BatchElement]:
    """The elements of a batch body. Raises BodyError for a malformed one."""
    raise LookupError
