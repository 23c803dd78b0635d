"""Connection: one end of a link, either end; pairs answers with requests and knows nothing of sockets."""

from triomq_protocol.command import Command
from triomq_protocol.events import Event
from triomq_protocol.frame import MAX_FRAME_BYTES


class Connection:
    """Sans-IO state of one link.

    Requests leave through `send_request`; bytes come in through `receive_data`; after `receive_eof` or `fail`
    nothing more can be sent, and what was pending is handed back to be failed.

    Args:
        max_frame_bytes: limit of one incoming frame.
        max_pending: limit of requests waiting for an answer.
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES, max_pending: int = 65535) -> None:
        self._max_pending = max_pending

    @property
    def pending(self) -> int:
        """How many of our requests wait for an answer."""
        raise LookupError

    @property
    def closed(self) -> bool:
        """Whether the link has ended."""
        raise LookupError

    def register(self, waiter: object) -> int:
        """Reserve an opaque for a request that a fast encoder writes. Raises LocalProtocolError if closed or full."""
        raise LookupError

    def send_request(self, command: Command, waiter: object = None) -> bytes:
        """Give the command an opaque, remember `waiter` (unless one-way), return the frame to write."""
        raise LookupError

    def send_response(self, command: Command) -> bytes:
        """The frame of an answer. Raises LocalProtocolError if the link has ended."""
        raise LookupError

    def receive_data(self, data: bytes) -> list[Event]:
        """What the bytes mean, in order. Raises RemoteProtocolError; then call `fail`."""
        raise LookupError

    def forget(self, opaque: int) -> object:
        """Give up waiting for an answer; a late one becomes StrayResponse. Returns the waiter, or None if unknown."""
        raise LookupError

    def receive_eof(self) -> list[object]:
        """The peer closed. Returns the waiters that will hear nothing more; inside a frame raises nothing."""
        raise LookupError

    def fail(self) -> list[object]:
        """The link broke. Returns the waiters that will hear nothing more."""
        raise LookupError
