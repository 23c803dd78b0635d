"""A cluster made of memory streams: name servers and brokers whose answers tests can script."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from cancellation import CancelAtStep
from consumer_broker import ConsumerSide, record_of
from stored_records import encode_record
from trio.testing import memory_stream_pair

import triomq
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.filters.tags import parse_subscription, tags_code
from triomq_protocol.hosts import pack_host
from triomq_protocol.properties import decode_properties
from triomq_protocol.record.batch import split_batch
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests import (
    BrokerData,
    ClusterInfo,
    GetRouteInfoRequest,
    QueueData,
    TopicList,
    TopicRouteData,
)
from triomq_protocol.requests.offset import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateConsumerOffsetRequest,
)
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse
from triomq_protocol.requests.send import SendMessageRequestV2, SendMessageResponse
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

Scripted = Command | Callable[[Command], "Command | Awaitable[Command | None] | None"] | None


class FakeNode:
    """A listening process: records requests, and answers by script first, else by its own `serve`."""

    def __init__(self, network: Network, address: str) -> None:
        self.network = network
        self.address = address
        self.seen: list[Command] = []
        self.scripts: dict[int, deque[Scripted]] = defaultdict(deque)
        self.streams: list[trio.StapledStream] = []
        self.writing: dict[trio.StapledStream, trio.Lock] = {}
        self.asking: trio.StapledStream | None = None
        self.up = True
        self.version = 407
        network.nodes[address] = self

    def script(self, code: int, *answers: Scripted) -> None:
        """Set the answers to the next requests of this code; None is silence."""
        self.scripts[code].extend(answers)

    def requests(self, code: int) -> list[Command]:
        return [command for command in self.seen if command.code == code]

    async def cut(self) -> None:
        """End all connections, like a crash."""
        streams, self.streams = self.streams, []
        for stream in streams:
            await trio.aclose_forcefully(stream)

    async def stop(self) -> None:
        self.up = False
        await self.cut()

    async def talk(self, stream: trio.StapledStream) -> None:
        self.streams.append(stream)
        decoder = FrameDecoder()
        writing = self.writing[stream] = trio.Lock()
        try:
            async with trio.open_nursery() as nursery:
                async for data in stream:
                    for command in decoder.feed(bytes(data)):
                        if command.is_response and self.takes_answer(command):
                            continue
                        self.seen.append(command)
                        self.asking = stream
                        answer = self.answer_to(command)
                        if isinstance(answer, Awaitable):
                            nursery.start_soon(self.reply_later, stream, writing, command, answer)
                        else:
                            await self.reply(stream, writing, command, answer)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.link_ended(stream)
            await trio.aclose_forcefully(stream)

    def link_ended(self, stream: trio.StapledStream) -> None:
        self.writing.pop(stream, None)

    async def push_to(self, stream: trio.StapledStream, command: Command) -> None:
        """Send a request of the node's own to a client."""
        try:
            async with self.writing[stream]:
                await stream.send_all(command.encode())
        except (KeyError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def takes_answer(self, _answer: Command) -> bool:
        """Whether a client's answer is one that this node waits for; a test that asks itself finds it in `seen`."""
        return False

    def answer_to(self, command: Command) -> Command | Awaitable[Command | None] | None:
        scripts = self.scripts[command.code]
        answer = scripts.popleft() if scripts else self.serve(command)
        return answer(command) if callable(answer) else answer

    async def reply_later(
        self, stream: trio.StapledStream, writing: trio.Lock, command: Command, answer: Awaitable[Command | None]
    ) -> None:
        await self.reply(stream, writing, command, await answer)

    async def reply(
        self, stream: trio.StapledStream, writing: trio.Lock, command: Command, answer: Command | None
    ) -> None:
        if answer is not None and not command.is_oneway:
            answer.opaque = command.opaque
            answer.version = self.version
            async with writing:
                await stream.send_all(answer.encode())

    def serve(self, command: Command) -> Command | None:
        return command.answer(3, f" request type {command.code} not supported")


class FakeNameServer(FakeNode):
    def __init__(self, network: Network, address: str = "ns:9876") -> None:
        super().__init__(network, address)
        self.routes: dict[str, TopicRouteData] = {}
        self.brokers: dict[str, BrokerData] = {}

    def add_route(self, topic: str, *brokers: FakeBroker, queues: int = 2, perm: int = 6) -> None:
        masters = {broker.name: broker for broker in brokers}
        data = TopicRouteData(
            broker_datas=[
                BrokerData(
                    broker_name=name,
                    cluster="C",
                    broker_addrs={each.broker_id: each.address for each in brokers if each.name == name},
                )
                for name in masters
            ],
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
                for name in masters
            ],
        )
        self.routes[topic] = data
        for broker in data.broker_datas or []:
            self.brokers[broker.broker_name or ""] = broker

    def serve(self, command: Command) -> Command | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = command.header(GetRouteInfoRequest).topic or ""
            if topic not in self.routes:
                return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info: {topic}")
            return command.answer(0, body=self.routes[topic].encode())
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            info = ClusterInfo(broker_addr_table=self.brokers, cluster_addr_table={"C": list(self.brokers)})
            return command.answer(0, body=info.encode())
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return command.answer(0, body=TopicList(topic_list=list(self.routes)).encode())
        if command.code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
            return command.answer(0)
        return super().serve(command)


