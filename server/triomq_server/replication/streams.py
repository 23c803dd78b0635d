"""What replication needs of its surroundings: a log to read or extend, and byte streams to the other end.

How bytes go in and out of a stream is the business of `inlets` and `outlets`.
"""

from collections.abc import Callable
from typing import Protocol

import trio

from triomq_server.replication.outlets import LogFiles
from triomq_server.replication.standing import OwnLog
from triomq_server.wire import Dial, Listen, dial_tcp, listen_tcp

__all__ = [
    "Dial",
    "FollowingLog",
    "Listen",
    "SourceLog",
    "dial_tcp",
    "listen_tcp",
    "peer_name",
    "reason",
]


class SourceLog(LogFiles, Protocol):
    """The part of a message store that a master reads."""

    @property
    def log_min_offset(self) -> int:
        """First byte there is."""

    @property
    def log_max_offset(self) -> int:
        """First byte not there yet."""

    append_listeners: list[Callable[[int], None]]

    def log_slice(self, offset: int, max_bytes: int) -> memoryview | None:
        """Log bytes from `offset` on, never across a file's end; None where there are none."""


class FollowingLog(OwnLog, Protocol):
    """The part of a message store that a slave extends; what stands in it is read to compare it with the master's."""

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        """Put the master's bytes at the log's end, which is `offset`."""

    def raw_place(self, offset: int, size_bytes: int) -> tuple[int, int] | None:
        """Descriptor and position of the file where these bytes belong, None where only `append_raw` can put them."""

    def raw_written(self, size_bytes: int) -> None:
        """So many bytes have been written to the `raw_place`."""

    def announce_end(self) -> None:
        """Tell further slaves how far the log reaches now."""

    @property
    def dispatched_offset(self) -> int:
        """Up to here the log can be read as messages."""

    def dispatch(self, most_bytes: int) -> bool:
        """Let about so many bytes of what has come be read; whether there may be more to do."""


def peer_name(stream: trio.abc.Stream) -> str:
    """``ip:port`` of the other end for log lines, or what kind of stream it is."""
    if not isinstance(stream, trio.SocketStream):
        return type(stream).__name__
    try:
        name = stream.socket.getpeername()
    except OSError:
        return "a closed connection"
    return f"{name[0]}:{name[1]}"


def reason(error: BaseException) -> str:
    """Why a link ended or did not come about, in a few words: what lies below the wrappings."""
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return str(cause) or type(cause).__name__
