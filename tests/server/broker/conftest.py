"""Brokers under test: whole ones on a memory network, and one without a network whose handlers are called directly.

`open_broker` starts whole brokers on a memory disk and a virtual clock; `desk` calls the handlers of one broker, with
links that record what they are sent."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.flags import PULL_SUBSCRIPTION
from triomq_protocol.requests.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.requests.send import SendMessageRequest, SendMessageRequestV2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_protocol.wire.header import Header
from triomq_server.acl import guarded, refusal
from triomq_server.acl.accounts import AccessRules
from triomq_server.broker import serve_broker
from triomq_server.broker.broker import Broker
from triomq_server.broker.handlers import main_handlers
from triomq_server.broker.registration import Identity, Registration
from triomq_server.broker.roles.roles import Roles
from triomq_server.broker.set_members import SetMembers
from triomq_server.broker.tables.clients import ClientTable
from triomq_server.broker.tables.consumer_filters import ConsumerFilters
from triomq_server.broker.tables.groups import GroupTable
from triomq_server.broker.tables.held_pulls import HeldPulls
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets
from triomq_server.broker.tables.stats import BrokerStats
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.broker.tables.undelivered import Undelivered
from triomq_server.broker.transactions.open_transactions import OpenTransactions
from triomq_server.config import BrokerConfig, StoreConfig
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.store import NewRecord, open_store
from triomq_server.store.reading import queue_reads
from triomq_server.wire import AnswerTimeoutError, Link, LinkClosedError, to_the_end

START_MS = 1_795_000_000_000
PORT = 10911


@pytest.fixture(autouse=True)
def patient_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pulls from ending early because this machine is slow, or a garbage collection runs."""
    monkeypatch.setattr(queue_reads, "FILTER_TURN_S", float("inf"))


def virtual_ms() -> int:
    """The broker's wall clock: as fast as trio's."""
    return START_MS + int(trio.current_time() * 1000)


class Peer:
    """A client of one link: sends commands, reads frames, pairs answers by their opaques."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()
        self._arrived: list[Command] = []
        self._opaque = 0

    async def send(self, command: Command) -> int:
        """Send without waiting for an answer; returns the opaque."""
        self._opaque += 1
        command.opaque = self._opaque
        await self.stream.send_all(command.encode())
        return self._opaque

    async def receive(self) -> Command:
        """The next frame of any kind."""
        while not self._arrived:
            data = await self.stream.receive_some(65536)
            assert data, "the broker closed the link"
            self._arrived += self._decoder.feed(bytes(data))
        return self._arrived.pop(0)

    async def receive_frame(self) -> bytes:
        """The bytes of exactly one frame; no other may be in transit."""
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += bytes(await self.stream.receive_some(65536))
        assert len(data) == 4 + int.from_bytes(data[:4], "big")
        return data

    async def ask(self, command: Command) -> Command:
        """Send and wait for the answer."""
        opaque = await self.send(command)
        while True:
            answer = await self.receive()
            if answer.is_response and answer.opaque == opaque:
                return answer

    async def put(self, topic: str = "T1", body: bytes = b"hello", **fields: Any) -> Command:
        """Send one message and wait for the answer."""
        return await self.ask(self.put_request(topic, body, **fields))

    async def pull(self, topic: str = "T1", offset: int = 0, **fields: Any) -> Command:
        """Pull and wait for the answer."""
        return await self.ask(self.pull_request(topic, offset, **fields))

    @staticmethod
    def put_request(
        topic: str = "T1",
        body: bytes = b"hello",
        *,
        code: int = 310,
        oneway: bool = False,
        version: int = 407,
        serialize: int = 0,
        **fields: Any,
    ) -> Command:
        """A send in the form of a Java client's."""
        kind = SendMessageRequest if code in (10, 324) else SendMessageRequestV2
        header = kind(
            **{
                "producer_group": "PG",
                "topic": topic,
                "default_topic": "TBW102",
                "default_topic_queue_nums": 4,
                "queue_id": 0,
                "sys_flag": 0,
                "born_timestamp": 1_700_000_000_000,
                "flag": 0,
                "properties": "TAGS\x01TagA\x02KEYS\x01k1",
                "reconsume_times": 0,
                **fields,
            }
        )
        return Command.request(code, header, body=body, oneway=oneway, version=version, serialize=serialize)

    @staticmethod
    def pull_request(topic: str = "T1", offset: int = 0, *, serialize: int = 0, **fields: Any) -> Command:
        """A pull with its subscription in the request."""
        header = PullMessageRequest(
            **{
                "consumer_group": "CG",
                "topic": topic,
                "queue_id": 0,
                "queue_offset": offset,
                "max_msg_nums": 32,
                "sys_flag": PULL_SUBSCRIPTION,
                "commit_offset": 0,
                "suspend_timeout_millis": 15_000,
                "subscription": "*",
                "sub_version": 0,
                "expression_type": "TAG",
                **fields,
            }
        )
        return Command.request(RequestCode.PULL_MESSAGE, header, serialize=serialize)

    @staticmethod
    def heartbeat(group: str = "CG", topic: str = "T1", *, model: str = "CLUSTERING", **subscription: Any) -> Command:
        """A consumer's heartbeat with one subscription."""
        data = SubscriptionData(**{"topic": topic, "sub_string": "*", "sub_version": 5, **subscription})
        consumer = ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model=model,
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[data],
        )
        body = HeartbeatData(client_id="127.0.0.1@c1", consumer_data_set=[consumer])
        return Command.request(RequestCode.HEART_BEAT, body=body.encode())


