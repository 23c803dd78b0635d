"""Calls wait while no name server, no route or no broker is there: until their own deadline, or as long as they may."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import trio

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import QueueMapping

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
MEMBERS = RequestCode.GET_CONSUMER_CONNECTION_LIST
QUEUE = triomq.MessageQueue("T", "broker-a", 0)


async def after(seconds, do, *args):
    await trio.sleep(seconds)
    do(*args)


async def started_producer(client, **options):
    producer = client.producer("G", **options)
    await producer.send(triomq.Message("T", b"warm"))
    return producer


def come_back(node):
    node.up = True


def no_member(command):
    return command.answer(ResponseCode.CONSUMER_NOT_ONLINE)


def without_brokers(cluster):
    """The name servers as they are when every broker has unregistered; returns what brings the brokers back."""
    routes, brokers = dict(cluster.name_server.routes), dict(cluster.name_server.brokers)
    cluster.name_server.routes.clear()
    cluster.name_server.brokers.clear()

    def back():
        cluster.name_server.routes.update(routes)
        cluster.name_server.brokers.update(brokers)

    return back


@pytest.mark.parametrize("options", [{}, {"queue": QUEUE}, {"selector": lambda queues, message, arg: queues[0]}])
@pytest.mark.parametrize("away_s", [0.3, 1.0, 2.5])
async def test_a_send_waits_for_a_master_that_restarts(autojump_clock, cluster, nursery, options, away_s):
    async with cluster.client() as client:
        producer = await started_producer(client)
        await cluster.broker.stop()
        cluster.broker.seen.clear()
        nursery.start_soon(after, away_s, come_back, cluster.broker)
        started = trio.current_time()
        result = await producer.send(triomq.Message("T", b"x"), **options)
        assert away_s <= trio.current_time() - started < 3
    assert result.status is triomq.SendStatus.SEND_OK
    assert len(cluster.broker.requests(SEND)) == 1  # what waited had written nothing


async def test_a_send_waits_for_a_master_after_a_long_outage(autojump_clock, cluster, nursery):
    """By then the client dials the address rarely; a send that waits looks more often."""
    async with cluster.client() as client:
        producer = await started_producer(client)
        await cluster.broker.stop()
        for _ in range(8):
            with pytest.raises(errors.ConnectFailed):
                await producer.send(triomq.Message("T", b"lost"))
        nursery.start_soon(after, 0.5, come_back, cluster.broker)
        await producer.send(triomq.Message("T", b"x"))
    assert cluster.broker.bodies("T").count(b"x") == 1


async def test_a_send_waits_for_a_route_with_a_master(autojump_clock, cluster, nursery):
    slave = cluster.add_slave()
    cluster.name_server.add_route("T", slave)
    async with cluster.client() as client:
        nursery.start_soon(after, 1.0, cluster.name_server.add_route, "T", cluster.broker, slave)
        result = await client.producer("G").send(triomq.Message("T", b"x"))
    assert result.status is triomq.SendStatus.SEND_OK


async def test_a_send_waits_for_the_first_broker_to_register(autojump_clock, cluster, nursery):
    back = without_brokers(cluster)
    async with cluster.client() as client:
        nursery.start_soon(after, 1.0, back)
        await client.producer("G").send(triomq.Message("T", b"x"))
    assert cluster.broker.bodies("T") == [b"x"]


async def test_a_send_waits_for_a_name_server(autojump_clock, cluster, nursery):
    cluster.name_server.up = False
    async with cluster.client() as client:
        nursery.start_soon(after, 1.0, come_back, cluster.name_server)
        await client.producer("G").send(triomq.Message("T", b"x"))
    assert cluster.broker.bodies("T") == [b"x"]


async def test_a_topic_that_no_living_broker_has_is_refused_at_once(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.RouteNotFound, match="--create") as caught:
            await client.producer("G").send(triomq.Message("nowhere", b"x"))
        with pytest.raises(errors.RouteNotFound):
            await client.pull_consumer("G").fetch_queues("nowhere")
    assert type(caught.value) is errors.RouteNotFound
    assert trio.current_time() < 0.1


async def test_a_topic_that_may_not_be_written_to_is_not_reported_as_missing(autojump_clock, cluster):
    cluster.name_server.add_route("T", cluster.broker, perm=4)
    async with cluster.client() as client:
        with pytest.raises(errors.PermissionDenied, match="written") as caught:
            await client.producer("G").send(triomq.Message("T", b"x"))
    assert "--create" not in str(caught.value)
    assert trio.current_time() < 1


async def test_the_wait_ends_at_the_sends_deadline(autojump_clock, cluster):
    slave = cluster.add_slave()
    cluster.name_server.add_route("T", slave)
    async with cluster.client() as client:
        producer = client.producer("G", send_timeout_s=2.0)
        with pytest.raises(errors.BrokerNotFound, match="no master of broker-a is registered") as caught:
            await producer.send(triomq.Message("T", b"x"))
        assert trio.current_time() == pytest.approx(2.0)
        assert "2000 ms" in str(caught.value)
        await cluster.broker.stop()
        cluster.name_server.add_route("T", cluster.broker)
        with pytest.raises(errors.ConnectFailed, match="nothing was sent"):
            await producer.send(triomq.Message("T", b"x"))
        assert trio.current_time() == pytest.approx(4.0)


async def test_a_send_may_wait_longer_than_its_deadline(autojump_clock, cluster, nursery):
    def answer_late(command):
        return late(command)

    async def late(command):
        await trio.sleep(2.5)
        return cluster.broker.send(command)

    async with cluster.client(route_wait_s=60) as client:
        producer = await started_producer(client)
        await cluster.broker.stop()
        cluster.broker.script(SEND, answer_late)
        nursery.start_soon(after, 30, come_back, cluster.broker)
        started = trio.current_time()
        await producer.send(triomq.Message("T", b"x"))  # its 3 s begin when the master is there
        assert 32 < trio.current_time() - started < 34
        await cluster.broker.stop()
        started = trio.current_time()
        with pytest.raises(errors.ConnectFailed):
            await producer.send(triomq.Message("T", b"x"))
        assert 59.9 < trio.current_time() - started < 64


async def test_nothing_waits_when_it_must_not(autojump_clock, cluster):
    back = without_brokers(cluster)
    async with cluster.client(route_wait_s=0) as client:
        with pytest.raises(errors.BrokerNotFound):
            await client.producer("G").send(triomq.Message("T", b"x"))
        with pytest.raises(errors.BrokerNotFound):
            await client.admin.create_topic("new")
        assert trio.current_time() < 0.1
        back()
        await cluster.broker.stop()
        with pytest.raises(errors.ConnectFailed):
            await client.pull_consumer("G").pull(QUEUE, 0)
        assert trio.current_time() < 0.5


@pytest.mark.parametrize("bad", [-1, float("nan"), "5", True, [5]])
async def test_a_wait_of_no_length_is_refused(cluster, bad):
    with pytest.raises(errors.InvalidCall, match="route_wait_s"):
        async with cluster.client(route_wait_s=bad):
            pass  # pragma: no cover - never opened


async def test_many_waiting_sends_share_a_look_up_and_keep_their_order(autojump_clock, cluster, nursery, make_callback):
    callback = make_callback()
    async with cluster.client() as client:
        producer = await started_producer(client)
        await cluster.broker.stop()
        cluster.name_server.seen.clear()
        dials = len(cluster.network.dials)
        nursery.start_soon(after, 2.5, come_back, cluster.broker)
        async with trio.open_nursery() as sends:
            for number in range(500):
                sends.start_soon(producer.send, triomq.Message("T", b"%d" % number))
            for number in range(20):
                await producer.send(triomq.Message("T", b"c%d" % number), callback, queue=QUEUE)
    assert callback.errors == []
    assert len(cluster.name_server.requests(ROUTE)) < 15
    assert len(cluster.network.dials) - dials < 15
    stored = cluster.broker.stored["T", 0]
    assert [body for body in stored if body.startswith(b"c")] == [b"c%d" % number for number in range(20)]


@pytest.mark.parametrize("away_s", [0.3, 2.0, 4.0])
async def test_pulls_commits_and_queries_wait_for_their_broker(autojump_clock, cluster, nursery, away_s):
    cluster.broker.store("T", 0, b"x")
    cluster.broker.offsets["G", "T", 0] = 0
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        calls = [
            partial(consumer.pull, QUEUE, 0),
            partial(consumer.commit, QUEUE, 1),
            partial(consumer.committed, QUEUE),
            partial(consumer.max_offset, QUEUE),
            partial(client.bounds.max_offset, QUEUE),
            partial(client.admin.create_topic, "new"),
        ]
        for call in calls:
            await cluster.broker.stop()
            started = trio.current_time()
            nursery.start_soon(after, away_s, come_back, cluster.broker)
            await call()
            assert away_s <= trio.current_time() - started <= away_s + 2
    counts = Counter(command.code for command in cluster.broker.seen)
    assert counts[RequestCode.PULL_MESSAGE] == counts[RequestCode.UPDATE_CONSUMER_OFFSET] == 1


async def test_pulls_and_listings_wait_for_a_name_server(autojump_clock, cluster, nursery):
    async with cluster.client() as client:
        for call in (client.admin.topics, partial(client.pull_consumer("G").fetch_queues, "T")):
            await cluster.name_server.stop()
            nursery.start_soon(after, 2.0, come_back, cluster.name_server)
            assert await call()


@pytest.mark.parametrize("away_s", [0.3, 2.0, 4.0])
async def test_statistics_and_offsets_wait_for_the_first_broker(autojump_clock, cluster, nursery, away_s):
    """A killed master is gone from the name servers at once: neither its topics nor its groups' members are known."""
    cluster.broker.script(MEMBERS, no_member)
    cluster.broker.store("T", 0, b"")
    async with cluster.client() as client:
        for call in (partial(client.admin.route, "T"), partial(client.groups.set_offsets, "G", {QUEUE: 1})):
            back = without_brokers(cluster)
            await cluster.broker.stop()

            def come_back_and_register(back=back):
                come_back(cluster.broker)
                back()

            started = trio.current_time()
            nursery.start_soon(after, away_s, come_back_and_register)
            await call()
            assert away_s <= trio.current_time() - started <= away_s + 2
    assert cluster.broker.offsets["G", "T", 0] == 1


