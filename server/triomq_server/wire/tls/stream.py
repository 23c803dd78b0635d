"""TLS over any stream, for links that use neither poller nor splice: replication, and dialled connections.

trio's stream gives OpenSSL all received bytes at once, however many records they are, and continues until one has data.
So this stream passes on few whole records at a time, with a turn of the loop in between, and counts those without data
(`records`).
"""

from __future__ import annotations

import ssl
from typing import Final

import trio

from triomq_server.wire.tls.records import SilentRecords, whole_records

_RECEIVED_BYTES: Final = 65_536
_RECORDS_AT_ONCE: Final = 16
"""Records that OpenSSL gets in one turn of the loop, at most: some 2 ms of work."""


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
        self._silent = SilentRecords()
        self.pieces_read = 0

    def begin(self) -> None:
        """The handshake has ended: its records count for nothing."""
        self._given, self._silent = 0, SilentRecords()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002 (records are not cut)
        """The next records, as soon as there is one; b"" at the end. BrokenResourceError if too many have had no data."""
        silent, with_data = max(0, self._given - self.pieces_read), self.pieces_read
        self._given = self.pieces_read = 0
        self._silent.add(silent, with_data)
        await trio.lowlevel.checkpoint()
        while True:
            size, self._given = whole_records(self._received, 0, _RECORDS_AT_ONCE)
            if size or self._ended:
                data = self._received[:size] if size else self._received
                self._received = self._received[len(data) :]
                return data
            more = await self._stream.receive_some(_RECEIVED_BYTES)
            self._received += more
            self._ended = not more

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