@attrs.define
class Running:
    """A broker under test."""

    network: MemoryNetwork
    disk: MemoryDisk
    config: BrokerConfig
    not_written: list[str] = attrs.Factory(list)

    async def peer(self, port: int = PORT) -> Peer:
        """A new client."""
        return Peer(await self.network.dial(f"127.0.0.1:{port}"))


OpenBroker = Callable[..., AbstractAsyncContextManager[Running]]


def broker_config(**settings: Any) -> BrokerConfig:
    """A small broker `broker-a` of `C1`; keyword arguments are keys as in a .conf file."""
    values = {
        "brokerClusterName": "C1",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": str(PORT),
        "storePathRootDir": "/store",
        "mappedFileSizeCommitLog": str(1 << 20),
        "mappedFileSizeConsumeQueue": "20000",
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        **{key: str(value) for key, value in settings.items()},
    }
    config, warnings = BrokerConfig.from_properties(values)
    assert not warnings
    return config


def virtual_run(main: Callable[..., Any], *args: Any, clock: trio.abc.Clock | None = None, **more: Any) -> Any:
    """`trio.run` on a clock that jumps over every wait."""
    return trio.run(main, *args, clock=clock or trio.testing.MockClock(autojump_threshold=0), **more)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run every test of this folder on virtual time, without an argument that asks for it."""
    here = Path(__file__).parent
    for item in items:
        if isinstance(item, pytest.Function) and here in item.path.parents and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=virtual_run))


@pytest.fixture
def open_broker() -> OpenBroker:
    """Starts a broker; a given network and disk start it again on the same files."""

    @asynccontextmanager
    async def opened(
        *, network: MemoryNetwork | None = None, disk: MemoryDisk | None = None, **settings: Any
    ) -> AsyncIterator[Running]:
        running = Running(network or MemoryNetwork(), disk or MemoryDisk(), broker_config(**settings))
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve, running)
            yield running
            nursery.cancel_scope.cancel()

    return opened


async def _serve(running: Running, *, task_status: trio.TaskStatus[Any]) -> None:
    await serve_broker(
        running.config,
        disk=running.disk,
        dial=running.network.dial,
        listen=running.network.listen,
        clock=virtual_ms,
        chance=random.Random(2),
        not_written=running.not_written.append,
        task_status=task_status,
    )


# -- handlers called directly

NOW_MS = 1_795_238_180_000


class Clock:
    """A wall clock that only moves when a test moves it."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class ClientLink:
    """The broker's end of a link to a client: records what the broker sends, and answers as set by the test."""

    def __init__(self, peer: str = "127.0.0.1:40000") -> None:
        self.peer = peer
        self.peer_host = bytes(8)
        self.closed = self.draining = False
        self.unsent_bytes = 0
        self.notified: list[Command] = []
        self.asked: list[tuple[Command, float]] = []
        self.reply: Callable[[Command], Awaitable[Command]] = _never

    def notify(self, command: Command) -> None:
        command.flag |= 2
        self.notified.append(over_the_wire(command))

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
    """Encode and decode a frame, as its peer reads it."""
    (received,) = FrameDecoder().feed(bytes(command.encode()))
    return received


