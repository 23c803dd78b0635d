"""A log in memory and an in-memory network, so that both ends of replication run on the virtual clock."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

FILE_BYTES = 4096


class MemoryLog:
    """The few things that replication needs of a store: a byte string in files of fixed size."""

    def __init__(self, data: bytes = b"", *, begin: int = 0, file_bytes: int = FILE_BYTES) -> None:
        self.data = bytearray(data)
        self.begin = begin
        self.file_bytes = file_bytes
        self.append_listeners: list[Callable[[int], None]] = []
        self.arrivals = 0
        self.full = False

    @property
    def log_min_offset(self) -> int:
        return self.begin

    @property
    def log_max_offset(self) -> int:
        return self.begin + len(self.data)

    def log_slice(self, offset: int, max_bytes: int) -> memoryview | None:
        if not self.begin <= offset < self.log_max_offset:
            return None
        size = min(max_bytes, self.file_bytes - offset % self.file_bytes)
        return memoryview(bytes(self.data[offset - self.begin : offset - self.begin + size]))

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        if not self.data:
            self.begin = offset
        assert offset == self.log_max_offset
        assert offset % self.file_bytes + len(data) <= self.file_bytes
        self.append(bytes(data))

    def append(self, data: bytes) -> None:
        self.data += data
        for listener in self.append_listeners:
            listener(self.log_max_offset)

    def notify_arrivals(self) -> None:
        self.arrivals += 1


class Line(trio.abc.Listener[trio.abc.Stream]):
    """A listener, and the dialer that reaches it; `cut` breaks every connection, `down` refuses new ones."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](100)
        self.down = False
        self.dialled: list[float] = []
        self._open: list[trio.StapledStream] = []
        self._accepted: list[trio.StapledStream] = []

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()

    async def listen(self, host: str, port: int) -> list["Line"]:
        return [self]

    async def dial(self, address: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dialled.append(trio.current_time())
        if self.down:
            raise ConnectionRefusedError(111, f"nobody at {address}")
        ours, theirs = trio.testing.memory_stream_pair()
        self._open += (ours, theirs)
        self._accepted.append(theirs)
        self._send.send_nowait(theirs)
        return ours

    def accepted(self, index: int) -> trio.StapledStream:
        """The listening side's end of one connection, in the order of dialling."""
        return self._accepted[index]

    async def cut(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._open:
            stream = self._open.pop()
            stream.send_stream.send_all_hook = _broken
            stream.receive_stream.put_eof()


async def _broken() -> None:
    raise trio.BrokenResourceError


@pytest.fixture
def memory_log() -> type[MemoryLog]:
    return MemoryLog


@pytest.fixture
def line() -> Line:
    return Line()
