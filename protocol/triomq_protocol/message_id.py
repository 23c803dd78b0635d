"""Message ids: the broker's offset id and the client's unique id (messages.md section 8)."""

import attrs


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Upper-case hex of packed host (8 or 20 bytes) and commit-log offset."""
    raise LookupError


@attrs.frozen(slots=True)
class OffsetMessageId:
    """A decoded offset id."""

    host: str
    port: int
    physical_offset: int


def decode_offset_message_id(text: str) -> OffsetMessageId:
    """Read an offset id of 32 (IPv4) or 56 (IPv6) hex digits in either case. Raises BodyError."""
    raise LookupError


class UniqueIdGenerator:
    """Makes UNIQ_KEY values; everything that varies is handed in, nothing is looked up.

    Args:
        ip: packed local address, 4 or 16 bytes.
        pid: process id; its low 16 bits are used.
        instance: any int32 that is constant for the process (Java: class loader hash).
        month_start_ms: first day 00:00 of the current month in local time, ms since 1970.
        next_month_ms: when that month ends; `next_id` after it needs `start_month`.
    """

    def __init__(self, ip: bytes, pid: int, instance: int, *, month_start_ms: int = 0, next_month_ms: int = 0) -> None:
        raise LookupError

    def needs_month(self, now_ms: int) -> bool:
        """Whether the month has ended and `start_month` must be called."""
        raise LookupError

    def start_month(self, month_start_ms: int, next_month_ms: int) -> None:
        """Begin to count milliseconds from a new month."""
        raise LookupError

    def next_id(self, now_ms: int) -> str:
        """A new id: 32 characters (IPv4) or 56 (IPv6)."""
        raise LookupError


@attrs.frozen(slots=True)
class UniqueId:
    """A decoded unique id."""

    ip: bytes
    pid: int
    instance: int
    millis_of_month: int
    counter: int


def decode_unique_id(text: str) -> UniqueId:
    """Take a unique id apart. Raises BodyError."""
    raise LookupError