class Desk:
    """Sends requests of an operator or client to one broker."""

    def __init__(self, broker: Broker, roles: Roles, clock: Clock) -> None:
        self.broker = broker
        self.roles = roles
        self.clock = clock
        self.transactions = OpenTransactions(broker)
        self.handlers = main_handlers(broker, roles, self.transactions)
        if (acl := broker.acl) is not None:
            self.handlers = guarded(self.handlers, lambda host, command: refusal(acl.rules, host, command))
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
        """Send one request and return its answer."""
        answer = await self.frame(Command.request(code, header, fields=fields, body=body, **more).encode(), link)
        assert answer is not None
        (received,) = FrameDecoder().feed(answer)
        return received

    async def frame(self, frame: bytes, link: ClientLink | None = None) -> bytes | None:
        """Send one frame and return the whole frame of the answer."""
        (command,) = FrameDecoder().feed(frame)
        caller = cast("Link", link or ClientLink("127.0.0.1:50000"))
        if command.code in self.handlers.sliced:
            answer = to_the_end(self.handlers.sliced[command.code](caller, command))
        elif command.code in self.handlers.waiting:
            answer = await self.handlers.waiting[command.code](caller, command)
        else:
            answer = self.handlers.plain.get(command.code, self.handlers.default)(caller, command)
            if isinstance(answer, Generator):
                answer = to_the_end(answer)
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
    """A configuration with the names of the recorded brokers."""
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


@asynccontextmanager
async def open_desk(config: BrokerConfig, clock: Clock, rules: AccessRules | None = None) -> AsyncIterator[Desk]:
    """A broker with an empty store; with access control if there are rules."""
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
        settings = HaSettings.from_config(config.store, compat_49=config.store.compat_49)
        broker = Broker(
            config=config,
            store=store,
            topics=topics,
            groups=GroupTable(config, None, clock),
            offsets=OffsetTable(None),
            delay_offsets=DelayOffsets(None),
            undelivered=Undelivered(None),
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
            set_members=SetMembers("127.0.0.1:10911"),
            replication=HaMaster(store, settings),
            acl=None if rules is None else cast("Any", SimpleNamespace(rules=rules)),
        )
        roles = Roles(broker, settings, nursery, dial=_no_link, open_link=_no_link)
        yield Desk(broker, roles, clock)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def desk(config: BrokerConfig, clock: Clock) -> AsyncIterator[Desk]:
    async with open_desk(config, clock) as opened:
        yield opened


@pytest.fixture
def new_desk(config: BrokerConfig, clock: Clock) -> Callable[..., AbstractAsyncContextManager[Desk]]:
    """Opens another one with its own store, optionally with other settings and access control."""

    def opened(*, rules: AccessRules | None = None, **settings: Any) -> AbstractAsyncContextManager[Desk]:
        return open_desk(attrs.evolve(config, store=attrs.evolve(config.store, **settings)), clock, rules)

    return opened


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
