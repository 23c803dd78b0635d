"""Operators' queries by our SDK and commands, to the real 4.9.7 and to ours: stored messages, dead letters, doctor."""

# ruff: noqa: ASYNC110 - what is waited for happens in other processes

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

import triomq
from triomq.errors import BrokerFault, InvalidCall, NotFound
from triomq_benchmarks.clusters.servers import Kind

pytestmark = pytest.mark.parametrize("either", [Kind.OURS, Kind.JAVA, "java5"], indirect=True)


@pytest.fixture
async def client(either: Any) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(either.namesrv.address) as client:
        yield client


@pytest.fixture
def version(request: pytest.FixtureRequest) -> str:
    """As the broker of `either` names it."""
    return "V5_5_0" if request.node.callspec.params["either"] == "java5" else "V4_9_7"


async def test_stored_messages(client: triomq.Client, topic: str) -> None:
    await client.admin.create_topic(topic, queues=1)
    async with client.producer(f"p-{topic}", send_timeout_s=60) as producer:
        sent = [
            await producer.send(triomq.Message(topic, b"m%d" % n, tags="AB"[n % 2], keys=["all", f"k{n}"]))
            for n in range(6)
        ]
    found = await client.messages.by_id(sent[2].offset_message_id)
    assert (found.body, found.queue, found.queue_offset) == (b"m2", sent[2].queue, 2)
    offset = int(sent[2].offset_message_id[16:], 16)
    for wrong in (offset + 5, 1 << 40):
        with pytest.raises(NotFound):
            await client.messages.by_id(f"{sent[2].offset_message_id[:16]}{wrong:016X}")
    with trio.fail_after(120):
        while len(everything := await client.messages.by_key(topic, "all")) < 6:
            await trio.sleep(0.05)
    assert [each.body for each in everything] == [b"m%d" % n for n in range(6)]
    last_ms = everything[-1].stored_ms
    assert everything[-1].body in [each.body for each in await client.messages.by_key(topic, "all", start_ms=last_ms)]
    assert [each.body for each in await client.messages.by_unique_key(topic, sent[4].message_id)] == [b"m4"]
    assert (await client.messages.at(sent[0].queue, 3)).body == b"m3"
    assert [each.body for each in await client.messages.by_time(sent[0].queue, 0, max_messages=2)] == [b"m0", b"m1"]


@pytest.mark.parametrize("perm", [4, 6])
async def test_a_topic_keeps_the_permission_that_its_route_hides(client: triomq.Client, topic: str, perm: int) -> None:
    async def on_route() -> list[tuple[int, int]]:
        return [(each.perm, each.write_queue_nums) for each in (await client.admin.route(topic)).queue_datas or []]

    async def until(wanted: tuple[int, int]) -> None:
        with trio.fail_after(120):
            while await on_route() != [wanted]:
                await trio.sleep(0.05)

    await client.admin.create_topic(topic, queues=1, perm=perm)
    await until((perm, 1))
    (name,) = await client.admin.broker_sets()
    await client.servers.set_write_permission(name, allowed=perm == 4)
    await until((10 - perm, 1))
    await client.admin.create_topic(topic, queues=2, perm=None)
    await until((perm, 2))
    await client.servers.set_write_permission(name, allowed=True)


