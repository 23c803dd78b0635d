"""The real mqadmin on groups of our members, on the real broker and on ours: progress, connection, status, reset."""

# ruff: noqa: ASYNC110 - what is waited for happens in other processes

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trio

import triomq
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.servers import Kind

MESSAGES = 20


@pytest.fixture(scope="module", params=[Kind.OURS, Kind.JAVA])
def target(request: pytest.FixtureRequest, servers: Any) -> Iterator[SingleBroker]:
    kind = request.param
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"{kind}-operators-namesrv"))
        serving = stack.enter_context(servers.broker(kind, f"{kind}-operators-broker", names.address, {}))
        yield SingleBroker(kind, names, serving)


@pytest.fixture
async def client(target: SingleBroker, topic: str) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(target.namesrv.address) as opened:
        await opened.admin.create_topic(topic, queues=2)
        async with opened.producer("operators-fill") as producer:
            for number in range(MESSAGES):
                await producer.send(triomq.Message(topic, b"%03d" % number))
        yield opened


@pytest.fixture
def mqadmin(java_client: Any, target: SingleBroker) -> Callable[..., Any]:
    async def call(*arguments: str) -> str:
        return str(await trio.to_thread.run_sync(lambda: java_client.admin(target.namesrv.address, *arguments)))

    return call


async def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    with trio.fail_after(limit_s):
        while not condition():
            await trio.sleep(0.05)


async def until_committed(client: triomq.Client, group: str, topic: str) -> None:
    """Wait until the brokers have an offset of the group for each of the two queues, at the queue's end."""
    with trio.fail_after(120):
        while True:
            found = await client.groups.progress(group, topic)
            if len(found) == 2 and all(each.consumer_offset == each.broker_offset for each in found.values()):
                return
            await trio.sleep(0.2)


def lags(progress: str, topic: str) -> list[tuple[int, int, int]]:
    """(committed, end, difference) of each queue in what consumerProgress printed."""
    rows = re.findall(rf"^{re.escape(topic)}\s+\S+\s+\d+\s+(\d+)\s+(\d+)\s+(\d+)", progress, flags=re.MULTILINE)
    return [(int(committed), int(end), int(difference)) for end, committed, difference in rows]


