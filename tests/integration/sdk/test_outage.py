"""Administrative calls and commands while broker sets have no master: they report "unknown", and never zero."""

from __future__ import annotations

import json

import pytest
import trio

import triomq
from triomq_server.cluster import open_cluster


@pytest.fixture
async def cluster():
    async with open_cluster(masters=2, settings={"mappedFileSizeCommitLog": "4194304"}) as running:
        yield running


async def is_stored(consumer, queue):
    """Whether the slave has the queue's last message; it learns of the topic on its own."""
    try:
        return len(await consumer.pull(queue, 2)) > 0
    except triomq.errors.TopicNotFound:
        return False


@pytest.fixture
async def filled(client):
    """Topic T: one queue per broker, three messages in each; group G has committed one of each."""
    await client.admin.create_topic("T", queues=1)
    queues = [triomq.MessageQueue("T", name, 0) for name in ("broker-a", "broker-b")]
    producer = client.producer("P")
    for queue in queues:
        for _ in range(3):
            await producer.send(triomq.Message("T", b"x"), queue=queue)
    # A slave has what was stored when its end says so.
    async with client.pull_consumer("slow", read_preference="slave") as consumer:
        for queue in queues:
            with trio.fail_after(120):
                while not await is_stored(consumer, queue):  # noqa: ASYNC110 - a slave has no event for this
                    await trio.sleep(0.05)
    # Members are online until the client has closed: the group is one that brokers know.
    async with client.lite_pull_consumer("G", auto_commit=False) as consumer:
        await consumer.subscribe("T")
        await consumer.commit({})
    await client.groups.set_offsets("G", dict.fromkeys(queues, 1))


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


async def test_one_set_without_a_master(cluster, client, filled, call):
    assert (await client.groups.progress("G")).lag == 4
    assert (await call("groups"))[0] == 0
    await cluster["broker-a"].stop()
    progress = await client.groups.progress("G")
    assert progress.lag is None
    assert list(progress.without_master) == ["broker-a"]
    assert progress.lag_of(triomq.MessageQueue("T", "broker-b", 0)) == 2
    stats = await client.admin.topic_stats("T")
    assert list(stats.without_master) == ["broker-a"]
    # The slave knows the queue.
    assert stats.offset_table[triomq.MessageQueue("T", "broker-a", 0)].max_offset == 3
    for arguments in (["groups"], ["groups", "G"], ["offsets", "show", "G"], ["topics"], ["topics", "T"]):
        code, out, err = await call(*arguments)
        assert (code, "broker broker-a: no master is registered" in err) == (1, True), (arguments, out, err)
        assert "broker-b:" not in err
    _, out, _ = await call("groups", "--json")
    (row,) = [row for row in rows(out) if row["group"] == "G"]
    assert (row["lag"], row["without_master"]) == (None, ["broker-a"])
    assert "unknown" in (await call("groups"))[1]
    _, out, _ = await call("offsets", "show", "G", "T", "--json")
    assert {row["broker"]: row["lag"] for row in rows(out)}["broker-b"] == 2
    assert [row["lag"] for row in rows(out) if row["broker"] == "broker-a"] in ([], [None])


async def test_no_set_has_a_master(cluster, client, filled, call):
    for name in ("broker-a", "broker-b"):
        await cluster[name].stop()
    assert (await client.groups.progress("G")).lag is None
    for arguments in (["groups"], ["groups", "G"], ["offsets", "show", "G"], ["offsets", "show", "G", "T"], ["topics"],
                      ["topics", "T"], ["cluster-status"]):  # fmt: skip
        code, out, err = await call(*arguments)
        assert code == 1, (arguments, out, err)
        for name in ("broker-a", "broker-b"):
            assert f"broker {name}: no master is registered" in err, (arguments, out, err)
        assert "has no offsets" not in err
        assert "no broker knows" not in err


async def test_no_broker_at_all(cluster, client, call):
    for name in ("broker-a", "broker-a-s", "broker-b", "broker-b-s"):
        await cluster[name].stop()
    for arguments in (["groups"], ["offsets", "show", "G"], ["topics"], ["cluster-status"]):
        code, out, err = await call(*arguments)
        assert (code, "no broker is registered" in err) == (1, True), (arguments, out, err)
