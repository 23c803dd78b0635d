"""TLS over any stream, for links that use neither poller nor splice: replication, and dialled connections.

trio's stream gives OpenSSL all received bytes at once, however many records they are, and continues until one has data.
A record without data (an update of keys) costs a hundred times as much as its bytes. So this stream passes on few whole
records at a time, with a turn of the loop in between, and counts those without data, as `TlsTransport` does.
"""

from __future__ import annotations

import ssl
from typing import Final

import trio

_RECEIVED_BYTES: Final = 65_536
_RECORDS_AT_ONCE: Final = 16
"""Records that OpenSSL gets in one turn of the loop, at most: some 2 ms of work."""
_HEADER_BYTES: Final = 5
_ENCRYPTED_BYTES: Final = 18_432
"""The largest encrypted record of TLS 1.2; smaller with TLS 1.3."""
_SILENT_RECORDS: Final = 64
"""Records without data that a peer may send, and one more for each 1,024 with data. Keys are updated after gigabytes."""
_RECORDS_PER_SILENT: Final = 1024


class _WholeRecords(trio.abc.Stream):
    """A stream that gives whole TLS records, and knows how many.

    Args:
        stream: with the encrypted bytes.

    Attributes:
        pieces_read: of data, since the last records were given.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received = b""
        self._ended = False
        self._given = 0
        self._silent = 0.0
        self.pieces_read = 0

    def begin(self) -> None:
        """The handshake has ended: its records count for nothing."""
        self._given, self._silent = 0, 0.0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002 (records are not cut)
        """The next records, as soon as there is one; b"" at the end. BrokenResourceError if too many have had no data."""
        silent = max(0, self._given - self.pieces_read)
        self._silent = max(0.0, self._silent + silent - self.pieces_read / _RECORDS_PER_SILENT)
        self._given = self.pieces_read = 0
        if self._silent > _SILENT_RECORDS:
            raise trio.BrokenResourceError("the peer sends TLS records without data")
        await trio.lowlevel.checkpoint()
        while True:
            size = self._whole_bytes()
            if size or self._ended:
                data = self._received[:size] if size else self._received
                self._received = self._received[len(data) :]
                return data
            more = await self._stream.receive_some(_RECEIVED_BYTES)
            self._received += more
            self._ended = not more

    def _whole_bytes(self) -> int:
        """The number of bytes in whole records; all bytes if they are not records: OpenSSL then reports the fault."""
        data, at = self._received, 0
        while self._given < _RECORDS_AT_ONCE and len(data) - at >= _HEADER_BYTES:
            length = data[at + 3] << 8 | data[at + 4]
            if length > _ENCRYPTED_BYTES:
                return len(data)
            if at + _HEADER_BYTES + length > len(data):
                break
            at += _HEADER_BYTES + length
            self._given += 1
        return at

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See trio.abc.AsyncResource."""
        await self._stream.aclose()


class TlsStream(trio.abc.Stream):
    """One end of TLS; `do_handshake` comes first.

    Args:
        stream: the other end's bytes; closed with this one.
        context: whom to trust, and what to show.
        server_side: whether this is the server's end.
        server_hostname: whose certificate a server has to show.

    Attributes:
        transport_stream: as given.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self.transport_stream = stream
        self._released = False
        self._records = _WholeRecords(stream)
        self._secured = trio.SSLStream(
            self._records, context, server_side=server_side, server_hostname=server_hostname, https_compatible=True
        )

    async def do_handshake(self) -> None:
        """Agree on keys. BrokenResourceError if that fails; its cause states why."""
        await self._secured.do_handshake()
        self._records.begin()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio.abc.ReceiveStream. Also BrokenResourceError if the peer sends too many records without data."""
        self._check_open()
        data = await self._secured.receive_some(max_bytes)
        self._records.pieces_read += 1
        return bytes(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream."""
        self._check_open()
        await self._secured.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        self._check_open()
        await self._secured.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See trio.abc.AsyncResource."""
        try:
            await self._secured.aclose()
        finally:
            self.release()

    def release(self) -> None:
        """Free the memory of a stream that is used no more, some 30 KB; the other end's bytes stay open.

        trio's stream has a bound method of itself. Such a cycle is freed by a full collection of garbage at best, and
        never if it was there in great number (see `process.collections`), as with a thousand handshakes.
        """
        self._released = True
        vars(self._secured).pop("_handshook", None)

    def _check_open(self) -> None:
        if self._released:
            raise trio.ClosedResourceError("this stream has been closed")
