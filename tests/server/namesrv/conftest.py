"""A name server's handlers over an in-memory disk and a clock set by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_disk import MemoryDisk

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from triomq_protocol.wire.command import Command
from triomq_server.config import NamesrvConfig
from triomq_server.disk.config_files import ConfigFile
from triomq_server.namesrv.handlers import NameServer
from triomq_server.namesrv.kv_config import KvConfig
from triomq_server.namesrv.routes import RouteTable
from triomq_server.wire import to_the_end

KV_PATH = "/namesrv/kvConfig.json"
CONFIG_PATH = "/namesrv/namesrv.properties"


class Peer:
    """The handlers' view of a connection."""

    peer = "10.0.0.1:5000"


class Desk:
    """Sends requests to one name server without a network."""

    def __init__(self, **settings: object) -> None:
        self.disk = MemoryDisk()
        self.now_ms = 1_000_000
        self.config = NamesrvConfig(kv_config_path=KV_PATH, config_store_path=CONFIG_PATH, **settings)
        self.restart()

    def restart(self) -> None:
        self.server = NameServer(
            config=self.config,
            routes=RouteTable(compat_49=self.config.compat_49),
            kv=KvConfig(ConfigFile(KV_PATH, self.disk)),
            config_file=ConfigFile(CONFIG_PATH, self.disk),
            clock=lambda: self.now_ms,
        )
        self.handlers = self.server.handlers()

    async def put(self, command: Command, peer: object = None) -> Command | None:
        if command.code in self.handlers.sliced:
            return to_the_end(self.handlers.sliced[command.code](peer or Peer(), command))
        waiting = self.handlers.waiting.get(command.code)
        if waiting is not None:
            return await waiting(peer or Peer(), command)
        return self.handlers.plain.get(command.code, self.handlers.default)(peer or Peer(), command)

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, peer: object = None, version=407
    ) -> Command:
        answer = await self.put(Command.request(code, fields=fields, body=body, version=version), peer)
        assert answer is not None
        return answer

    async def register(
        self,
        name: str,
        broker_id: int = 0,
        topics: tuple[str, ...] = (),
        *,
        counter: int = 1,
        address: str | None = None,
        cluster: str = "C",
        peer: object = None,
        **topic: int,
    ) -> Command:
        address = address or f"{name}-{broker_id}:1"
        table = TopicConfigTable(
            data_version=DataVersion(counter=counter, timestamp=7),
            topic_config_table={t: TopicConfig(topic_name=t, **topic) for t in topics},
        )
        body = RegisterBrokerBody(filter_server_list=[], topic_config_serialize_wrapper=table)
        fields = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": f"{address}2",
            "brokerId": str(broker_id),
        }
        return await self.ask(RequestCode.REGISTER_BROKER, fields, body.encode(), peer=peer)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def new_desk() -> Callable[..., Desk]:
    return Desk
