"""`triomq doctor` and client.doctor on clusters that are healthy, and that a test has broken."""

# ruff: noqa: ASYNC110 - what is waited for happens in servers

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout

import pytest
import trio

import triomq
from triomq._cli.messages import run as run_command
from triomq_server.cluster import open_cluster

SMALL = {"mappedFileSizeCommitLog": "4194304", "flushDiskType": "SYNC_FLUSH"}


@asynccontextmanager
async def cluster_and_client(**options):
    settings = SMALL | options.pop("settings", {})
    async with (
        open_cluster(settings=settings, **options) as cluster,
        triomq.open_client(cluster.name_servers, route_wait_s=0) as client,
    ):
        yield cluster, client


async def until_found(client, kind, **options):
    """The finding of a kind, as soon as there is one."""
    with trio.fail_after(90):
        while True:
            found = [each for each in await client.doctor.findings(**options) if each.kind == kind]
            if found:
                return found[0]
            await trio.sleep(0.2)


async def until_gone(client):
    """All findings, when there are none any more but that of an installation without a C compiler."""
    with trio.fail_after(60):
        while found := [each for each in await client.doctor.findings() if each.kind != "not_compiled"]:
            await trio.sleep(0.2)
    return found


async def send(client, topic, count, queues=1):
    await client.admin.create_topic(topic, queues=queues)
    async with client.producer("fill") as producer:
        for n in range(count):
            await producer.send(triomq.Message(topic, b"m%d" % n))


async def test_a_healthy_cluster_has_no_findings():
    async with cluster_and_client(masters=2, slaves=1, name_servers=2) as (_, client):
        await send(client, "T", 5)
        assert await until_gone(client) == []
        snapshot = await client.doctor.look()
        assert {broker.label.partition(" ")[0] for broker in snapshot.brokers} == {
            "broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1",
        }  # fmt: skip
        assert all(abs(broker.clock_ms) < 2000 for broker in snapshot.brokers)
        assert all(broker.setting("brokerRole") for broker in snapshot.brokers)
        # The heartbeat that shows the clock leaves nothing behind.
        assert "triomq_doctor" not in await client.groups.names()


async def test_1_a_dead_name_server():
    async with cluster_and_client(slaves=1, name_servers=2) as (cluster, client):
        await cluster["namesrv-1"].stop()
        found = await until_found(client, "name_server_dead")
        assert found.what.startswith(f"Name server {cluster['namesrv-1'].address} does not answer:")


async def test_2_and_3_name_servers_disagree_and_an_id_is_there_twice():
    async with open_cluster(slaves=0, settings=SMALL) as one, open_cluster(slaves=0, settings=SMALL) as other:
        both = f"{one.name_servers};{other.name_servers}"
        async with triomq.open_client(both, route_wait_s=0) as client:
            found = await until_found(client, "name_servers_disagree")
            assert "broker-a:0 is at " in found.what
            found = await until_found(client, "id_contested")
            first, second = sorted((one["broker-a"].address, other["broker-a"].address))
            assert found.what.startswith(f"{first} and {second} have the same name broker-a and the same broker id")


async def test_4_a_set_without_master():
    async with cluster_and_client(slaves=1) as (cluster, client):
        await cluster["broker-a"].stop()
        found = await until_found(client, "no_master")
        assert found.what == (
            f"Broker set broker-a has no master; broker-a:1 ({cluster['broker-a-s'].address}) cannot take messages."
        )
        assert "triomq admin role" in found.cure


async def test_5_a_slave_whose_master_has_lost_its_disk(tmp_path):
    settings = {"followOtherMaster": "false"}
    async with cluster_and_client(slaves=1, directory=tmp_path, settings=settings) as (cluster, client):
        await send(client, "T", 20)
        assert await until_gone(client) == []
        await cluster["broker-a"].stop()
        shutil.rmtree(tmp_path / "broker-a")
        await cluster["broker-a"].start()
        found = await until_found(client, "slave_diverged")
        assert f"Slave broker-a:1 ({cluster['broker-a-s'].address}) has " in found.what


async def test_6_members_with_different_subscriptions():
    async with cluster_and_client(slaves=1) as (cluster, client):
        await send(client, "T", 1, queues=4)
        async with (
            triomq.open_client(cluster.name_servers, instance_name="x") as other,
            client.push_consumer("G", drain_s=1) as one,
            other.push_consumer("G", drain_s=1) as two,
        ):
            await one.subscribe("T", "a")
            await two.subscribe("T", "b")
            found = await until_found(client, "subscriptions_differ")
            assert found.what.startswith("The members of group G have different subscriptions (")
            assert ": T a" in found.what
            assert ": T b" in found.what


MEMBER = """
import sys, trio, triomq
async def main():
    async with triomq.open_client(sys.argv[1]) as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async for delivery in consumer:
                print("got", flush=True)
                await trio.sleep_forever()
trio.run(main)
"""


