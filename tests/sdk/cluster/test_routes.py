"""Routes: which queues they give, and when they are asked for."""

from __future__ import annotations

import contextlib
import logging
import random

import pytest
import trio

import triomq
from triomq import errors
from triomq._cluster.route import borrow, lost_masters, make_route, route_differs
from triomq._cluster.routes import BrokerAddresses, pause_after_loss_s
from triomq._consumer.group.members import Members
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import BrokerData, ConsumerIdList, QueueData, TopicRouteData

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def route_data(*queues, order=None, without_master=()):
    names = sorted({name for name, *_ in queues}, reverse=True)
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_name=name, cluster="C", broker_addrs={1 if name in without_master else 0: f"{name}:1"})
            for name in names
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)
            for name, read, write, perm in queues
        ],
        order_topic_conf=order,
    )


def shape(queues):
    return [(queue.broker_name, queue.queue_id) for queue in queues]


@pytest.mark.parametrize(
    ("data", "publish", "subscribe"),
    [
        (
            route_data(("b", 1, 2, 6), ("a", 2, 1, 6)),
            [("a", 0), ("b", 0), ("b", 1)],
            [("a", 0), ("a", 1), ("b", 0)],
        ),
        (route_data(("a", 1, 1, 4), ("b", 1, 1, 2)), [("b", 0)], [("a", 0)]),
        (route_data(("a", 1, 1, 6), without_master=["a"]), [], [("a", 0)]),
        (route_data(("a", 1, 1, 6), order="b:2;a:1"), [("b", 0), ("b", 1), ("a", 0)], [("a", 0)]),
        (route_data(("a", 1, 1, 6), order="b:2:x;a:1:"), [("b", 0), ("b", 1), ("a", 0)], [("a", 0)]),
        (route_data(("a", 1, 1, 6), order=";c;;b:1;b:0"), [("b", 0)], [("a", 0)]),
        (TopicRouteData(), [], []),
        # Listed twice: two members of a group would get the same queue.
        (route_data(("a", 2, 1, 6), ("a", 1, 1, 6)), [("a", 0), ("a", 0)], [("a", 0), ("a", 1)]),
    ],
)
def test_queues_of_a_route(data, publish, subscribe):
    route = make_route("T", data)
    assert shape(route.publish_queues) == publish
    assert shape(route.subscribe_queues) == subscribe


def test_queues_of_the_default_topic_are_bounded_by_what_the_broker_will_create():
    data = borrow(route_data(("a", 8, 16, 7), ("b", 2, 2, 7)), 4)
    assert [(each.read_queue_nums, each.write_queue_nums, each.perm) for each in data.queue_datas] == [
        (4, 4, 7),
        (2, 2, 7),
    ]


def test_the_order_of_brokers_makes_no_difference():
    one = route_data(("a", 1, 1, 6), ("b", 1, 1, 6))
    other = route_data(("b", 1, 1, 6), ("a", 1, 1, 6))
    other.broker_datas.reverse()
    assert not route_differs(one, other)
    assert route_differs(one, route_data(("a", 1, 1, 6), ("b", 1, 2, 6)))
    assert route_differs(one, route_data(("a", 1, 1, 6), ("b", 1, 1, 6), order="a:1"))


def test_addresses_of_brokers_follow_routes_that_come_and_go():
    chance = random.Random(7)
    addresses, kept = BrokerAddresses(), []
    for number in range(2000):
        if kept and chance.random() < 0.5:
            addresses.remove(kept.pop(chance.randrange(len(kept))))
        else:
            brokers = [
                BrokerData(
                    broker_name=name,
                    cluster="C",
                    broker_addrs={id_: f"{name}{id_}:{chance.randrange(2)}" for id_ in ids},
                )
                for name, ids in {"a": [0], "b": [0, 1], "c": [1]}.items()
                if chance.random() < 0.5
            ]
            kept.append(make_route(f"T{number}", TopicRouteData(broker_datas=brokers)))
            addresses.add(kept[-1])
            for name, of_newest in kept[-1].addresses.items():
                assert addresses.table[name].items() >= of_newest.items()
        possible = {
            (name, id_, address)
            for route in kept
            for name, each in route.addresses.items()
            for id_, address in each.items()
        }
        found = {(name, id_, address) for name, each in addresses.table.items() for id_, address in each.items()}
        assert found <= possible
        assert {each[:2] for each in found} == {each[:2] for each in possible}