def with_slaves_only(cluster):
    """The name servers after a restart at which only a slave has registered; returns what brings the masters back.

    Name servers take topics from masters.
    """
    slave = cluster.add_slave()
    back = without_brokers(cluster)
    cluster.name_server.add_route("T", slave)
    del cluster.name_server.routes["T"]
    return back


async def test_a_route_waits_while_only_slaves_are_registered(autojump_clock, cluster, nursery):
    async with cluster.client() as client:
        nursery.start_soon(after, 3.0, with_slaves_only(cluster))
        assert (await client.admin.route("T")).queue_datas
        assert 3 <= trio.current_time() <= 4
        with_slaves_only(cluster)
        with pytest.raises(errors.BrokerNotFound, match="no route to topic T: no master of any broker is registered"):
            await client.admin.route("T")


async def test_a_topic_is_not_created_while_masters_may_have_it(autojump_clock, cluster, nursery):
    """Its settings would be changed: a master that had more queues would have fewer."""
    async with cluster.client() as client:
        nursery.start_soon(after, 7.0, with_slaves_only(cluster))
        with pytest.raises(errors.BrokerNotFound, match="no master of any broker is registered"):
            await client.admin.ensure_topic("T", queues=1)
        await trio.sleep(7.0)
        assert await client.admin.ensure_topic("T", queues=1) is False
    assert cluster.broker.requests(RequestCode.UPDATE_AND_CREATE_TOPIC) == []


