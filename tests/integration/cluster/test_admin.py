"""`triomq admin` on a real cluster: what it shows, and what it changes."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from memory_network import MemoryNetwork

import triomq
from triomq._cli.messages import run as run_client_command
from triomq_server.admin.asking import AdminError
from triomq_server.admin.members import Member
from triomq_server.admin.replication import replication, slave_state, state_of
from triomq_server.admin.roles import change_role
from triomq_server.cluster import open_cluster
from triomq_server.cluster.nodes import run_node
from triomq_server.ports import free_ports
from triomq_server.wire import open_link

Command = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]


@pytest.fixture
def command(call: Callable[..., subprocess.CompletedProcess[str]]) -> Command:
    """`triomq admin ...` in a thread."""

    async def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await trio.to_thread.run_sync(partial(call, "admin", *arguments))

    return command


async def states(name_servers: str) -> dict[str, str]:
    rows = await replication(name_servers)
    return {f"{row.member.name}:{row.member.broker_id}": slave_state(row, rows) for row in rows}


async def eventually(name_servers: str, wanted: dict[str, str]) -> None:
    for _ in range(1200):
        if await states(name_servers) == wanted:
            return
        await trio.sleep(0.1)
    assert await states(name_servers) == wanted


async def test_show_and_change(command: Command) -> None:
    async with open_cluster() as cluster:
        servers = cluster.name_servers
        await eventually(servers, {"broker-a:0": "", "broker-a:1": "CLEAN"})
        async with triomq.open_producer(servers, "admin") as producer:
            await producer.send(triomq.Message("admin", b"first"))
            await eventually(servers, {"broker-a:0": "", "broker-a:1": "CLEAN"})

        refused = await command("role", "broker-a:1", "master", "-n", servers)
        assert refused.returncode == 1
        assert "is registered as the master of broker-a" in refused.stderr
        shown = await command("ha", "-n", servers, "--json")
        assert {row["state"] for row in json.loads(shown.stdout)} == {"", "CLEAN"}

        demoted = await command("role", "broker-a:0", "slave", "-n", servers, "--id", "7")
        first = cluster["broker-a"].address
        assert (demoted.returncode, demoted.stdout.splitlines()[0]) == (0, f"{first} is slave now, as broker-a:7")
        done = await command("role", "broker-a:1", "sync-master", "-n", servers)
        second = cluster["broker-a-s"].address
        assert done.stdout.startswith(f"{second} is sync-master now, as broker-a:0\n"), done.stderr
        assert done.returncode == 0
        again = await command("role", "broker-a:7", "slave", "-n", servers, "--id", "7", "--json")
        assert json.loads(again.stdout) | {"keptIn": None} == {
            "name": "broker-a", "id": 7, "address": first, "role": "slave", "keptIn": None,
        }  # fmt: skip
        await eventually(servers, {"broker-a:0": "", "broker-a:7": "CLEAN"})
        async with triomq.open_producer(servers, "admin") as producer:
            sent = await producer.send(triomq.Message("admin", b"second"))
            assert sent.status == triomq.SendStatus.SEND_OK, "the old master has it too"
        text = (await command("ha", "-n", servers)).stdout
        assert [line.split()[:2] for line in text.splitlines()] == [
            ["BROKER", "ID"],
            ["broker-a", "0"],
            ["broker-a", "7"],
        ]
        assert "SYNC_MASTER" in text
        assert "CLEAN" in text


async def test_two_brokers_with_one_id_are_both_listed(command: Command, tmp_path: Path) -> None:
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        first = cluster["broker-a-s"].plan
        (port,) = free_ports(1)
        properties = {**first.properties, "listenPort": str(port), "storePathRootDir": str(tmp_path)}
        second = attrs.evolve(first, address=f"127.0.0.1:{port}", properties=properties, directory=tmp_path)
        await nursery.start(run_node, second)
        shown = await command("ha", "-n", cluster.name_servers, "--json")
        listed = {row["address"]: row["id"] for row in json.loads(shown.stdout)}
        assert listed == {cluster["broker-a"].address: 0, first.address: 1, second.address: 1}
        assert shown.returncode == 1
        one, other = sorted((first.address, second.address))
        assert f"broker-a:1 is the id of {one} and of {other}" in shown.stderr
        refused = await command("role", second.address, "master", "-n", cluster.name_servers, "--force")
        assert refused.returncode == 1
        assert f"contested: {first.address} has it too" in refused.stderr
        arguments = ["cluster-status", "-n", cluster.name_servers]
        assert await trio.to_thread.run_sync(partial(run_client_command, arguments)) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP, this is a web server's port"),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "the peer speaks TLS: give --tls \\("),
        (b"", "it may be a web server or expect TLS"),
        (b"\x00\x00\x00\x01abcde", "its bytes are not RocketMQ frames: .*; it may be a web server or expect TLS"),
        (None, "does not answer within 5 s"),
    ],
)
async def test_an_address_that_is_no_name_server_is_named(
    answer: bytes | None, named: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            await stream.receive_some()
            if answer is None:
                await trio.sleep_forever()
            elif answer:
                await stream.send_all(answer)

    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        listeners = list(await network.listen("127.0.0.1", 80))
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        with pytest.raises(AdminError, match=rf"127\.0\.0\.1:80: .*{named}"):
            await replication("127.0.0.1:80", partial(open_link, dial=network.dial))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP, this is a web server's port"),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "the peer speaks TLS"),
        (None, "does not answer within 30 s: it may be a name server, or hang"),
    ],
)
async def test_an_order_to_an_address_without_a_broker_names_why_it_failed(
    answer: bytes | None, named: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            await stream.receive_some()
            if answer is None:
                await trio.sleep_forever()
            await stream.send_all(answer)

    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        listeners = list(await network.listen("127.0.0.1", 80))
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        open_there = partial(open_link, dial=network.dial)
        with pytest.raises(AdminError, match=rf"127\.0\.0\.1:80: .*{named}"):
            await change_role("127.0.0.1:9", "127.0.0.1:80", "SLAVE", open_link=open_there)
        nursery.cancel_scope.cancel()


async def test_a_broker_that_hangs_is_reported_in_a_line(autojump_clock: trio.testing.MockClock) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            await trio.sleep_forever()

    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        listeners = list(await network.listen("127.0.0.1", 80))
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        row = await state_of(Member("a", 0, "127.0.0.1:80"), partial(open_link, dial=network.dial))
        assert row.error == (
            "it does not answer within 5 s: it may be a name server, or hang: look at its process and its log"
        )
        assert row.may_run
        nursery.cancel_scope.cancel()


async def test_a_port_on_which_nothing_listens_is_no_broker_that_hangs() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        row = await state_of(Member("a", 0, f"127.0.0.1:{unused.getsockname()[1]}"), open_link)
    assert row.error is not None
    assert not row.may_run


async def test_a_broker_is_named_by_the_host_name_of_its_address() -> None:
    async with open_cluster(slaves=0) as cluster:
        _, _, port = cluster["broker-a"].address.rpartition(":")
        for name_servers in (cluster.name_servers, "127.0.0.1:1"):  # nothing listens at the second
            now = await change_role(name_servers, f"localhost:{port}", "ASYNC_MASTER")
            assert (now.broker_name, now.broker_id) == ("broker-a", 0)
        with pytest.raises(AdminError, match="no broker broker-x:0; the brokers are: broker-a:0 at 127"):
            await change_role(cluster.name_servers, "broker-x:0", "SLAVE")


async def test_wrong_names_are_errors(command: Command) -> None:
    async with open_cluster(slaves=0) as cluster:
        with pytest.raises(AdminError, match="no broker broker-x; the brokers are: broker-a:0 at 127"):
            await change_role(cluster.name_servers, "broker-x", "SLAVE")
        broker = cluster["broker-a"].address
        with pytest.raises(
            AdminError, match=f"{broker} does not know a name server's requests: it looks like a broker"
        ):
            await replication(broker)
        unreachable = await command("ha", "-n", "127.0.0.1:1")
        assert unreachable.returncode == 1
        assert "no name server answers" in unreachable.stderr
        # Before the question, for which there is no terminal here.
        for arguments in (["broker-a"], ["broker-a", "--yes"]):
            nothing = await command("cut", *arguments, "-n", cluster.name_servers)
            assert (nothing.returncode, "only a slave's log can be cut" in nothing.stderr) == (1, True)
        nobody = await command("cut", "broker-x", "-n", cluster.name_servers)
        assert (nobody.returncode, "no broker broker-x; the brokers are: broker-a:0" in nobody.stderr) == (1, True)
