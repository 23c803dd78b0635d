"""serve_namesrv: liveness on a virtual clock, one connection's end, stopping."""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import partial

import pytest
import trio
from any_step import each_step_of_all_tasks
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.codes import RequestCode as Code
from triomq_protocol.requests import ClusterInfo
from triomq_protocol.wire.command import Command
from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv
from triomq_server.wire import AnswerTimeoutError, Limits, open_link


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
def start(nursery, network):
    async def start(**settings: object) -> str:
        config = NamesrvConfig(listen_port=0, kv_config_path="/kv.json", config_store_path="/ns.conf", **settings)

        async def run(task_status):
            await serve_namesrv(
                config,
                listen=network.listen,
                disk=MemoryDisk(),
                task_status=task_status,
            )

        return await nursery.start(run)

    return start


def registration(name: str) -> Command:
    return Command.request(
        Code.REGISTER_BROKER,
        fields={"brokerName": name, "brokerAddr": f"{name}:1", "clusterName": "C", "haServerAddr": f"{name}:2",
                "brokerId": "0"},
    )  # fmt: skip


async def test_incomplete_frames_of_all_connections_are_bounded(autojump_clock, network, start) -> None:
    address = await start(incomplete_frames_limit_bytes=16 << 20)
    streams = [await network.dial(address) for _ in range(3)]
    for stream in streams:
        await stream.send_all(struct.pack(">iI", 15_000_000, 100) + bytes(6_000_000))
    closed = 0
    for stream in streams:
        with trio.move_on_after(1), suppress(trio.BrokenResourceError):
            closed += await stream.receive_some() == b""
    assert closed == 1


async def broker_names(link) -> list[str]:
    answer = await link.request(Command.request(Code.GET_BROKER_CLUSTER_INFO), 5)
    return sorted(ClusterInfo.decode(answer.body).broker_addr_table)


async def test_a_broker_is_removed_as_soon_as_its_connection_closes(autojump_clock, network, start) -> None:
    address = await start()
    async with open_link(address, dial=network.dial) as client:
        async with open_link(address, dial=network.dial) as broker:
            assert (await broker.request(registration("a"), 5)).code == 0
            assert await broker_names(client) == ["a"]
        await wait_all_tasks_blocked()
        assert await broker_names(client) == []


async def test_silent_broker_is_dropped_within_130_s_and_its_connection_closed(autojump_clock, network, start) -> None:
    address = await start(server_channel_max_idle_time_seconds=1000)
    patient = Limits(idle_s=1000)
    async with (
        open_link(address, dial=network.dial, limits=patient) as broker,
        open_link(address, dial=network.dial, limits=patient) as client,
    ):
        await trio.sleep(6)
        await broker.request(registration("a"), 5)
        # Due after 126 s, and looked for after 5, 15, 25, ... s.
        await trio.sleep(119.5)
        assert await broker_names(client) == ["a"]
        await trio.sleep(10)
        assert await broker_names(client) == []
        await wait_all_tasks_blocked()
        assert broker.closed
        assert not client.closed


async def test_idle_connection_is_closed_and_its_broker_dropped(autojump_clock, network, start) -> None:
    address = await start(server_channel_max_idle_time_seconds=60)
    async with open_link(address, dial=network.dial) as broker:
        await broker.request(registration("a"), 5)
        await trio.sleep(62)
        async with open_link(address, dial=network.dial) as client:
            assert await broker_names(client) == []


async def test_unknown_code_is_not_answered_where_4_9_is_copied(autojump_clock, network, start) -> None:
    address = await start(compat="4.9")
    async with open_link(address, dial=network.dial) as link:
        with pytest.raises(AnswerTimeoutError):
            await link.request(Command.request(9999), 3)
        assert await broker_names(link) == []


async def test_unusable_request_is_answered_with_code_1(autojump_clock, network, start) -> None:
    address = await start()
    async with open_link(address, dial=network.dial) as link:
        answer = await link.request(Command.request(Code.UNREGISTER_BROKER, fields={"brokerId": "x"}), 3)
        assert answer.code == 1
        assert answer.remark


async def test_a_cancelled_start_or_stop_leaves_the_port_free(autojump_clock, network) -> None:
    """Each attempt listens on the port of the one before."""
    config = NamesrvConfig(listen_port=9876, kv_config_path="/kv.json", config_store_path="/ns.conf")
    tasks = trio.lowlevel.current_statistics().tasks_living
    for cancel in each_step_of_all_tasks():
        with cancel:
            async with trio.open_nursery() as nursery:
                address = await nursery.start(partial(serve_namesrv, config, listen=network.listen, disk=MemoryDisk()))
                async with open_link(address, dial=network.dial) as broker:
                    assert (await broker.request(registration("a"), 5)).code == 0
                nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
