"""A broker on real sockets and files, and a client that sends it frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.requests.send import SendMessageRequestV2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker import BrokerAddresses, serve_broker
from triomq_server.config import BrokerConfig


class Wire:
    """One TCP link to the broker."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()
        self._arrived: list[Command] = []
        self._opaque = 0

    def numbered(self, command: Command) -> bytes:
        """The command's frame, with the next opaque."""
        self._opaque += 1
        command.opaque = self._opaque
        return bytes(command.encode())

    async def receive(self) -> Command:
        """The next frame."""
        while not self._arrived:
            data = await self.stream.receive_some(1 << 20)
            assert data, "the broker closed the link"
            self._arrived += self._decoder.feed(bytes(data))
        return self._arrived.pop(0)

    async def ask(self, command: Command) -> Command:
        """Send one command and wait for one frame."""
        await self.stream.send_all(self.numbered(command))
        answer = await self.receive()
        assert answer.opaque == self._opaque
        return answer

    @staticmethod
    def put_request(topic: str, body: bytes, *, code: int = 310, **fields: Any) -> Command:
        """A send."""
        values = {"queue_id": 0, "sys_flag": 0, "born_timestamp": 1_700_000_000_000, "flag": 0, **fields}
        header = SendMessageRequestV2(
            producer_group="PG", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, **values
        )
        return Command.request(code, header, body=body)

    @staticmethod
    def pull_request(topic: str, offset: int, *, suspend_ms: int = 0, queue_id: int = 0) -> Command:
        """A pull of everything; it may wait if a time is given."""
        header = PullMessageRequest(
            consumer_group="CG",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=6 if suspend_ms else 4,
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
            subscription="*",
            sub_version=0,
        )
        return Command.request(RequestCode.PULL_MESSAGE, header)


OpenBroker = Callable[..., AbstractAsyncContextManager[BrokerAddresses]]


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """Where the broker keeps its files; the same for each broker of one test."""
    return tmp_path / "store"


@pytest.fixture
def open_broker(store_folder: Path) -> OpenBroker:
    """Starts a broker on free ports of the loopback; leaving the block stops it in order."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[BrokerAddresses]:
        values = {
            "brokerClusterName": "C1",
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(store_folder),
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
            **{key: str(value) for key, value in settings.items()},
        }
        config, warnings = BrokerConfig.from_properties(values)
        assert not warnings
        async with trio.open_nursery() as nursery:
            addresses: BrokerAddresses = await nursery.start(serve_broker, config)
            yield addresses
            nursery.cancel_scope.cancel()

    return opened


@pytest.fixture
def connect() -> Callable[..., AbstractAsyncContextManager[Wire]]:
    """Opens a link to an address, or to the port some steps beside it."""

    @asynccontextmanager
    async def connected(address: str, distance: int = 0) -> AsyncIterator[Wire]:
        host, _, port = address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port) + distance) as stream:
            stream.setsockopt(6, 1, 1)
            yield Wire(stream)

    return connected
