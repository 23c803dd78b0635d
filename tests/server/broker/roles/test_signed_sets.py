"""A set of brokers with access control and no white list: each signs what it asks the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.acl import sign
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.offset import UpdateConsumerOffsetRequest
from triomq_protocol.wire.command import Command
from triomq_server.acl.accounts import AclError
from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv

NAMESRV = "127.0.0.1:9876"
SLAVE_PORT = 10921
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "listenPort": SLAVE_PORT, "storePathRootDir": "/slave"}
ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: the-set, secretKey: set-secret}
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "set.yml").write_text("accessKey: the-set\nsecretKey: set-secret\n")
    return {
        "aclEnable": "true",
        "rocketmqHome": tmp_path,
        "haSlaveAddresses": "127.0.0.1",
        "aclCredentialsFile": tmp_path / "set.yml",
        "namesrvAddr": NAMESRV,
    }


def by_operator(command: Command) -> Command:
    fields = {str(name): value for name, value in command.field_pairs() or ()}
    command.extra = sign(fields, command.body, access_key="operator", secret_key="operator-secret")
    return command


def commit(offset: int) -> Command:
    header = UpdateConsumerOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, commit_offset=offset)
    return by_operator(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))


def offset_of(answer: Command) -> str | None:
    return (answer.fields or {}).get("offset")


def asked() -> Command:
    fields = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
    return by_operator(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))


async def test_a_slave_copies_log_and_tables_and_the_master_takes_offsets_back(
    open_broker: Any, settings: dict[str, Any], caplog: Any
) -> None:
    network, disk = MemoryNetwork(), MemoryDisk()
    names, _ = NamesrvConfig.from_properties({"kvConfigPath": "/nowhere/kvConfig.json", "listenPort": "9876"})
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_namesrv, names, listen=network.listen))
        async with open_broker(network=network, **settings, **SLAVE) as slave:
            at_slave = await slave.peer(SLAVE_PORT)
            async with open_broker(network=network, disk=disk, **settings) as master:
                at_master = await master.peer()
                assert (await at_master.ask(by_operator(at_master.put_request()))).code == 0
                assert (await at_master.ask(commit(5))).code == 0
                await trio.sleep(30)
                assert (await at_slave.ask(by_operator(at_slave.pull_request()))).code == 0
                assert offset_of(await at_slave.ask(asked())) == "5"
            assert (await at_slave.ask(commit(9))).code == 0
            async with open_broker(network=network, disk=disk, **settings) as master:
                at_master = await master.peer()
                assert offset_of(await at_master.ask(asked())) == "9"
        nursery.cancel_scope.cancel()
    assert "is refused" not in caplog.text
    assert "set-secret" not in caplog.text


async def test_without_credentials_neither_log_nor_tables_are_copied(
    open_broker: Any, settings: dict[str, Any], caplog: Any
) -> None:
    network = MemoryNetwork()
    names, _ = NamesrvConfig.from_properties({"kvConfigPath": "/nowhere/kvConfig.json", "listenPort": "9876"})
    del settings["aclCredentialsFile"]
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_namesrv, names, listen=network.listen))
        async with (
            open_broker(network=network, **settings) as master,
            open_broker(network=network, **settings, **SLAVE) as slave,
        ):
            at_master, at_slave = await master.peer(), await slave.peer(SLAVE_PORT)
            assert (await at_master.ask(by_operator(at_master.put_request()))).code == 0
            await trio.sleep(30)
            assert (await at_slave.ask(by_operator(at_slave.pull_request()))).code == 17
        nursery.cancel_scope.cancel()
    assert "No accessKey is configured" in caplog.text


async def test_a_broker_does_not_start_without_its_credentials(
    open_broker: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "set.yml").write_text("accessKey: the-set\n")
    missing = pytest.RaisesExc(AclError, match="secretKey is missing")
    with pytest.RaisesGroup(missing, flatten_subgroups=True):
        async with open_broker(**settings):
            raise AssertionError("it has started")
