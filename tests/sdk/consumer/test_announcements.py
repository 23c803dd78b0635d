"""Brokers know a subscription before the first pull that relies on it, also when heartbeats take their time."""

from __future__ import annotations

import random

import pytest
import trio

from triomq_protocol.codes import RequestCode


def slow_heartbeats(broker, chance, most_s=0.3):
    """As Java's brokers, it handles the heartbeats of one link in any order."""
    heartbeat = broker.consumers.heartbeat

    async def later(command, stream):
        await trio.sleep(chance.uniform(0, most_s))
        return heartbeat(command, stream)

    broker.consumers.heartbeat = later


@pytest.mark.parametrize("seed", range(10))
async def test_no_pull_of_a_new_group_overtakes_its_subscription(autojump_clock, group_cluster, caplog, seed):
    chance = random.Random(seed)
    second = group_cluster.add_master("broker-b")
    second.consumers.serves_groups = True
    second.name_server = group_cluster.name_server
    for broker in (group_cluster.broker, second):
        broker.store("T", 0, broker.name.encode())
        slow_heartbeats(broker, chance)
    async with group_cluster.client(chance=chance) as client:
        for group in ("G1", "G2", "G3"):
            started = trio.current_time()
            async with client.push_consumer(group, start_from="earliest") as consumer:
                await consumer.subscribe("T")
                found = {(await anext(consumer)).message.body for _ in range(2)}
            assert found == {b"broker-a", b"broker-b"}
            # Nothing waited for a refused pull to be repeated.
            assert trio.current_time() - started < 3
    assert "a pull failed" not in caplog.text


async def test_two_announcements_at_once_lose_nothing(autojump_clock, group_cluster):
    """One renews the retry topic's subscription while another subscribes."""
    slow_heartbeats(group_cluster.broker, random.Random(1))
    group_cluster.name_server.add_route("U", group_cluster.broker)
    async with group_cluster.client() as client, client.push_consumer("G") as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.subscribe, "T")
        await trio.lowlevel.checkpoint()
        nursery.start_soon(consumer._member.topic_changed, "%RETRY%G")
        nursery.start_soon(consumer.subscribe, "U")
        await trio.sleep(10)
        known = {topic for _, topic in group_cluster.broker.consumers.subscriptions}
        assert known == {"%RETRY%G", "T", "U"}
        assert {topic for _, topic in group_cluster.broker.consumers.subscriptions} == set(consumer._member.announced)
        await consumer.unsubscribe("T")
        assert {topic for _, topic in group_cluster.broker.consumers.subscriptions} == {"%RETRY%G", "U"}


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_a_new_expression_counts_after_the_clock_was_set_back(autojump_clock, group_cluster, kind):
    broker, now_ms = group_cluster.broker, 1_700_000_000_000
    async with group_cluster.client(clock=lambda: now_ms) as client:
        make = client.push_consumer if kind == "push" else client.lite_pull_consumer
        async with make("G", start_from="earliest") as consumer:
            await consumer.subscribe("T", "a")
            await trio.sleep(5)
            now_ms -= 3_600_000
            await consumer.subscribe("T", "b")
            assert broker.consumers.subscriptions["G", "T"].sub_string == "b"
            # A pull that was sent before is held still.
            for tag in ("a", "b"):
                broker.store("T", 0, tag.encode(), f"TAGS\x01{tag}".encode())
            found = await consumer.poll(60)
            assert (found[0] if kind == "lite" else found.message).body == b"b"


async def test_a_renewal_on_the_way_does_not_keep_the_old_expression(autojump_clock, group_cluster):
    """Queues have moved while it is asked whether brokers understand the new one."""
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        await consumer.subscribe("T", "a")
        member = consumer._member
        wanted = member.subscription("T", "b")
        await member.topic_changed("T")
        await member.subscribe(wanted)
        assert group_cluster.broker.consumers.subscriptions["G", "T"].sub_string == "b"
        assert member.subscriptions["T"].expression == "b"


async def test_heartbeats_of_one_link_go_one_after_the_other(autojump_clock, group_cluster):
    under_way = most = 0
    heartbeat = group_cluster.broker.consumers.heartbeat

    async def later(command, stream):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1
        return heartbeat(command, stream)

    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        await consumer.subscribe("T")
        await trio.sleep(5)
        group_cluster.broker.consumers.heartbeat = later
        before = len(group_cluster.broker.requests(RequestCode.HEART_BEAT))
        with trio.fail_after(2.5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client._heartbeats.beat)
                await trio.sleep(0.5)
                for _ in range(9):
                    nursery.start_soon(client._heartbeats.beat)
        assert most == 1
        # The second one says what the other eight would.
        assert len(group_cluster.broker.requests(RequestCode.HEART_BEAT)) - before == 2
        # A cancelled one does not count.
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.5):
                nursery.start_soon(client._heartbeats.beat)
                await client._heartbeats.beat()
        assert client._heartbeats._turns == {}


async def test_a_pull_waits_for_the_first_heartbeat_of_a_new_link(autojump_clock, group_cluster, caplog):
    """The broker restarted: it knows no member."""
    group_cluster.broker.store("T", 0, b"1")
    async with group_cluster.client() as client, client.push_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        assert (await anext(consumer)).message.body == b"1"
        slow_heartbeats(group_cluster.broker, random.Random(2), most_s=1)
        group_cluster.broker.consumers.subscriptions.clear()
        await group_cluster.broker.cut()
        group_cluster.broker.store("T", 0, b"2")
        with trio.fail_after(5):
            assert (await anext(consumer)).message.body == b"2"
    assert "SUBSCRIPTION_NOT_EXIST" not in caplog.text
