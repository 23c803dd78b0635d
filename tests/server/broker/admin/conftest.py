"""A broker without a network: handlers are called directly, with links that write down what they are told."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from triomq_protocol.command import Command
from triomq_protocol.frame import FrameDecoder
from triomq_protocol.header import Header
from triomq_server.broker.clients import ClientTable
from triomq_server.broker.consumer_filters import ConsumerFilters
from triomq_server.broker.delay_offsets import DelayOffsets
from triomq_server.broker.groups import GroupTable
from triomq_server.broker.handlers import main_handlers
from triomq_server.broker.long_polling import HeldPulls
from triomq_server.broker.offsets import OffsetTable
from triomq_server.broker.registration import Identity, Registration
from triomq_server.broker.service import Broker
from triomq_server.broker.stats import BrokerStats
from triomq_server.broker.topics import TopicTable
from triomq_server.config import BrokerConfig, StoreConfig
from triomq_server.store import NewRecord, open_store
from triomq_server.store.memory_disk import MemoryDisk
from triomq_server.wire import AnswerTimeoutError, Link, LinkClosedError

NOW_MS = 1_795_238_180_000


class Clock:
    """A wall clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class ClientLink:
    """The broker's end of a link to a client: keeps what the broker sends, answers as the test says."""

    def __init__(self, peer: str = "127.0.0.1:40000") -> None:
        self.peer = peer
        self.peer_host = bytes(8)
        self.closed = False
        self.told: list[Command] = []
        self.asked: list[tuple[Command, float]] = []
        self.reply: Callable[[Command], Awaitable[Command]] = _never

    def notify(self, command: Command) -> None:
        command.flag |= 2
        self.told.append(over_the_wire(command))

    async def request(self, command: Command, timeout_s: float) -> Command:
        received = over_the_wire(command)
        self.asked.append((received, timeout_s))
        if self.closed:
            raise LinkClosedError("link is closed")
        with trio.move_on_after(timeout_s):
            return await self.reply(received)
        raise AnswerTimeoutError(f"no answer within {timeout_s} s")

    def close(self) -> None:
        self.closed = True


async def _never(_command: Command) -> Command:
    await trio.sleep_forever()


def over_the_wire(command: Command) -> Command:
    """What the peer reads of a frame."""
    (received,) = FrameDecoder().feed(bytes(command.encode()))
    return received


class Desk:
    """Where an operator or client puts requests to one broker."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        self.clock = clock
        self.handlers = main_handlers(broker)
        self.links: dict[str, ClientLink] = {}

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        link: ClientLink | None = None,
        **more: Any,
    ) -> Command:
        """One request and its answer."""
        answer = await self.frame(Command.request(code, header, fields=fields, body=body, **more).encode(), link)
        assert answer is not None
        (received,) = FrameDecoder().feed(answer)
        return received

    async def frame(self, frame: bytes, link: ClientLink | None = None) -> bytes | None:
        """One frame, and the whole frame that answers it."""
        (command,) = FrameDecoder().feed(frame)
        caller = cast("Link", link or ClientLink("127.0.0.1:50000"))
        if command.code in self.handlers.waiting:
            answer = await self.handlers.waiting[command.code](caller, command)
        else:
            answer = self.handlers.plain.get(command.code, self.handlers.default)(caller, command)
        return bytes(answer.encode()) if isinstance(answer, Command) else answer and bytes(answer)

    def fill(self, topic: str, queues: Mapping[int, Sequence[int]]) -> None:
        """Store one message per time in each queue, in the order of the times: a log's times never decrease."""
        for at_ms, queue_id in sorted((at_ms, queue_id) for queue_id, times in queues.items() for at_ms in times):
            self.store(topic, queue_id, at_ms)

    def store(
        self, topic: str, queue_id: int, *times_ms: int, keys: str | None = None, body: bytes = b"x"
    ) -> list[int]:
        """Store one message per time; returns their physical offsets."""
        back, offsets = self.clock.now_ms, []
        for self.clock.now_ms in times_ms:
            record = NewRecord(topic=topic, queue_id=queue_id, body=body, properties=b"", tags="TagA", keys=keys)
            result = self.broker.store.append(record)
            offsets.append(result.physical_offset)
        self.clock.now_ms = back
        self.broker.store.notify_arrivals()
        return offsets


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def config() -> BrokerConfig:
    """Names as the recorded brokers had them."""
    store = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
        memory_bytes=1 << 30,
    )
    return BrokerConfig(
        broker_cluster_name="VecCluster",
        broker_name="broker-a",
        broker_ip1="127.0.0.1",
        broker_ip2="127.0.0.1",
        listen_port=21510,
        namesrv_addr=None,
        store=store,
    )


@pytest.fixture
async def desk(config: BrokerConfig, clock: Clock) -> AsyncIterator[Desk]:
    async with (
        open_store(config.store, disk=MemoryDisk(), clock=clock, is_slave=config.store.is_slave) as store,
        trio.open_nursery() as nursery,
    ):
        topics = TopicTable(config, None, clock)
        identity = Identity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=config.address,
            ha_address="127.0.0.1:21511",
        )
        broker = Broker(
            config=config,
            store=store,
            topics=topics,
            groups=GroupTable(config, None, clock),
            offsets=OffsetTable(None),
            delay_offsets=DelayOffsets(None),
            clients=ClientTable(),
            filters=ConsumerFilters(None, clock),
            stats=BrokerStats(config.broker_cluster_name, clock()),
            held_pulls=HeldPulls(limit=100),
            registration=Registration(config, identity, topics.snapshot, _no_link, chance=random.Random(1)),
            nursery=nursery,
            clock=clock,
            chance=random.Random(1),
            address=config.address,
            ha_address="127.0.0.1:21511",
            store_host=bytes((127, 0, 0, 1)) + (21510).to_bytes(4, "big"),
        )
        yield Desk(broker, clock)
        nursery.cancel_scope.cancel()


def _no_link(_address: str) -> Any:
    raise OSError("this broker knows no name server")


@pytest.fixture(scope="session")
def exchanges(vectors: Path) -> dict[str, tuple[bytes, bytes | None]]:
    """Recorded request and answer frames by name."""
    cases = json.loads((vectors / "exchanges.json").read_text())["cases"]
    return {
        case["name"]: (
            bytes.fromhex(case["requestHex"]),
            None if case["responseHex"] is None else bytes.fromhex(case["responseHex"]),
        )
        for case in cases
    }


@pytest.fixture(scope="session")
def bodies(vectors: Path) -> dict[str, bytes]:
    """Recorded bodies by name."""
    cases = json.loads((vectors / "bodies.json").read_text())["cases"]
    return {case["name"]: bytes.fromhex(case["bodyHex"]) for case in cases if case.get("bodyHex")}


@pytest.fixture
def client_link() -> Callable[..., ClientLink]:
    """Makes links to clients."""
    return ClientLink
