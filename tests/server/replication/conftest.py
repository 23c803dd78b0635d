"""A log in memory and an in-memory network, so that both ends of replication run on the virtual clock."""

import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.query import ViewMessageRequest
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_server.config import StoreConfig
from triomq_server.replication.divergence import RemoteLog, compare
from triomq_server.store import MessageStore, NewRecord, open_store
from triomq_server.store.opening import wall_ms

FILE_BYTES = 4096


class MemoryLog:
    """The part of a store that replication needs: a byte string in files of fixed size."""

    def __init__(self, data: bytes = b"", *, begin: int = 0, file_bytes: int = FILE_BYTES) -> None:
        self.data = bytearray(data)
        self.begin = begin
        self.file_bytes = file_bytes
        self.append_listeners: list[Callable[[int], None]] = []
        self.arrivals = 0
        self.dispatched: int | None = None
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

    def open_log_file(self, offset: int) -> int | None:
        return None

    @property
    def dispatched_offset(self) -> int:
        return self.log_max_offset if self.dispatched is None else self.dispatched

    def raw_place(self, offset: int, size_bytes: int) -> None:
        return None

    def append_raw(self, data: bytes | memoryview, offset: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        if not self.data:
            self.begin = offset
        assert offset == self.log_max_offset
        assert offset % self.file_bytes + len(data) <= self.file_bytes
        self.data += data

    def append(self, data: bytes) -> None:
        self.data += data
        self.announce_end()

    def announce_end(self) -> None:
        for listener in self.append_listeners:
            listener(self.log_max_offset)

    def dispatch(self, most_bytes: int) -> bool:
        self.arrivals += 1
        return False


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
            raise ConnectionRefusedError(111, f"no listener at {address}")
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


class StockMaster:
    """Answers the two stock requests from a store, as a 4.9 broker does."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.asked: list[int] = []
        self.table: dict[str, str] | None = None
        self.code = 0

    async def request(self, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        self.asked.append(command.code)
        if self.code:
            return command.answer(self.code, "no")
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {
                "commitLogMinOffset": str(self.store.log_min_offset),
                "commitLogMaxOffset": str(self.store.log_max_offset),
            }
            return command.answer(body=KVTable(table=table if self.table is None else self.table).encode())
        assert command.code == RequestCode.VIEW_MESSAGE_BY_ID
        offset = command.header(ViewMessageRequest).offset
        # A real master takes the bytes at that offset as a length, whatever they are.
        head = self.store.log_slice(offset, 4)
        size = struct.unpack(">i", head)[0] if head and len(head) == 4 else 0
        found = self.store.log_slice(offset, size) if size > 0 else None
        if found is None or len(found) < size:
            return command.answer(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return command.answer(body=bytes(found))


@attrs.define
class StorePair:
    """A master's store and a slave's, in memory."""

    master: MessageStore
    slave: MessageStore
    code: int = 0
    away: bool = False
    asked: list[float] = attrs.field(factory=list)
    table: dict[str, str] | None = None

    def ask(self) -> StockMaster:
        self.asked.append(trio.current_time())
        if self.away:
            raise ConnectionRefusedError(111, "no listener")
        stock = StockMaster(self.master)
        stock.code = self.code
        stock.table = self.table
        return stock

    async def compared(self) -> Any:
        return await compare(self.slave, RemoteLog(self.ask()))

    @staticmethod
    def put(store: MessageStore, count: int, seed: int = 0) -> None:
        chance = random.Random(f"{seed}.{store.log_max_offset}")
        for _ in range(count):
            body = chance.randbytes(chance.randrange(300))
            sys_flag = 4 if chance.random() < 0.2 else 0
            assert store.append(NewRecord("T", chance.randrange(3), body, b"", sys_flag=sys_flag)).end_offset > 0
        store.notify_arrivals()

    @staticmethod
    def copy(source: MessageStore, target: MessageStore, until: int | None = None) -> None:
        end = source.log_max_offset if until is None else until
        while target.log_max_offset < end:
            part = source.log_slice(target.log_max_offset, end - target.log_max_offset)
            target.append_raw(part, target.log_max_offset)
        target.dispatch()


@pytest.fixture
def store_pair() -> Callable[[], Any]:
    """`async with store_pair() as both:` with log files of 3000 bytes."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[StorePair]:
        async with AsyncExitStack() as stack:
            stores = []
            for is_slave in (False, True):
                config = StoreConfig(
                    store_path_root_dir="/store", mapped_file_size_commit_log=3000,
                    mapped_file_size_consume_queue=200, max_hash_slot_num=20, max_index_num=60,
                )  # fmt: skip
                # By the stores' own clock: files of 1970 would be deleted, at the hour of deletion.
                disk = MemoryDisk(now_ms=wall_ms)
                stores.append(await stack.enter_async_context(open_store(config, disk=disk, is_slave=is_slave)))
            yield StorePair(*stores)

    return opened