async def test_push_members_answer_operators(client: triomq.Client, topic: str, mqadmin: Any) -> None:
    group = topic.replace("T-", "G-", 1)[:80]
    seen: list[bytes] = []

    async def handle(message: triomq.ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message.body)

    async with (
        client.push_consumer(group, start_from="earliest", drain_s=2) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe(topic)
        nursery.start_soon(consumer.run, handle)
        await until(lambda: len(seen) == MESSAGES)
        await until_committed(client, group, topic)
        progress = lags(await mqadmin("consumerProgress", "-g", group), topic)
        assert len(progress) == 2
        assert all(difference == 0 for _, _, difference in progress)
        assert sum(end for _, end, _ in progress) == MESSAGES
        connection = await mqadmin("consumerConnection", "-g", group)
        assert client.client_id in connection
        assert "CONSUME_PASSIVELY" in connection
        assert "CLUSTERING" in connection
        status = await mqadmin("consumerStatus", "-g", group, "-i", client.client_id)
        for section in ("#Consumer Properties#", "#Consumer Subscription#", "#Consumer Offset#", "#Consumer RT&TPS#"):
            assert section in status
        assert "PROP_CONSUMER_START_TIMESTAMP" in status
        assert topic in status
        stacks = await mqadmin("consumerStatus", "-g", group, "-i", client.client_id, "-s")
        assert "MainThread" in stacks
        whole = await mqadmin("consumerStatus", "-g", group)
        assert client.client_id in whole
        assert "Rebalance OK" in whole or "WARN" not in whole
        # A reset by time takes effect on the running member.
        await mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
        await until(lambda: len(seen) == 2 * MESSAGES)
        consumer.drain()
    assert sorted(seen[MESSAGES:]) == sorted(seen[:MESSAGES])


async def test_ordered_members_answer_operators(client: triomq.Client, topic: str, mqadmin: Any) -> None:
    group = topic.replace("T-", "G-", 1)[:80]
    seen: list[triomq.ReceivedMessage] = []

    async def handle(message: triomq.ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message)
        if len(seen) == MESSAGES + 2:
            raise triomq.Later

    async with (
        client.push_consumer(group, ordered=True, start_from="earliest", drain_s=2) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe(topic)
        nursery.start_soon(consumer.run, handle)
        await until(lambda: len(seen) == MESSAGES)
        status = await mqadmin("consumerStatus", "-g", group, "-i", client.client_id)
        assert re.search(r"PROP_CONSUMEORDERLY +: true", status)
        assert len(re.findall(rf"^{re.escape(topic)} ", status, flags=re.MULTILINE)) >= 2
        # One message out of its queue's order, which moves no offset: first it succeeds, then it fails.
        chosen = seen[0]
        for result in ("CR_SUCCESS", "CR_LATER"):
            directly = await mqadmin(
                "queryMsgById", "-i", chosen.offset_message_id, "-g", group, "-d", client.client_id
            )
            assert result in directly
        assert [each.body for each in seen[MESSAGES:]] == [chosen.body] * 2
        await mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
        await until(lambda: len(seen) == 2 * MESSAGES + 2)
        consumer.drain()
    for queue_id in range(2):
        again = [each.queue_offset for each in seen[MESSAGES + 2 :] if each.queue_id == queue_id]
        assert again == list(range(len(again)))
    await until_committed(client, group, topic)
    progress = lags(await mqadmin("consumerProgress", "-g", group), topic)
    assert [difference for _, _, difference in progress] == [0, 0]


async def test_lite_members_answer_operators(client: triomq.Client, topic: str, mqadmin: Any) -> None:
    group = topic.replace("T-", "G-", 1)[:80]
    async with client.lite_pull_consumer(group, start_from="earliest") as consumer:
        await consumer.subscribe(topic)
        count = 0
        with trio.fail_after(120):
            while count < MESSAGES:
                count += len(await consumer.poll())
        await consumer.commit()
        await until_committed(client, group, topic)
        progress = lags(await mqadmin("consumerProgress", "-g", group), topic)
        assert sorted(committed for committed, _, _ in progress) == sorted(end for _, end, _ in progress)
        connection = await mqadmin("consumerConnection", "-g", group)
        assert client.client_id in connection
        assert "CONSUME_ACTIVELY" in connection
        status = await mqadmin("consumerStatus", "-g", group, "-i", client.client_id)
        assert "#Consumer Properties#" in status
        await mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
        again = 0
        with trio.fail_after(120):
            while again < MESSAGES:
                again += len(await consumer.poll())


async def test_a_group_without_an_offset_in_a_queue_is_reset(client: triomq.Client, topic: str) -> None:
    group = topic.replace("T-", "G-", 1)[:80]
    await client.groups.create(group)
    queues = [triomq.MessageQueue(topic, "broker-a", number) for number in range(2)]
    await client.groups.set_offsets(group, {queues[0]: 1})
    for time_ms, expected in ((client.groups.END, MESSAGES // 2), (0, 0)):
        done = await client.groups.reset(group, topic, time_ms)
        assert [(each.queue, each.offset, each.online) for each in done] == [(q, expected, False) for q in queues]


async def test_our_own_reset_moves_java_members(
    client: triomq.Client, target: SingleBroker, topic: str, java_push: Any
) -> None:
    group = topic.replace("T-", "G-", 1)[:80]
    with java_push(target.namesrv.address, group, topic) as java:
        await until(lambda: len(java.bodies()) >= MESSAGES)
        await until_committed(client, group, topic)

        def all_came_again() -> bool:
            return min(Counter(java.bodies()).values()) > 1

        # A Java client sends the new offset without waiting for an answer, drops the queue, and asks for the offset when it
        # takes the queue again. Two threads of a Java broker may do the second before the first: then this queue has not
        # moved, and only another reset helps.
        resets = 1 if target.kind is Kind.OURS else 5
        while resets and not all_came_again():
            resets -= 1
            done = await client.groups.reset(group, topic, 0)
            assert {each.online for each in done} == {True}
            with trio.move_on_after(30 if resets else 120):
                await until(all_came_again)
        assert all_came_again()
        online = await client.groups.members(group)
        assert online is not None
        assert [each.language for each in online.connection_set] == ["JAVA"]
        info = await client.groups.running_info(group, java.client_id)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
