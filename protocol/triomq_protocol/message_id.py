"""Message ids: the broker's offset id and the client's unique id (docs/protocol/messages.md §8)."""

from collections.abc import Iterable

import msgspec

from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.hosts import unpack_host

_IPV4_ID_BYTES = 16
_IPV6_ID_BYTES = 28
_MAX_CLAMPED_MS = 1000000  # Java takes a clock that went back by less than this for the month's first millisecond


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Upper-case hex of packed host (8 or 20 bytes) and commit-log offset."""
    return f"{store_host.hex()}{physical_offset & 0xFFFFFFFFFFFFFFFF:016x}".upper()


def offset_message_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    """The ids of a batch as its answer carries them, separated by commas."""
    host = store_host.hex().upper()
    return ",".join([f"{host}{offset:016X}" for offset in physical_offsets])


class OffsetMessageId(msgspec.Struct, frozen=True):
    """A decoded offset id; connect to this address, not to the route's, to view the message."""

    host: str
    port: int
    physical_offset: int


def decode_offset_message_id(text: str) -> OffsetMessageId:
    """Read an offset id of 32 (IPv4) or 56 (IPv6) hex digits in either case. Raises BodyError."""
    data = _from_hex("offset message id", text)
    host, port = unpack_host(data[:-8])
    return OffsetMessageId(host, port, int.from_bytes(data[-8:], "big", signed=True))


def _from_hex(what: str, text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise BodyError(what, f"{text[:60]!r} is not hexadecimal") from error
    if len(data) not in (_IPV4_ID_BYTES, _IPV6_ID_BYTES) or 2 * len(data) != len(text):
        raise BodyError(what, f"{len(text)} characters")
    return data


class UniqueIdGenerator:
    """Makes UNIQ_KEY values from an address, a process and the times it is given; it reads no clock.

    Args:
        ip: packed local address, 4 or 16 bytes.
        pid: process id; its low 16 bits are used.
        instance: any int32 that is constant for the process (Java: class loader hash).
        month_start_ms: first day 00:00 of the current month in local time, ms since 1970.
        next_month_ms: when that month ends; then `start_month` is due.
        counter: the first id's counter; Java starts at 0.
    """

    __slots__ = ("_counter", "_month_start_ms", "_next_month_ms", "_prefix")

    def __init__(
        self,
        ip: bytes,
        pid: int,
        instance: int,
        *,
        month_start_ms: int = 0,
        next_month_ms: int = 0,
        counter: int = 0,
    ) -> None:
        if len(ip) not in (4, 16):
            raise LocalProtocolError(f"address of {len(ip)} bytes")
        self._prefix = f"{ip.hex()}{pid & 0xFFFF:04x}{instance & 0xFFFFFFFF:08x}".upper()
        self._counter = counter - 1
        self._month_start_ms = month_start_ms
        self._next_month_ms = next_month_ms

    def needs_month(self, now_ms: int) -> bool:
        """Whether the month has ended and `start_month` must be called."""
        return now_ms >= self._next_month_ms

    def start_month(self, month_start_ms: int, next_month_ms: int) -> None:
        """Begin to count milliseconds from a new month."""
        self._month_start_ms = month_start_ms
        self._next_month_ms = next_month_ms

    def next_id(self, now_ms: int) -> str:
        """A new id: 32 characters (IPv4) or 56 (IPv6)."""
        self._counter = counter = self._counter + 1 & 0xFFFF
        since = now_ms - self._month_start_ms
        if -_MAX_CLAMPED_MS < since < 0:
            since = 0
        return f"{self._prefix}{since & 0xFFFFFFFF:08X}{counter:04X}"
