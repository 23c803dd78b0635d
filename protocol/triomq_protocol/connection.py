"""Connection: one end of a link, either end; pairs answers with requests and knows nothing of sockets.

    bytes in --receive_data--> events        command --send_request / send_response--> bytes out

States: open, then closed by `receive_eof` or `fail`; a closed connection sends nothing, and has handed back whoever
was waiting. Requests of the two ends are numbered independently: bit 0 of `flag` tells an answer from a request
(remoting.md section 5).
"""

from triomq_protocol.command import Command
from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError
from triomq_protocol.events import Event, RequestReceived, ResponseReceived, StrayResponse
from triomq_protocol.frame import MAX_FRAME_BYTES, FrameDecoder

_MAX_OPAQUE = 0x7FFFFFFF


class Connection:
    """Sans-IO state of one link.

    Args:
        max_frame_bytes: limit of one incoming frame.
        max_pending: limit of requests waiting for an answer.
    """

    __slots__ = ("_closed", "_decoder", "_last_opaque", "_max_pending", "_waiters")

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES, max_pending: int = 65535) -> None:
        self._decoder = FrameDecoder(max_frame_bytes)
        self._max_pending = max_pending
        self._waiters: dict[int, object] = {}
        self._last_opaque = 0
        self._closed = False

    @property
    def pending(self) -> int:
        """How many of our requests wait for an answer."""
        return len(self._waiters)

    @property
    def fault(self) -> RemoteProtocolError | None:
        """Why the peer's bytes cannot be read on, once they cannot: handle the events in front of it, then `fail`."""
        return self._decoder.fault

    @property
    def closed(self) -> bool:
        """Whether the link has ended."""
        return self._closed

    def register(self, waiter: object) -> int:
        """Reserve an opaque for a request that a fast encoder writes. Raises LocalProtocolError if closed or full.

        Numbers start at 1: a peer's answer without opaque reads as 0 and must not find a waiter.
        """
        waiters = self._waiters
        if self._closed:
            raise LocalProtocolError("the link has ended")
        if len(waiters) >= self._max_pending:
            raise LocalProtocolError(f"{len(waiters)} requests wait for an answer on this link already")
        opaque = self._last_opaque + 1
        while opaque in waiters or opaque > _MAX_OPAQUE:
            opaque = opaque + 1 if opaque < _MAX_OPAQUE else 1
        self._last_opaque = opaque
        waiters[opaque] = waiter
        return opaque

    def send_request(self, command: Command, waiter: object = None) -> bytes:
        """Give the command an opaque, remember `waiter` (unless one-way), return the frame to write.

        Raises LocalProtocolError if the link has ended, is full, or the command is an answer or does not fit; nobody
        waits then.
        """
        if command.is_response:
            raise LocalProtocolError("an answer cannot be sent as a request")
        opaque = self.register(waiter)
        command.opaque = opaque
        try:
            data = command.encode()
        except BaseException:
            del self._waiters[opaque]
            raise
        if command.is_oneway:
            del self._waiters[opaque]
        return data

    def send_response(self, command: Command) -> bytes:
        """The frame of an answer. Raises LocalProtocolError if the link has ended or the command is no answer."""
        if self._closed:
            raise LocalProtocolError("the link has ended")
        if not command.is_response:
            raise LocalProtocolError("a request cannot be sent as an answer")
        return command.encode()

    def receive_data(self, data: bytes) -> list[Event]:
        """What the bytes mean, in order; a closed connection hears nothing. See `fault`.

        Raises RemoteProtocolError if there is nothing good in front of the first bytes that are no frame: call `fail`.
        """
        if self._closed:
            return []
        events: list[Event] = []
        waiters = self._waiters
        for command in self._decoder.feed(data):
            if not command.flag & 1:
                events.append(RequestReceived(command))
            elif command.opaque in waiters:
                events.append(ResponseReceived(command, waiters.pop(command.opaque)))
            else:
                events.append(StrayResponse(command))
        return events

    def forget(self, opaque: int) -> object:
        """Give up waiting for an answer; a late one becomes StrayResponse. Returns the waiter, or None if unknown."""
        return self._waiters.pop(opaque, None)

    def receive_eof(self) -> list[object]:
        """The peer closed; an incomplete frame is dropped. Returns the waiters that will hear nothing more."""
        return self.fail()

    def fail(self) -> list[object]:
        """The link broke. Returns the waiters that will hear nothing more, oldest first; again: an empty list."""
        self._closed = True
        waiters = list(self._waiters.values())
        self._waiters.clear()
        return waiters
