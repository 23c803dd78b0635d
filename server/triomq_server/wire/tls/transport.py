"""TLS on an accepted socket, for the same poller and the same limits as plain sockets.

OpenSSL works on bytes in memory here: one system call receives many records, and OpenSSL never waits. Received bytes are
decrypted at once, so that the socket alone shows whether there are more. Only one piece of outgoing data is encrypted
ahead of the socket; the rest stays with its link, where it counts towards the link's limit. A piece counts as sent when
all its encrypted bytes have been sent.

OpenSSL gets only whole records, so that they can be counted (`records`).
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

import trio

from triomq_server.wire.sockets import Buffer, NonBlockingSocket
from triomq_server.wire.tls.records import SilentRecords, whole_records
from triomq_server.wire.transport import SocketTransport

_RECORD_BYTES: Final = 16_384
"""The largest payload of a TLS record."""
_PIECE_BYTES: Final = 65_536
"""Bytes that are encrypted before they are offered to the socket."""
_SEND_NOW_BYTES: Final = 1_048_576
"""What one `send_now` encrypts at most: about a millisecond's work."""
_HANDSHAKE_BYTES: Final = 131_072
"""Bytes that a client may send before the handshake ends; certificate chains are the largest part."""
_RECEIVED_BYTES: Final = 65_536
"""What one call receives at most: it may be records of one byte each, some 20 ms of work."""
_RECORDS_AT_ONCE: Final = 128
"""Records that OpenSSL gets before those without data are counted."""
_UNASKED_BYTES: Final = 65_536
"""Limit for encrypted bytes that only the peer has caused (answers to key updates), and that it does not read."""


class TlsTransport(SocketTransport):
    """The server's end of TLS on a connected TCP socket; `handshake` comes first.

    Args:
        stream: trio's view of the socket; closed by ``aclose``.
        context: with the server's certificate.
    """

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        super().__init__(stream)
        self._receive_most = _RECEIVED_BYTES
        self._came = ssl.MemoryBIO()
        self._goes = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_side=True)
        self._encrypted = memoryview(b"")  # encrypted bytes that the socket has not taken yet
        self._held_bytes = 0  # how much of what is to be sent that is, before its encryption
        self._received = b""  # encrypted; OpenSSL has what is before `_taken`
        self._taken = 0
        self._fed_records = 0  # since data was read last
        self._silent_records = SilentRecords()

    async def handshake(self, turns: trio.Lock) -> None:
        """Agree on keys with the client.

        Args:
            turns: for all connections of a server: in one turn of the loop there is one step of one handshake.

        Raises:
            ssl.SSLError: the client speaks no TLS, or refuses, or is refused.
            trio.BrokenResourceError: the connection is broken.
        """
        left_bytes = _HANDSHAKE_BYTES
        while True:
            try:
                async with turns:
                    await trio.lowlevel.checkpoint()
                    if self._step():
                        break
            finally:
                await self._send_encrypted()  # an alert, too
            data = None
            while data is None:
                await self.wait_readable()
                data = NonBlockingSocket.receive_now(self)
            left_bytes -= len(data)
            if not data:
                raise trio.BrokenResourceError(
                    "the client ended the connection; it may not trust this server's certificate"
                )
            if left_bytes < 0:
                raise trio.BrokenResourceError(f"a handshake of more than {_HANDSHAKE_BYTES} bytes")
            self._put(data)

    def _step(self) -> bool:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._feed():
                    return False
            else:
                self._fed_records = 0
                return True

    async def _send_encrypted(self) -> None:
        while not self._push():
            await self.wait_writable()

    def early(self) -> bytes:
        """See SocketTransport."""
        return self._decrypt() or b""

    # Receiving

    async def receive(self) -> bytes:
        """See NonBlockingSocket."""
        early = self._decrypt()
        if early is None:
            return await super().receive()
        await trio.lowlevel.checkpoint()
        return early

    def receive_now(self) -> bytes | None:
        """See NonBlockingSocket."""
        data = NonBlockingSocket.receive_now(self)
        if not data:
            return data
        self._put(data)
        return self._decrypt()

    def _put(self, data: bytes) -> None:
        left = self._received[self._taken :]
        self._received, self._taken = left + data if left else data, 0

    def _feed(self) -> bool:
        """Give OpenSSL the next whole records, or what cannot be one; false if there is neither."""
        data, start = self._received, self._taken
        end, count = whole_records(data, start, _RECORDS_AT_ONCE)
        if end == start:
            return False
        self._came.write(memoryview(data)[start:end])
        self._taken = end
        self._fed_records += count
        return True

    def _decrypt(self) -> bytes | None:
        """All that has come, ``b""`` when the peer has ended its side, None when no record is complete."""
        read = self._tls.read
        pieces: list[bytes] = []
        ended = False
        again = True
        while not ended and (self._feed() or again):
            again = False  # the first time something may have been left by the handshake
            before = len(pieces)
            try:
                while piece := read(_RECORD_BYTES):
                    pieces.append(piece)
                ended = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                with contextlib.suppress(trio.BrokenResourceError):
                    self._push()  # the alert
                raise trio.BrokenResourceError from error
            with_data = len(pieces) - before
            fed, self._fed_records = self._fed_records, 0
            self._silent_records.add(fed - with_data, with_data)
        if self._goes.pending and not self._push() and len(self._encrypted) > _UNASKED_BYTES + 2 * _PIECE_BYTES:
            raise trio.BrokenResourceError("the peer causes TLS messages and does not take them")
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return b"" if ended else None

    # Sending

    def send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """See NonBlockingSocket. The first bytes of the rest may be encrypted already; they must come first again."""
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if not self._push():
            return [data]
        sent, self._held_bytes = self._held_bytes, 0
        most = min(len(data), sent + _SEND_NOW_BYTES)
        while sent < most:
            self._encrypt(data[sent : sent + _PIECE_BYTES])
            if not self._push():
                return [data[sent:]]
            sent, self._held_bytes = sent + self._held_bytes, 0
        return [data[sent:]] if sent < len(data) else []

    async def send_some(self, data: memoryview) -> int:
        """See NonBlockingSocket."""
        if not self._held_bytes:
            self._encrypt(data[:_PIECE_BYTES])
        while True:
            await self.wait_writable()
            if self._push():
                sent, self._held_bytes = self._held_bytes, 0
                return sent

    def _encrypt(self, piece: memoryview) -> None:
        try:
            self._held_bytes = self._tls.write(piece)
        except ssl.SSLError as error:
            raise trio.BrokenResourceError from error

    def _push(self) -> bool:
        """Send encrypted bytes; returns whether all have been sent."""
        if self._goes.pending:
            fresh = self._goes.read()
            self._encrypted = memoryview(b"".join((self._encrypted, fresh)) if self._encrypted else fresh)
        if not self._encrypted:
            return True
        try:
            self._encrypted = self._encrypted[self._socket.send(self._encrypted) :]
        except BlockingIOError:
            return False
        except OSError as error:
            raise trio.BrokenResourceError from error
        return not self._encrypted

    async def aclose(self) -> None:
        """See Transport. The end of TLS is sent if the socket takes it."""
        with contextlib.suppress(ssl.SSLError, ValueError, trio.BrokenResourceError):
            try:
                self._tls.unwrap()
            finally:
                self._push()
        await super().aclose()
