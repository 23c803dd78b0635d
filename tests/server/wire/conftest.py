"""A hub over transports that the test controls: what was read, and each write by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.wire import Handlers, Limits, Link
from triomq_server.wire.connections import Connections
from triomq_server.wire.hub import Hub


class HandTransport:
    """A transport whose other end is the test.

    Attributes:
        writes: what each write carried.
        kinds: the types of the pieces of the latest write.
        writable_bytes: bytes that may be written without waiting; None is no limit.
    """

    def __init__(self) -> None:
        self.peer = "10.0.0.9:4000"
        self.peer_host = b"\x0a\x00\x00\x09\x00\x00\x0f\xa0"
        self.writes: list[bytes] = []
        self.writable_bytes: int | None = None
        self.closed = False
        self.broken = False
        self.reads = 0
        self.kinds: list[type] = []
        self._room_event = trio.Event()
        self._to_read, self._arrived = trio.open_memory_channel[bytes](1000)

    def deliver(self, data: bytes) -> None:
        self._to_read.send_nowait(data)

    def end(self) -> None:
        self._to_read.close()

    def set_writable(self, writable_bytes: int | None) -> None:
        self.writable_bytes = writable_bytes
        self._room_event.set()

    def commands(self) -> list[Command]:
        return FrameDecoder().feed(b"".join(self.writes))

    async def receive(self) -> bytes:
        self.reads += 1
        try:
            return await self._arrived.receive()
        except trio.EndOfChannel:
            return b""

    def send_now(self, pieces: list[bytes | bytearray | memoryview]) -> list[bytes]:
        self.kinds = [type(piece) for piece in pieces]
        data = b"".join(pieces)
        sent = self._write(data)
        return [data[sent:]] if sent < len(data) else []

    async def send_some(self, data: memoryview) -> int:
        while self.writable_bytes == 0:
            self._room_event = trio.Event()
            await self._room_event.wait()
        await trio.lowlevel.checkpoint()
        return self._write(bytes(data))

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()

    def _write(self, data: bytes) -> int:
        if self.broken:
            raise BrokenPipeError("the peer is gone")
        sent = len(data) if self.writable_bytes is None else min(self.writable_bytes, len(data))
        if sent:
            self.writes.append(data[:sent])
        if self.writable_bytes is not None:
            self.writable_bytes -= sent
        return sent


class Bench:
    """One hub and its links."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.handlers = Handlers()
        self.closed: list[Link] = []
        self.batch_ends: list[int] = []
        self.hub: Hub | None = None

    @staticmethod
    def new_transport() -> HandTransport:
        return HandTransport()

    async def connect(self, limits: Limits | None = None) -> tuple[Link, HandTransport]:
        transport = HandTransport()
        if self.hub is None:
            self.hub = Hub(
                self.handlers,
                self.nursery,
                limits or Limits(),
                on_closed=self.closed.append,
                on_batch_end=lambda: self.batch_ends.append(len(transport.writes)),
                now=trio.current_time,  # a busy machine ends no turn
            )
            self.nursery.start_soon(self.hub.writer.flush_marked)
            self.nursery.start_soon(self.hub.close_idle)
        link = await self.nursery.start(Connections(self.hub).serve, transport)
        return link, transport


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        yield Bench(nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
def ask() -> Callable[..., bytes]:
    """Encode a request."""

    def encode(code: int, opaque: int = 0, **rest: object) -> bytes:
        return Command.request(code, opaque=opaque, **rest).encode()

    return encode
