"""Broadcasting consumers of one machine: each client has its own offsets, named clients also after a restart.

Without a virtual clock, since files are written in threads.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest
import trio

import triomq
from triomq import errors
from triomq._consumer.offset_files import offset_file

Q0 = triomq.MessageQueue("T", "broker-a", 0)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(params=["push", "lite"])
def kind(request):
    return request.param


def fill(cluster, count, first=0):
    for number in range(first, first + count):
        cluster.broker.store("T", 0, b"%d" % number)


def member(client, kind):
    make = client.push_consumer if kind == "push" else client.lite_pull_consumer
    return make("G", model="broadcasting", start_from="earliest")


async def take(consumer, count):
    await consumer.subscribe("T")
    found = []
    with trio.fail_after(60):
        while len(found) < count:
            if isinstance(consumer, triomq.PushConsumer):
                async with await anext(consumer) as delivery:
                    found.append(delivery.message.body)
            else:
                found.append((await anext(consumer)).body)
    return found


async def consume(cluster, kind, count, **options):
    async with cluster.client(**options) as client, member(client, kind) as consumer:
        return await take(consumer, count)


async def test_a_client_without_a_name_is_a_new_instance(group_cluster, home, kind, caplog):
    fill(group_cluster, 5)
    everything = [b"%d" % number for number in range(5)]
    assert await consume(group_cluster, kind, 5) == everything
    assert await consume(group_cluster, kind, 5) == everything
    assert "the offsets of broadcasting group G end with this client, since it has no instance_name" in caplog.text
    assert not (home / ".rocketmq_offsets").exists()


async def test_an_instance_that_registers_again_with_another_address_is_reported(group_cluster, home, kind, caplog):
    """As a container does: its offsets are kept by the address, too."""
    fill(group_cluster, 5)
    assert len(await consume(group_cluster, kind, 5, instance_name="cache-1", client_ip="10.0.0.1")) == 5
    assert len(await consume(group_cluster, kind, 5, instance_name="cache-2", client_ip="10.0.0.2")) == 5
    assert "of another address" not in caplog.text
    assert len(await consume(group_cluster, kind, 5, instance_name="cache-1", client_ip="10.0.0.2")) == 5
    (line,) = [each.message for each in caplog.records if "of another address" in each.message]
    assert "broadcasting group G has no offsets in" in line
    assert f"{offset_file('10.0.0.1@cache-1', 'G')}; open_client(..., client_ip=...) keeps the address" in line
    caplog.clear()
    fill(group_cluster, 1, first=5)
    assert len(await consume(group_cluster, kind, 1, instance_name="cache-1", client_ip="10.0.0.2")) == 1
    assert "of another address" not in caplog.text


async def test_two_readers_at_once_each_get_everything(group_cluster, kind):
    fill(group_cluster, 5)
    async with (
        group_cluster.client() as one,
        group_cluster.client() as two,
        member(one, kind) as first,
        member(two, kind) as second,
    ):
        assert len(await take(first, 5)) == len(await take(second, 5)) == 5


async def test_a_client_s_second_consumer_continues_where_the_first_ended(group_cluster, kind):
    fill(group_cluster, 3)
    async with group_cluster.client() as client:
        async with member(client, kind) as consumer:
            await take(consumer, 3)
        fill(group_cluster, 1, first=3)
        async with member(client, kind) as consumer:
            assert await take(consumer, 1) == [b"3"]


async def test_a_name_finds_its_offsets_again(group_cluster, home, kind):
    fill(group_cluster, 3)
    await consume(group_cluster, kind, 3, instance_name="one")
    fill(group_cluster, 1, first=3)
    assert await consume(group_cluster, kind, 1, instance_name="one") == [b"3"]
    assert await consume(group_cluster, kind, 4, instance_name="two") == [b"0", b"1", b"2", b"3"]
    found = sorted(path.parent.parent.name for path in home.glob(".rocketmq_offsets/*/G/offsets.json"))
    assert found == ["10.0.0.1@one", "10.0.0.1@two"]


async def test_a_second_instance_of_the_same_name_is_reported(group_cluster, kind):
    fill(group_cluster, 3)
    async with (
        group_cluster.client(instance_name="one") as one,
        group_cluster.client(instance_name="one") as two,
    ):
        async with member(one, kind) as first:
            await take(first, 3)
            with pytest.raises(
                errors.InvalidCall, match=rf"in use by another consumer, of process {os.getpid()}.*name"
            ):
                async with member(two, kind):
                    pass
        # The first one has left.
        fill(group_cluster, 1, first=3)
        async with member(two, kind) as second:
            assert await take(second, 1) == [b"3"]


HOLD_FILE = """
import sys, trio, triomq

async def main():
    store = triomq.plugins.FileOffsets(sys.argv[1])
    await store.claim()
    print("claimed", flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


async def test_another_process_of_the_same_name_is_reported(group_cluster, kind):
    fill(group_cluster, 1)
    path = offset_file("10.0.0.1@one", "G")
    process = await trio.lowlevel.open_process([sys.executable, "-c", HOLD_FILE, str(path)], stdout=subprocess.PIPE)
    try:
        assert (await process.stdout.receive_some()).startswith(b"claimed")
        async with group_cluster.client(instance_name="one") as client:
            with pytest.raises(errors.InvalidCall, match=rf"in use by another consumer, of process {process.pid}"):
                async with member(client, kind):
                    pass
    finally:
        process.kill()
        await process.wait()
    # A process that was killed holds nothing.
    assert await consume(group_cluster, kind, 1, instance_name="one") == [b"0"]


async def test_two_stores_of_one_file(tmp_path):
    path = tmp_path / "offsets.json"
    first, second = triomq.plugins.FileOffsets(path), triomq.plugins.FileOffsets(path)
    await first.commit({Q0: 1})
    with pytest.raises(errors.InvalidCall, match="in use by another consumer"):
        await second.commit({Q0: 2})
    first.close()
    await second.commit({Q0: 2})
    assert await triomq.plugins.FileOffsets(path).read(Q0) == 2


async def test_a_user_without_a_home(group_cluster, kind, monkeypatch, tmp_path):
    """As a bare number of a user in a container, of which the system knows nothing."""

    def unknown(number):
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    async with group_cluster.client(instance_name="named") as client:
        with pytest.raises(errors.InvalidCall, match=r"group G cannot be in ~/\.rocketmq_offsets.*set the .* HOME"):
            member(client, kind)
        store = triomq.plugins.FileOffsets(tmp_path / "offsets.json")
        async with client.push_consumer(
            "G", model="broadcasting", start_from="earliest", offset_store=store
        ) as consumer:
            fill(group_cluster, 1)
            assert await take(consumer, 1) == [b"0"]
