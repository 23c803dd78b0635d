"""What replication needs of its surroundings: a log to read or extend, and byte streams to the other end.

Sockets get bytes straight from views of the mapped log files (one `sendmsg` for many frames) and read into one buffer;
any other `trio.abc.Stream`, as used by tests, works too, only slower.
"""

import socket
from collections.abc import Callable
from typing import Protocol

import trio

from triomq_server.replication.files import LogFiles
from triomq_server.replication.standing import OwnLog
from triomq_server.wire import Dial, Listen, dial_tcp, listen_tcp

__all__ = [
    "Dial",
    "FollowingLog",
    "Listen",
    "SourceLog",
    "dial_tcp",
    "let_writes_fill",
    "listen_tcp",
    "peer_name",
    "reason",
    "send_views",
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


async def send_views(stream: trio.abc.Stream, views: list[bytes | memoryview]) -> None:
    """Send all views in order; on a socket without joining them first. A cancel may leave half a frame on the wire."""
    if not isinstance(stream, trio.SocketStream):
        await stream.send_all(b"".join(views))
        return
    sock = stream.socket
    try:
        sent = await sock.sendmsg(views)
        left = sum(map(len, views)) - sent
        while left:
            views = views_after(views, sent)
            sent = await sock.sendmsg(views)
            left -= sent
    except OSError as error:
        raise trio.BrokenResourceError from error


def views_after(views: list[bytes | memoryview], sent_bytes: int) -> list[bytes | memoryview]:
    """What is left of `views` when their first `sent_bytes` are gone; nothing is copied."""
    for index, view in enumerate(views):
        if sent_bytes < len(view):
            return [memoryview(view)[sent_bytes:], *views[index + 1 :]]
        sent_bytes -= len(view)
    return []


def let_writes_fill(stream: trio.abc.Stream) -> None:
    """Undo trio's low-water mark: it keeps interactive streams short of unsent bytes, and starves a bulk one."""
    if isinstance(stream, trio.SocketStream) and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