async def test_tracks_and_resend(client: triomq.Client, topic: str) -> None:
    await client.admin.create_topic(topic, queues=1)
    async with client.producer(f"p-{topic}", send_timeout_s=60) as producer:
        sent = [await producer.send(triomq.Message(topic, b"m%d" % n, tags="AB"[n % 2])) for n in range(4)]
    group = f"G-{topic}"[:80]
    seen: list[tuple[str, bytes]] = []

    async def handle(message: triomq.ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append((message.topic, message.body))

    first, second = [await client.messages.by_id(each.offset_message_id) for each in sent[:2]]
    async with client.push_consumer(group, start_from="earliest", drain_s=1) as consumer:
        await consumer.subscribe(topic, "A")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            with trio.fail_after(120):
                while [each.track for each in await client.messages.tracks(first)] != [triomq.admin.TrackType.CONSUMED]:
                    await trio.sleep(0.1)
            (track,) = await client.messages.tracks(second)
            assert (track.group, track.track.value) == (group, "CONSUMED_BUT_FILTERED")
            result = await client.messages.consume_directly(second, group, client.client_id)
            assert result.consume_result == "CR_SUCCESS"
            assert seen[-1] == (topic, b"m1")
            await client.messages.resend(first, group)
            with trio.fail_after(120):
                while seen.count((topic, b"m0")) < 2:
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()


async def test_dead_letters(client: triomq.Client, topic: str) -> None:
    await client.admin.create_topic(topic, queues=1)
    group = f"G-{topic}"[:80]
    async with client.producer(f"p-{topic}", send_timeout_s=60) as producer:
        for n in range(5):
            await producer.send(triomq.Message(topic, b"m%d" % n, keys=f"k{n}"))
    refuse = True
    seen: list[tuple[str, bytes, int]] = []

    async def handle(message: triomq.ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        if refuse:
            raise ValueError("not yet")
        seen.append((message.topic, message.body, message.reconsume_times))

    retries = triomq.ConsumeRetries(max_times=0)
    async with client.push_consumer(group, start_from="earliest", drain_s=1, retries=retries) as consumer:
        await consumer.subscribe(topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            with trio.fail_after(120):
                while await client.dead_letters.count(group) < 5:
                    await trio.sleep(0.1)
            letters = await client.dead_letters.read(group)
            assert {letter.origin_topic for letter in letters} == {topic}
            assert {letter.reason for letter in letters} == {"failed, or took too long, 1 time"}
            refuse = False
            assert await client.dead_letters.redrive(group, limit=2) == 2
            assert await client.dead_letters.redrive(group, to="group") == 3
            assert await client.dead_letters.redrive(group) == 0
            with trio.fail_after(120):
                while len(seen) < 5:
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    assert sorted(seen) == [(topic, b"m%d" % n, 0) for n in range(5)]
    assert [letter.redriven for letter in await client.dead_letters.read(group)] == [True] * 5


async def test_doctor(client: triomq.Client, version: str, topic: str) -> None:
    await client.admin.create_topic(topic, queues=3)
    snapshot = await client.doctor.look()
    (broker,) = snapshot.brokers
    assert (broker.is_master, broker.error, snapshot.unknown) == (True, "", ())
    assert broker.runtime["brokerVersionDesc"] == version
    assert broker.clock_ms is not None
    assert abs(broker.clock_ms) < 2000 + broker.clock_error_ms
    assert broker.topics[topic].read_queues == 3
    # Brokers of this suite have a disk of their own and no slave.
    kinds = {each.kind for each in await client.doctor.findings()}
    assert kinds <= {"one_copy", "disk_full", "disk_filling", "lag"}, kinds
    group = f"G-{topic}"[:80]
    async with client.push_consumer(group, start_from="earliest", drain_s=1) as consumer:
        await consumer.subscribe(topic, "a")
        with trio.fail_after(120):
            while True:
                found = [each for each in (await client.doctor.look()).groups if each.name == group]
                if found and found[0].members and found[0].members[0].subscriptions:
                    break
                await trio.sleep(0.2)
    (member,) = found[0].members or ()
    assert (member.client_id, (member.subscriptions or {}).get(topic)) == (client.client_id, "a")


async def test_name_servers_and_statistics(either: Any, client: triomq.Client, topic: str) -> None:
    await client.admin.create_topic(topic, queues=1)
    (name,) = await client.admin.broker_sets()
    address = either.namesrv.address
    before = (await client.servers.name_server_config())[address]["orderMessageEnable"]
    other = "true" if before == "false" else "false"
    changed = {address: {"orderMessageEnable": other}}
    assert await client.servers.set_name_server_config(changed[address]) == changed
    assert await client.servers.set_name_server_config({"orderMessageEnable": before}) != {address: {}}
    with pytest.raises(InvalidCall, match="has no setting noSuchSetting"):
        await client.servers.set_name_server_config({"noSuchSetting": "1"})
    async with client.producer(f"p-{topic}", send_timeout_s=60) as producer:
        sent = [await producer.send(triomq.Message(topic, b"m%d" % n, tags="A")) for n in range(4)]
    queue = triomq.MessageQueue(topic, name, 0)
    entries: list[triomq.admin.QueueEntry] = []
    with trio.fail_after(60):
        while len(entries) < 3:
            await trio.sleep(0.05)
            with contextlib.suppress(NotFound):  # the real broker's answer until its dispatcher has written the first
                entries = await client.messages.entries(queue, 1)
    assert [each.offset for each in entries] == [1, 2, 3]
    assert [each.physical_offset for each in entries] == [int(each.offset_message_id[16:], 16) for each in sent[1:]]
    assert {each.tags_code for each in entries} == {ord("A")}
    with pytest.raises(NotFound):
        await client.messages.entries(queue, 9)
    group = f"G-{topic}"[:80]
    got: list[bytes] = []

    async def handle(message: triomq.ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        got.append(message.body)

    async with client.push_consumer(group, start_from="earliest", drain_s=1) as consumer:
        await consumer.subscribe(topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            with trio.fail_after(120):
                while len(got) < 4:
                    await trio.sleep(0.05)
                while (await client.servers.consume_stats(name)).get(group, {}).get(queue) is None:
                    await trio.sleep(0.2)
            assert (await client.groups.owners(group))[queue] == client.client_id
            (traffic,) = await client.groups.traffic(topic)
            assert (traffic.topic, traffic.group) == (topic, group)
            nursery.cancel_scope.cancel()
    with pytest.raises(NotFound):
        await client.groups.owners(f"none-{topic}"[:80])


async def test_servers(either: Any, client: triomq.Client, version: str, topic: str) -> None:
    await client.admin.create_topic(topic, queues=2)
    (name,) = await client.admin.broker_sets()
    with trio.fail_after(120):
        while True:
            try:
                status = await client.servers.status(name)
                break
            except BrokerFault:  # the real broker's answer until it has taken its first sample of itself
                await trio.sleep(0.1)
    assert status["brokerVersionDesc"] == version
    before = (await client.servers.config(name))["fileReservedTime"]
    assert await client.servers.set_config(name, {"fileReservedTime": "71"}) == {"fileReservedTime": "71"}
    assert await client.servers.set_config(name, {"fileReservedTime": before}) == {"fileReservedTime": before}
    with pytest.raises(InvalidCall, match="has no setting noSuchSetting"):
        await client.servers.set_config(name, {"noSuchSetting": "1"})
    await client.servers.kv_put("OPERATORS", topic, "v")
    assert await client.servers.kv_get("OPERATORS", topic) == "v"
    assert (await client.servers.kv_list("OPERATORS"))[topic] == "v"
    await client.servers.kv_delete("OPERATORS", topic)
    with pytest.raises(NotFound):
        await client.servers.kv_get("OPERATORS", topic)
    async with (
        triomq.open_client(either.namesrv.address, heartbeat_every_s=0.2) as other,
        other.producer(f"p-{topic}", send_timeout_s=60) as producer,
    ):
        await producer.send(triomq.Message(topic, b"x"))
        with trio.fail_after(120):
            while f"p-{topic}" not in (await client.servers.producers(name)).data:
                await trio.sleep(0.05)
    for what in ("queues", "topics", "log"):
        await client.servers.clean(name, what)
