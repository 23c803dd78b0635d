"""The HA dialogue: 8-byte offset reports, 12-byte transfer heads (ha.md section 2)."""

import attrs

REPORT_BYTES = 8
TRANSFER_HEAD_BYTES = 12
MAX_TRANSFER_BYTES = 4194304 - TRANSFER_HEAD_BYTES
"""A Java slave handles head and body only up to 4 MiB together."""


def encode_report(max_offset: int) -> bytes:
    """The slave's word: the end of its log, which is also its acknowledgement and heartbeat."""
    raise LookupError


def encode_transfer_head(offset: int, size_bytes: int) -> bytes:
    """The head before `size_bytes` of log at `offset`; size 0 is the master's heartbeat."""
    raise LookupError


class ReportDecoder:
    """Reads a slave's reports from any split of the stream."""

    def feed(self, data: bytes) -> list[int]:
        """The offsets completed by `data`. Raises RemoteProtocolError for a negative one."""
        raise LookupError


@attrs.frozen(slots=True)
class Transfer:
    """One piece of the master's log; `data` is b"" for a heartbeat."""

    offset: int
    data: bytes


class TransferDecoder:
    """Reads a master's transfers from any split of the stream, in O(n).

    Args:
        max_transfer_bytes: a longer body is an error before it is collected.
    """

    def __init__(self, max_transfer_bytes: int = MAX_TRANSFER_BYTES) -> None:
        raise LookupError

    @property
    def next_offset(self) -> int | None:
        """Offset of a transfer whose head has arrived but whose body has not; checked before the body is complete."""
        raise LookupError

    def feed(self, data: bytes) -> list[Transfer]:
        """The transfers completed by `data`. Raises RemoteProtocolError."""
        raise LookupError