async def test_a_registered_master_that_is_away_may_have_members(autojump_clock, cluster, nursery):
    cluster.broker.script(MEMBERS, no_member)
    cluster.broker.store("T", 0, b"")
    async with cluster.client() as client:
        await cluster.broker.stop()
        nursery.start_soon(after, 2.0, come_back, cluster.broker)
        await client.groups.set_offsets("G", {QUEUE: 1})
        assert 2 <= trio.current_time() <= 4
    assert cluster.broker.offsets["G", "T", 0] == 1


async def test_a_send_waits_for_another_master_while_the_one_it_knows_refuses(autojump_clock, cluster, nursery):
    """As a broker does that stops, or has become a slave."""
    async with cluster.client() as client:
        producer = await started_producer(client)
        refusals = [lambda command: command.answer(14, "stopping")] * 6
        cluster.broker.script(SEND, *refusals)
        started = trio.current_time()
        result = await producer.send(triomq.Message("T", b"x"))
        assert 0.5 < trio.current_time() - started < 3
        assert result.status is triomq.SendStatus.SEND_OK
        cluster.broker.seen.clear()
        cluster.broker.script(SEND, *refusals * 5)
        started = trio.current_time()
        with pytest.raises(errors.BrokerUnavailable) as caught:
            await producer.send(triomq.Message("T", b"x"))
        # Until its deadline, and with pauses.
        assert 1.5 < trio.current_time() - started <= 3
        assert 4 <= len(caught.value.attempts) == len(cluster.broker.requests(SEND)) < 12
        another = client.producer("once", retry=triomq.plugins.Retries(attempts=1))
        with pytest.raises(errors.BrokerUnavailable) as caught:
            await another.send(triomq.Message("T", b"x"))
        assert len(caught.value.attempts) == 1