async def test_7_a_member_that_is_stopped():
    async with cluster_and_client(slaves=1) as (cluster, client):
        await send(client, "T", 3)
        member = await trio.to_thread.run_sync(
            lambda: subprocess.Popen([sys.executable, "-c", MEMBER, cluster.name_servers], stdout=subprocess.PIPE)
        )
        try:
            with trio.fail_after(60):
                assert await trio.to_thread.run_sync(member.stdout.readline, abandon_on_cancel=True) == b"got\n"
            member.send_signal(signal.SIGSTOP)
            found = await until_found(client, "member_silent")
            assert "of group G at 127.0.0.1:" in found.what
            assert "SIGSTOP" in found.cure
        finally:
            member.kill()
            member.wait()
            member.stdout.close()


async def test_8_settings_topics_and_lag():
    async with cluster_and_client(masters=2, slaves=0, sync_replication=True) as (_, client):
        assert "is a SYNC_MASTER and has no slave" in (await until_found(client, "sync_without_slave")).what
        await client.admin.create_topic("U", brokers=["broker-b"])
        found = await until_found(client, "topics_missing")
        assert "lacks 1 topic that others of cluster DefaultCluster have: U;" in found.what
        async with client.pull_consumer("G") as consumer, client.producer("fill") as producer:
            for _ in range(3):
                await producer.send(triomq.Message("U", b"x"))
            for each in await consumer.fetch_queues("U"):
                await consumer.pull(each, 0)
                consumer.seek(each, 0)
                await consumer.commit(each)
            found = await until_found(client, "lag", limits=triomq.admin.FindingLimits(lag=3))
            assert found.what.startswith("Group G lags by 3 messages, ")


async def test_time_is_bounded_and_unknown_values_are_reported():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    silent = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    async with open_cluster(slaves=0, settings=SMALL) as cluster, listener:
        both = f"{cluster.name_servers};{silent}"
        async with triomq.open_client(both, route_wait_s=0) as client:
            # On a busy machine the servers that do answer need longer, too.
            for timeout_s in (0.5, 5, 20):
                with trio.fail_after(30):
                    try:
                        snapshot = await client.doctor.look(timeout_s=timeout_s)
                    except triomq.errors.NoNameServer:
                        continue
                without_answer = [server.address for server in snapshot.name_servers if server.error]
                if without_answer == [silent]:
                    break
            assert without_answer == [silent]
            assert snapshot.unknown == (f"The cluster could not be looked at wholly within {timeout_s:g} s.",)


@pytest.fixture
def call(monkeypatch):
    async def call(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), trio.fail_after(120):
            code = await trio.to_thread.run_sync(run_command, list(arguments))
        return code, out.getvalue(), err.getvalue()

    return call


async def test_the_command(call):
    async with cluster_and_client(slaves=1) as (cluster, client):
        await until_gone(client)
        # Not the notice of an installation without a C compiler.
        assert await call("doctor", "-n", cluster.name_servers, "--problems") == (0, "The cluster is healthy.\n", "")
        await cluster["broker-a"].stop()
        code, out, _ = await call("doctor", "-n", cluster.name_servers, "--problems")
        assert (code, out.splitlines()[-1]) == (1, "1 problem, no notices")
        assert out.startswith("PROBLEM Broker set broker-a has no master;")
        code, out, _ = await call("doctor", "-n", cluster.name_servers, "--problems", "--json")
        row = json.loads(out)
        assert (code, row["level"], row["kind"], row["about"]) == (1, "problem", "no_master", "broker-a")
        address = cluster.name_servers
    code, out, err = await call("doctor", "-n", address)
    assert (code, out) == (2, "")
    assert "no name server answers" in err


async def test_an_offset_beyond_the_end(call):
    """As after the loss of a master whose last messages its slave did not have."""
    async with cluster_and_client(slaves=0) as (cluster, client):
        await send(client, "T", 2)
        queue = triomq.MessageQueue("T", "broker-a", 0)
        await client.groups.set_offsets("G", {queue: 2})
        assert not [each for each in await client.doctor.findings() if each.kind == "offset_beyond_end"]
        async with client.pull_consumer("G") as consumer:
            assert len((await consumer.pull(queue, 0)).messages) == 2
            await consumer.commit(queue, 5)
        found = await until_found(client, "offset_beyond_end")
        assert found.what.startswith(
            "Group G has committed offset 5 of queue 0 of T on broker-a, which ends at 2: members go on at the end"
        )
        code, out, err = await call("offsets", "show", "G", "-n", cluster.name_servers)
        assert (code, len(out.splitlines())) == (0, 3)
        assert err.startswith("1 committed offset is beyond the queue's end: members go on at the end that a queue has")