async def test_a_topic_that_is_dropped_removes_its_broker(autojump_clock, cluster):
    other = cluster.add_master("broker-b", topic="other")
    cluster.name_server.add_route("U0", other)
    for number in range(1, 4):
        cluster.name_server.add_route(f"U{number}", cluster.broker)
    async with cluster.client(max_topics=3) as client:
        for number, names in enumerate([{"broker-b"}, *[{"broker-a", "broker-b"}] * 2, {"broker-a"}]):
            await client._routes.for_subscribing(f"U{number}")
            assert client._routes.broker_addresses().keys() == names


async def test_a_refresh_that_the_clients_end_cuts_short_is_no_fault(autojump_clock, cluster, caplog):
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        cluster.name_server.script(ROUTE, None)
        await trio.sleep(31)
        assert len(cluster.name_server.requests(ROUTE)) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_known_topics_are_refreshed_every_thirty_seconds(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        other = cluster.add_master("broker-b")
        await trio.sleep(29)
        assert len(await producer.queues("T")) == 2
        await trio.sleep(2)
        assert len(await producer.queues("T")) == 4
        await trio.sleep(60)
    assert len(cluster.name_server.requests(ROUTE)) == 4
    assert other.requests(RequestCode.HEART_BEAT)


A, A_AND_B = ("a", 1, 1, 6), (("a", 1, 1, 6), ("b", 1, 1, 6))


@pytest.mark.parametrize(
    ("lost", "old", "new", "expected"),
    [
        ((), None, make_route("T", route_data(A)), ()),
        ((), make_route("T", route_data(A)), make_route("T", route_data(*A_AND_B)), ()),
        ((), make_route("T", route_data(*A_AND_B)), make_route("T", route_data(A)), ("b",)),
        ((), make_route("T", route_data(A)), make_route("T", route_data(A, without_master=["a"])), ("a",)),
        (("b",), make_route("T", route_data(A)), make_route("T", route_data(A, without_master=["a"])), ("a", "b")),
        (("b",), make_route("T", route_data(A)), make_route("T", route_data(*A_AND_B)), ()),
        ((), make_route("T", route_data(*A_AND_B), borrowed=True), make_route("T", route_data(A)), ()),
        ((), make_route("T", route_data(*A_AND_B)), make_route("T", route_data(A), borrowed=True), ()),
    ],
)
def test_which_broker_sets_have_lost_their_master(lost, old, new, expected):
    assert lost_masters(frozenset(lost), old, new) == frozenset(expected)


@pytest.mark.parametrize(("lost_for_s", "pause_s"), [(0, 1), (0.5, 1), (1, 1), (2, 2), (16, 16), (29, 29), (30, None)])
def test_a_lost_master_is_asked_for_after_as_long_as_it_has_been_away(lost_for_s, pause_s):
    assert pause_after_loss_s(lost_for_s, 30) == pause_s


async def lose(cluster, other, client):
    """A producer whose route has lost a broker set, as its name server and refused sends report."""
    producer = client.producer("G", linger_s=None)
    await producer.send(triomq.Message("T", b"x"))
    cluster.name_server.add_route("T", cluster.broker)
    await other.stop()
    for _ in range(8):
        await producer.send(triomq.Message("T", b"x"))  # some of them are refused by the other broker
    return producer


async def test_a_master_that_is_back_soon_is_used_soon(autojump_clock, cluster):
    """And not after up to 30 s, in which a send finds no other broker when the last one fails."""
    other = cluster.add_master("broker-b")
    async with cluster.client() as client:
        producer = await lose(cluster, other, client)
        assert len(await producer.queues("T")) == 2
        await trio.sleep(4)
        other.up = True
        cluster.name_server.add_route("T", cluster.broker, other)
        await trio.sleep(4.5)
        assert len(await producer.queues("T")) == 4
        cluster.name_server.seen.clear()
        await trio.sleep(20)
        assert len(cluster.name_server.requests(ROUTE)) <= 2, "nothing is lost any more"


async def test_silence_causes_one_route_request_a_second(autojump_clock, cluster):
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        cluster.name_server.seen.clear()
        for _ in range(50):
            client._routes.doubt("T", "broker-a-0:10911", "no answer in time")
            client._routes.doubt("unknown", "broker-a-0:10911", "no answer in time")
            await trio.sleep(0.1)
        assert len(cluster.name_server.requests(ROUTE)) == 5


async def test_connections_that_are_closed_at_once_cause_one_route_request_a_second(autojump_clock, cluster):
    """As those of a proxy, whose broker is down."""
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        await trio.sleep(1)
        cluster.name_server.seen.clear()
        for number in range(50):
            client._routes.note_connected("T", "broker-a-0:10911")
            client._routes.note_cut_off("T", "broker-a-0:10911")
            await trio.sleep(0.1)
            assert number or len(cluster.name_server.requests(ROUTE)) == 1, "the first one at once"
        assert len(cluster.name_server.requests(ROUTE)) == 5


async def test_connections_that_are_closed_without_a_byte_cause_fewer_and_fewer_route_requests(autojump_clock, cluster):
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        await trio.sleep(1)
        cluster.name_server.seen.clear()
        client._routes.note_cut_off("T", "broker-a-0:10911")
        for _ in range(100):
            await trio.sleep(0.1)
            client._routes.note_connected("T", "broker-a-0:10911")
            client._routes.note_cut_off("T", "broker-a-0:10911", again=True)
        # After 0, 1, 2, 4 and 8 s.
        assert len(cluster.name_server.requests(ROUTE)) == 5
        client._routes.note_connected("T", "broker-a-0:10911")
        client._routes.note_cut_off("T", "broker-a-0:10911")
        await trio.sleep(0.1)
        assert len(cluster.name_server.requests(ROUTE)) == 6, "a loss of its own"


async def test_calls_that_fail_look_the_route_up_less_and_less_often(autojump_clock, cluster):
    async with cluster.client(refresh_every_s=3600.0) as client:
        routes = client._routes
        await routes.for_subscribing("T")
        cluster.name_server.seen.clear()
        for number in range(600):
            assert await routes.refresh_failing("T") is routes.known("T")
            await trio.sleep(0.1)
            assert number or len(cluster.name_server.requests(ROUTE)) == 1, "the first one at once"
        # After 0, 1, 2, 4 and 8 s, and then every 5 s.
        assert 14 <= len(cluster.name_server.requests(ROUTE)) <= 16
        other = cluster.add_master("broker-b")
        for _ in range(51):
            await routes.refresh_failing("T")
            await trio.sleep(0.1)
        assert routes.known("T").has(other.address)
        await trio.sleep(60)
        cluster.name_server.seen.clear()
        await routes.refresh_failing("T")
        assert len(cluster.name_server.requests(ROUTE)) == 1, "calls have not failed for a while"


async def test_an_address_of_several_sets_is_a_shared_one(autojump_clock, cluster):
    """A proxy of RocketMQ 5 lists itself as the master of every set."""
    cluster.add_master("broker-b")
    async with cluster.client() as client:
        await client._routes.for_publishing("T")
        assert not client._links.is_shared(cluster.broker.address)
        one, other = cluster.name_server.routes["T"].broker_datas
        one.broker_addrs = other.broker_addrs = {0: cluster.broker.address}
        await client._routes.refresh("T")
        assert client._links.is_shared(cluster.broker.address)
        assert not client._links.is_shared("elsewhere:1")


async def test_a_doubted_route_stays_doubted_when_no_name_server_answers(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        await cluster.name_server.stop()
        client._routes.doubt("T", "broker-a-0:10911", "no answer in time")
        await trio.sleep(10)
        cluster.name_server.up = True
        cluster.add_master("broker-b")
        client._routes.doubt("T", "broker-a-0:10911", "no answer in time")
        await trio.sleep(1)
        assert len(await producer.queues("T")) == 4


async def test_a_master_that_stays_away_costs_few_questions(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    async with cluster.client() as client:
        producer = await lose(cluster, other, client)
        assert len(await producer.queues("T")) == 2
        cluster.name_server.seen.clear()
        await trio.sleep(301)
        assert len(cluster.name_server.requests(ROUTE)) == 10 + 6


async def test_callers_of_an_unknown_topic_share_one_question(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(producer.send, triomq.Message("T", b"x"))
    assert len(cluster.name_server.requests(ROUTE)) == 1


async def test_callers_share_a_failed_dial(autojump_clock, cluster):
    caught = []

    async def send():
        try:
            await producer.send(triomq.Message("nowhere", b"x"))
        except errors.RouteNotFound as error:
            caught.append(error)

    async with cluster.client() as client:
        producer = client.producer("G", retry=triomq.plugins.Retries(attempts=1))
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(send)
    assert len(caught) == 10
    assert len(cluster.name_server.requests(ROUTE)) == 2  # the topic, and the default one


async def test_callers_share_an_error(autojump_clock, cluster):
    caught = []
    cluster.name_server.script(ROUTE, *[lambda command: command.answer(1, "trouble")] * 5)
    async with cluster.client() as client:
        consumers = [client.pull_consumer(f"G{number}") for number in range(5)]

        async def fetch(consumer):
            with pytest.raises(errors.BrokerFault, match="trouble") as error:
                await consumer.fetch_queues("T")
            caught.append(error.value)

        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(fetch, consumer)
    assert len({id(error) for error in caught}) == 5
    assert len(cluster.name_server.requests(ROUTE)) == 1


async def test_a_real_topic_is_not_given_up_when_the_name_server_removes_it(autojump_clock, cluster):
    cluster.name_server.add_route("TBW102", cluster.broker, queues=8)
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        del cluster.name_server.routes["T"]
        await trio.sleep(31)
        assert len(await producer.queues("T")) == 2


async def test_a_name_server_that_is_silent_does_not_stop_the_refresh(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        cluster.name_server.script(ROUTE, None)
        await trio.sleep(40)
        cluster.add_master("broker-b")
        await trio.sleep(40)
        assert len(await producer.queues("T")) == 4


async def test_a_refresh_that_fails_is_logged_once(autojump_clock, cluster, caplog):
    caplog.set_level(logging.INFO, "triomq.routes")
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        for _ in range(2):  # an outage that begins again is logged again
            caplog.clear()
            cluster.name_server.script(ROUTE, *[lambda command: command.answer(1, "trouble")] * 4)
            await trio.sleep(165)  # and once without trouble
            first, *others = [record for record in caplog.records if record.name == "triomq.routes"]
            assert [record.getMessage() for record in others] == ["the route of T was refreshed again"]
            assert others[0].levelname == "INFO"
            assert "the route of T could not be refreshed, it is tried again every 30 s" in first.getMessage()
            assert first.topic == "T"


async def test_an_outage_of_all_name_servers_is_logged_once_and_so_is_its_end(autojump_clock, cluster, caplog):
    caplog.set_level(logging.INFO, "triomq.routes")
    async with cluster.client() as client:
        cluster.name_server.add_route("U", cluster.broker)
        producer = client.producer("G")
        for topic in ("T", "U"):
            await producer.send(triomq.Message(topic, b"x"))
        cluster.name_server.script(ROUTE, *[None] * 3)
        await trio.sleep(200)
    levels = [record.levelname for record in caplog.records if record.name == "triomq.routes"]
    assert levels == ["WARNING", "INFO"]
    assert "the name servers answer again" in caplog.text


async def test_cancelling_the_asking_caller_keeps_the_others(autojump_clock, cluster):
    async def slowly(command):
        await trio.sleep(1)
        return cluster.name_server.serve(command)

    cluster.name_server.script(ROUTE, slowly, slowly)
    async with cluster.client() as client:
        producer = client.producer("G")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def give_up():
                with trio.move_on_after(0.5):
                    await producer.send(triomq.Message("T", b"x"))

            await trio.testing.wait_all_tasks_blocked()
            assert (await producer.send(triomq.Message("T", b"x"))).status is triomq.SendStatus.SEND_OK


@pytest.mark.parametrize("body", [b"", b"{", b"[]"])
async def test_a_route_that_cannot_be_read(autojump_clock, cluster, body):
    cluster.name_server.script(ROUTE, *[lambda command: command.answer(0, body=body)] * 3)
    async with cluster.client() as client:
        with pytest.raises(errors.ProtocolViolation, match="the route of topic T"):
            await client.admin.route("T")


@pytest.mark.parametrize(
    "order",
    [
        *(
            "broker-a:2:x",
            "broker-a:2:",
            "broker-a",
            "broker-a:",
            ":",
            "::",
            ":2",
            ";",
            ";;broker-a:2",
            "broker-a:2;broker-a:2",
        ),
        *("broker-a:x", "broker-a:-1", "broker-a:+1", "broker-a: 2", "broker-a:2.0", "broker-a:1_0", "broker-a:\u0662"),
        *("broker-a:2147483647", "broker-a:" + "9" * 10_000, "broker-a:2;" * 10_000, "\0:\0", "broker-a:0"),
    ],
)
async def test_no_order_configuration_ends_the_client(autojump_clock, cluster, order):
    async with cluster.client() as client:
        producer = client.producer("P")
        await producer.send(triomq.Message("T", b"before"))
        cluster.name_server.routes["T"].order_topic_conf = order
        await trio.sleep(100)
        cluster.name_server.routes["T"].order_topic_conf = None
        await trio.sleep(100)
        await producer.send(triomq.Message("T", b"after"))
        with contextlib.suppress(errors.MQError):  # nor one that is there from the beginning
            cluster.name_server.add_route("U", cluster.broker)
            cluster.name_server.routes["U"].order_topic_conf = order
            await producer.send(triomq.Message("U", b"x"))


async def test_the_number_of_topics_is_bounded(autojump_clock, cluster):
    for number in range(5):
        cluster.name_server.add_route(f"T{number}", cluster.broker)
    async with cluster.client(max_topics=3) as client:
        producer = client.producer("G")
        for number in [0, 1, 2, 3, 4, 0]:
            await producer.send(triomq.Message(f"T{number}", b"x"))
            assert client.statistics().topics <= 3
        assert len(producer._sender.targets._topics) == 3
    asked = len(cluster.name_server.requests(ROUTE))
    assert asked == 6  # T0 twice: it was dropped meanwhile


async def test_statistics(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = client.producer("P")
        await producer.send(triomq.Message("T", b"x"))
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, None)
        await producer.send(triomq.Message("T", b"x"), make_callback())
        client.pull_consumer("C").seek(triomq.MessageQueue("T", "broker-a", 0), 1)
        await trio.testing.wait_all_tasks_blocked()
        statistics = client.statistics()
        producer.abort()
    assert (statistics.topics, statistics.callbacks, statistics.positions) == (1, {"P": 1}, {"C": 1})
    assert {link.address: link.pending for link in statistics.links} == {"ns:9876": 0, cluster.broker.address: 1}
    assert all(link.unsent_bytes == 0 for link in statistics.links)


async def test_the_least_recently_used_topic_is_dropped(autojump_clock, cluster):
    for number in range(4):
        cluster.name_server.add_route(f"U{number}", cluster.broker)
    dropped = []
    async with cluster.client(max_topics=3) as client:
        client._routes.forgotten.append(dropped.append)
        for number in [0, 1, 2, 0, 3]:
            await client._routes.for_subscribing(f"U{number}")
        assert dropped == ["U1"]
        assert [client._routes.known(f"U{number}") is not None for number in range(4)] == [True, False, True, True]


async def test_a_look_up_of_a_topic_that_is_not_watched_is_bounded_too(autojump_clock, cluster):
    for number in range(5):
        cluster.name_server.add_route(f"U{number}", cluster.broker)
    async with cluster.client(max_topics=3) as client:
        for number in range(5):
            assert await client._routes.refresh(f"U{number}") is not None
        assert len(client._routes) == 3
        cluster.name_server.seen.clear()
        await trio.sleep(31)
        assert not cluster.name_server.requests(ROUTE)


async def test_another_broker_answers_for_a_set_whose_master_is_down(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        route = await client._routes.for_subscribing("T")
        master = cluster.broker.address
        assert route.one_of_each_broker() == [master]
        assert route.one_of_each_broker(lambda address: address == master) == [slave.address]
        assert route.one_of_each_broker(lambda _address: True) == [master]


async def test_members_are_listed_by_a_slave_while_the_master_is_dead(autojump_clock, cluster):
    slave = cluster.add_slave()
    body = ConsumerIdList(consumer_id_list=["c@1"]).encode()
    slave.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, *[lambda command: command.answer(0, body=body)] * 2)
    await cluster.broker.stop()
    async with cluster.client() as client:
        members = Members("G", client._routes, client._links, random.Random(1))
        assert [await members.of("T") for _ in range(2)] == [["c@1"]] * 2


@pytest.mark.parametrize("topic", [5, b"T", None, triomq.MessageQueue("T", "broker-a", 0)])
async def test_a_topic_that_is_no_text_is_refused_and_ends_nothing(autojump_clock, cluster, topic):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        for call in (consumer.fetch_queues, client.admin.route, client.producer("PG").queues):
            with pytest.raises(errors.InvalidCall, match=r"the topic is .*, not text"):
                await call(topic)
        await trio.sleep(100)  # the client asks for routes again
        assert await consumer.fetch_queues("T")