def act_as_master(cluster, slave):
    """The name server's answer of RocketMQ 5 while there is no master and slaves may act as one."""
    slave.broker_id = 0
    cluster.name_server.add_route("T", slave, perm=4)
    for broker in cluster.name_server.routes["T"].broker_datas:
        broker.enable_acting_master = True


async def test_a_send_waits_for_the_master_that_a_slave_acts_for(autojump_clock, cluster):
    slave = cluster.add_slave()
    act_as_master(cluster, slave)
    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = client.producer("G")

        @nursery.start_soon
        async def return_later():
            await trio.sleep(2)
            slave.broker_id = 1
            cluster.name_server.add_route("T", cluster.broker, slave)

        await producer.send(triomq.Message("T", b"x"))
    assert cluster.broker.bodies("T") == [b"x"]


async def test_the_error_without_a_master_names_the_slave_that_acts_for_it(autojump_clock, cluster):
    act_as_master(cluster, cluster.add_slave())
    async with cluster.client(route_wait_s=0) as client:
        with pytest.raises(
            errors.BrokerNotFound, match=r"no master of broker-a .* serves reads in its place"
        ) as caught:
            await client.producer("G").send(triomq.Message("T", b"x"))
    assert "or the topic is read-only" in str(caught.value)


async def test_a_read_only_topic_of_rocketmq_5_without_acting_masters(autojump_clock, cluster):
    cluster.name_server.add_route("T", cluster.broker, perm=4)
    cluster.name_server.routes["T"].broker_datas[0].enable_acting_master = False
    async with cluster.client() as client:
        with pytest.raises(errors.PermissionDenied, match="none of its queues may be written to"):
            await client.producer("G").send(triomq.Message("T", b"x"))


async def test_a_static_topic_is_named_once(autojump_clock, cluster, caplog):
    """Its queues have numbers that a client of 4.9 does not find."""
    route = cluster.name_server.routes["T"]
    route.topic_queue_mapping_by_broker = {"broker-a": QueueMapping(bname="broker-a", total_queues=4)}
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        cluster.add_slave()
        cluster.name_server.routes["T"].topic_queue_mapping_by_broker = route.topic_queue_mapping_by_broker
        await client._routes.refresh("T")
    assert len([record for record in caplog.records if "static topic of RocketMQ 5" in record.message]) == 1