class FakeBroker(FakeNode):
    """Keeps records per queue; a slave shares its master's."""

    def __init__(
        self, network: Network, name: str = "broker-a", broker_id: int = 0, *, master: FakeBroker | None = None
    ) -> None:
        super().__init__(network, f"{name}-{broker_id}:10911")
        self.name = name
        self.broker_id = broker_id
        self.queues: dict[tuple[str, int], list[bytes]] = master.queues if master else defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.min_offsets: dict[tuple[str, int], int] = {}
        self.suggests = 0
        self.stored_count = 0
        self.name_server: FakeNameServer | None = None
        self.slaves: list[FakeBroker] = []
        self.consumers = ConsumerSide(self)

    def fall_behind(self, missing: int) -> None:
        """Give a slave its own queues, without the last messages of its master's."""
        self.queues = defaultdict(list, {key: records[:-missing] for key, records in self.queues.items()})

    def bodies(self, topic: str) -> list[bytes]:
        return [body for (name, _), stored in sorted(self.stored.items()) if name == topic for body in stored]

    @property
    def stored(self) -> dict[tuple[str, int], list[bytes]]:
        return {key: [RecordView(record).body for record in records] for key, records in self.queues.items()}

    def link_ended(self, stream: trio.StapledStream) -> None:
        super().link_ended(stream)
        self.consumers.forget_link(stream)

    def takes_answer(self, answer: Command) -> bool:
        return self.consumers.takes_status(answer)

    def serve(self, command: Command) -> Command | Awaitable[Command | None] | None:
        if self.asking is not None:
            answer = self.consumers.serve(command, self.asking)
            if answer is not None:
                return answer
        handler = {
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MIN_OFFSET: lambda command: command.answer(0, header=GetMaxOffsetResponse(offset=0)),
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: lambda command: command.answer(0),
            RequestCode.GET_TOPIC_CONFIG: lambda command: command.answer(ResponseCode.TOPIC_NOT_EXIST, "no"),
            RequestCode.DELETE_TOPIC_IN_BROKER: lambda command: command.answer(0),
        }.get(command.code)
        return handler(command) if handler is not None else super().serve(command)

    def send(self, command: Command) -> Command:
        header = command.header(SendMessageRequestV2)
        queue = self.queues[header.topic, header.queue_id]
        first = len(queue)
        if self.consumers.takes_send(header, command.body):
            return command.answer(0, header=SendMessageResponse(msg_id="0" * 32, queue_id=0, queue_offset=0))
        if header.batch:
            for _, body, properties, *_ in split_batch(command.body, b"").elements:
                self.append(header, body, properties)
            count = len(queue) - first
        else:
            count = 1
            self.append(header, command.body, (header.properties or "").encode())
        answer = SendMessageResponse(
            msg_id=",".join(f"7F00000100002A9F{at:016X}" for at in range(first, first + count)),
            queue_id=header.queue_id,
            queue_offset=first,
        )
        return command.answer(0, header=answer, fields={"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})

    def append(self, header: SendMessageRequestV2, body: bytes, properties: bytes) -> None:
        queue = self.queues[header.topic, header.queue_id]
        self.stored_count += 1
        queue.append(
            encode_record(
                header.topic.encode(),
                header.queue_id,
                body,
                properties,
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=pack_host("127.0.0.1", 40000),
                store_host=pack_host("127.0.0.1", 10911),
                queue_offset=len(queue),
                physical_offset=1000 * (self.stored_count - 1),
                store_timestamp=1_700_000_000_000 + len(queue),
            )
        )
        self.consumers.arrived()

    def store(
        self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", *, reconsume_times: int = 0
    ) -> None:
        """Put a message into a queue, as if a producer had sent it."""
        queue = self.queues[topic, queue_id]
        self.stored_count += 1
        queue.append(
            record_of(
                topic,
                queue_id,
                body,
                properties,
                queue_offset=len(queue),
                physical_offset=1000 * (self.stored_count - 1),
                times=reconsume_times,
            )
        )
        self.consumers.arrived()

    def record_at(self, physical_offset: int) -> RecordView | None:
        views = (RecordView(record) for records in self.queues.values() for record in records)
        return next((view for view in views if view.physical_offset == physical_offset), None)

    def pull(self, command: Command) -> Command | Awaitable[Command]:
        if self.consumers.serves_groups:
            return self.consumers.pull(command)
        header = command.header(PullMessageRequest)
        queue = self.queues[header.topic, header.queue_id]
        wanted = parse_subscription(header.subscription)
        answer = PullMessageResponse(
            suggest_which_broker_id=self.suggests,
            next_begin_offset=header.queue_offset,
            min_offset=0,
            max_offset=len(queue),
        )
        if header.queue_offset > len(queue):
            if self.broker_id:
                return command.answer(20, "OFFSET_OVERFLOW_BADLY", answer)
            answer.next_begin_offset = len(queue)
            return command.answer(21, "OFFSET_OVERFLOW_BADLY", answer)
        if header.queue_offset == len(queue):
            return command.answer(19, "OFFSET_OVERFLOW_ONE", answer)
        window = queue[header.queue_offset : header.queue_offset + header.max_msg_nums]
        answer.next_begin_offset = header.queue_offset + len(window)
        found = [r for r in window if not wanted.codes or tags_code(RecordView(r).tags) in wanted.codes]
        if not found:
            return command.answer(20, "NO_MATCHED_MESSAGE", answer)
        return command.answer(0, "FOUND", answer, body=b"".join(found))

    def query_offset(self, command: Command) -> Command:
        header = command.header(QueryConsumerOffsetRequest)
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None:
            return command.answer(ResponseCode.QUERY_NOT_FOUND, "Not found")
        return command.answer(0, header=QueryConsumerOffsetResponse(offset=offset))

    def update_offset(self, command: Command) -> Command:
        header = command.header(UpdateConsumerOffsetRequest)
        self.consumers.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return command.answer(0)

    def max_offset(self, command: Command) -> Command:
        header = command.header(GetMaxOffsetRequest)
        return command.answer(0, header=GetMaxOffsetResponse(offset=len(self.queues[header.topic, header.queue_id])))

    def search_offset(self, command: Command) -> Command:
        header = command.header(SearchOffsetRequest)
        return command.answer(0, header=SearchOffsetResponse(offset=max(0, header.timestamp - 1_700_000_000_000)))


class Network:
    """Addresses and their listeners."""

    def __init__(self, spawn: Callable[..., object]) -> None:
        self.spawn = spawn
        self.nodes: dict[str, FakeNode] = {}
        self.dials: list[str] = []
        self.hanging: set[str] = set()

    async def dial(self, address: str, /) -> trio.abc.Stream:
        self.dials.append(address)
        await trio.lowlevel.checkpoint()
        if address in self.hanging:
            await trio.sleep_forever()
        node = self.nodes.get(address)
        if node is None or not node.up:
            raise ConnectionRefusedError(f"no listener at {address}")
        ours, theirs = memory_stream_pair()
        self.spawn(node.talk, theirs)
        return ours


class FakeCluster:
    """One name server, one master, one topic `T` with two queues; tests add more as needed."""

    def __init__(self, spawn: Callable[..., object]) -> None:
        self.network = Network(spawn)
        self.name_server = FakeNameServer(self.network)
        self.broker = FakeBroker(self.network)
        self.broker.name_server = self.name_server
        self.name_server.add_route("T", self.broker)

    def add_master(self, name: str, *, topic: str = "T") -> FakeBroker:
        broker = FakeBroker(self.network, name)
        self.name_server.add_route(topic, self.broker, broker)
        return broker

    def add_slave(self, *, topic: str = "T") -> FakeBroker:
        slave = FakeBroker(self.network, "broker-a", 1, master=self.broker)
        self.name_server.add_route(topic, self.broker, slave)
        self.broker.slaves.append(slave)
        return slave

    def options(self, **options: object) -> dict[str, object]:
        return {
            "dial": self.network.dial,
            "client_ip": "10.0.0.1",
            "chance": random.Random(1),
            "clock": lambda: 1_700_000_000_000,
            **options,
        }

    def client(self, **options: object):
        return triomq.open_client(self.name_server.address, **self.options(**options))


class RecordingCallback:
    """A callback that records its arguments."""

    def __init__(self) -> None:
        self.results: list[object] = []
        self.errors: list[Exception] = []

    def on_success(self, result: object) -> None:
        self.results.append(result)

    def on_exception(self, error: Exception) -> None:
        self.errors.append(error)

    def __len__(self) -> int:
        return len(self.results) + len(self.errors)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with trio.open_nursery() as nursery:
        yield FakeCluster(nursery.start_soon)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def group_cluster(cluster: FakeCluster) -> FakeCluster:
    """A cluster whose brokers serve consumer groups: held pulls, members, locks, retries."""
    cluster.broker.consumers.serves_groups = True
    return cluster


@pytest.fixture
def make_group_cluster() -> Callable[[], AbstractAsyncContextManager[FakeCluster]]:
    """Makes any number of such clusters, one after the other."""

    @asynccontextmanager
    async def make() -> AsyncIterator[FakeCluster]:
        async with trio.open_nursery() as nursery:
            made = FakeCluster(nursery.start_soon)
            made.broker.consumers.serves_groups = True
            yield made
            nursery.cancel_scope.cancel()

    return make


@pytest.fixture
def make_callback() -> Callable[[], RecordingCallback]:
    return RecordingCallback


@pytest.fixture
def properties_of() -> Callable[[Command], dict[str, str]]:
    """Maps a request to its property table."""
    return lambda command: decode_properties(command.header(SendMessageRequestV2).properties or "")


@pytest.fixture
def cancel_at_step() -> type[CancelAtStep]:
    return CancelAtStep


@pytest.fixture
def system_cluster() -> FakeCluster:
    """A cluster that runs in whatever loop dials it: for the synchronous API."""
    return FakeCluster(trio.lowlevel.spawn_system_task)
