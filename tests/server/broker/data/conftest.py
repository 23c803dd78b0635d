"""A whole broker on a memory network, a memory disk and a virtual clock, and a client that speaks frames to it."""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq_protocol.codes import RequestCode
from triomq_protocol.command import Command
from triomq_protocol.flags import PULL_SUBSCRIPTION
from triomq_protocol.frame import FrameDecoder
from triomq_protocol.requests.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.requests.send import SendMessageRequest, SendMessageRequestV2
from triomq_server.broker import serve_broker
from triomq_server.config import BrokerConfig
from triomq_server.store.memory_disk import MemoryDisk
from triomq_server.wire import MemoryNetwork

START_MS = 1_795_000_000_000
PORT = 10911


def virtual_ms() -> int:
    """The broker's wall clock: as fast as trio's."""
    return START_MS + int(trio.current_time() * 1000)


class Peer:
    """A client of one link: sends commands, reads frames, pairs nothing but opaques."""

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
        """The bytes of exactly one frame; nothing else may be on its way."""
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
        """A send as a Java client makes it."""
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
    """Every test of this folder runs on virtual time, without asking for it by an argument."""
    here = Path(__file__).parent
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == here and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=virtual_run))


@pytest.fixture
def open_broker() -> OpenBroker:
    """Starts a broker; network and disk may be handed in to start it again on the same files."""

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
        task_status=task_status,
    )
