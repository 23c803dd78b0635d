"""Members notice at different times that a topic's route has changed, and have no queue at the same time meanwhile."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import asynccontextmanager

import pytest
import trio
from consumer_broker import until

import triomq
from triomq._consumer.group.members import STILL_HAVE_TIMEOUT_S
from triomq._consumer.group.rebalance import ROUTE_SPREAD_S
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import GetConsumerStatusBody, GetConsumerStatusRequest

STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
QUEUES = 4


class Group:
    """Members of group G, and who has which queue."""

    def __init__(self, cluster, nursery, kind, strategy_of):
        self.strategy_of = strategy_of
        self.cluster = cluster
        self.nursery = nursery
        self.kind = kind
        self.owners = defaultdict(set)
        self.twice = set()
        self.given = Counter()
        self.revokes_s = defaultdict(int)
        self.second = cluster.add_master("broker-b")
        self.second.consumers.serves_groups = True
        self.second.name_server = cluster.name_server
        self.set_route(cluster.broker, self.second)

    def set_route(self, *brokers):
        for topic, queues in (("T", QUEUES), ("%RETRY%G", 1)):
            self.cluster.name_server.add_route(topic, *brokers, queues=queues)

    def join(self, name):
        self.nursery.start_soon(self.live, name)

    async def live(self, name):
        def assigned(queues):
            for queue in queues:
                self.owners[queue].add(name)
                if len(self.owners[queue]) > 1:
                    self.twice.add((queue, *sorted(self.owners[queue])))

        async def revoked(queues):
            await trio.sleep(self.revokes_s[name])
            for queue in queues:
                self.owners[queue].discard(name)

        options = {
            "start_from": "earliest",
            "allocate": self.strategy_of(name),
            "callbacks": triomq.ConsumerCallbacks(on_assigned=assigned, on_revoked=revoked),
        }
        async with self.cluster.client(instance_name=name, chance=random.Random(name)) as client:
            if "share" in self.kind:
                del options["start_from"]
                puller = client.pull_consumer("G")
                async with puller.share("T", **options) as pulls:
                    if self.kind == "idle share":
                        await trio.sleep_forever()
                    async for result in pulls:
                        self.given.update((each.queue, each.queue_offset) for each in result.messages)
                        await puller.commit(result.queue)
            if self.kind == "lite":
                async with client.lite_pull_consumer("G", **options) as consumer:
                    await consumer.subscribe("T")
                    while True:
                        self.given.update((each.queue, each.queue_offset) for each in await consumer.poll())
            async with client.push_consumer("G", ordered=self.kind == "ordered", **options) as consumer:
                await consumer.subscribe("T")
                await consumer.run(self.handle)

    async def handle(self, message):
        await trio.lowlevel.checkpoint()
        self.given[message.queue, message.queue_offset] += 1

    async def keep_sending(self):
        while True:
            await trio.sleep(0.5)
            for broker in (self.cluster.broker, self.second):
                if broker.up:
                    for number in range(QUEUES):
                        broker.store("T", number, b"x")

    async def is_shared_out(self, queues, seconds=60):
        def has_one_owner_each():
            owned = [owners for queue, owners in self.owners.items() if queue.topic == "T" and owners]
            return len(owned) == queues and all(len(owners) == 1 for owners in owned)

        await until(has_one_owner_each, seconds)


@asynccontextmanager
async def opened_group(cluster, kind, strategy_of=lambda _name: None):
    """Two members, whose clients look at routes at different times."""
    async with trio.open_nursery() as nursery:
        group = Group(cluster, nursery, kind, strategy_of)
        group.join("1")
        await trio.sleep(3.3)
        group.join("5")
        await trio.sleep(40)
        await group.is_shared_out(2 * QUEUES)
        yield group
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["lite", "push", "ordered", "share"])
@pytest.mark.parametrize(("down_s", "join_s"), [(5, 2), (20, 10), (70, None)])
async def test_a_broker_that_comes_back(autojump_clock, group_cluster, kind, down_s, join_s):
    """One member has never seen it, or all look for it every 30 s only."""
    async with opened_group(group_cluster, kind) as group:
        group.nursery.start_soon(group.keep_sending)
        await trio.sleep(10)
        group.set_route(group_cluster.broker)
        await group.second.stop()
        group.second.consumers.locks.clear()  # which a broker does not keep on disk
        if join_s is not None:
            await trio.sleep(join_s)
            group.join("3")
        await trio.sleep(down_s - (join_s or 0))
        await group.is_shared_out(QUEUES)
        group.twice.clear()
        group.given.clear()
        group.second.up = True
        group.set_route(group_cluster.broker, group.second)
        # Those that were there look for it as long after its return as it was away, and tell the one that joined.
        await trio.sleep(min(down_s, 30) + 3)
        await group.is_shared_out(2 * QUEUES, 1)
        assert not group.twice
        assert not [count for count in group.given.values() if count > 1]
        await trio.sleep(ROUTE_SPREAD_S)
        group_cluster.broker.seen.clear()
        group.join("7")
        await trio.sleep(1)
        await group.is_shared_out(2 * QUEUES, 1)
        assert not group_cluster.broker.requests(STATUS), "an ordinary join asks nobody"


async def test_a_running_broker_that_is_out_of_the_route(autojump_clock, group_cluster):
    """It was not registered after the restart of a name server; its locks are released nevertheless."""
    async with opened_group(group_cluster, "ordered") as group:
        group.set_route(group_cluster.broker)
        await trio.sleep(1)
        group.join("0")
        await trio.sleep(10)
        await group.is_shared_out(QUEUES, 1)
        assert not [each for each in group.second.consumers.locks if each[1].topic == "T"]
        group.set_route(group_cluster.broker, group.second)
        await group.is_shared_out(2 * QUEUES, 25)


@pytest.mark.parametrize("kind", ["lite", "push", "ordered", "share"])
@pytest.mark.parametrize("join_s", [0.5, 5])
async def test_a_member_that_joins_after_a_new_broker(autojump_clock, group_cluster, kind, join_s):
    """The others look at the route when they are told that it has joined."""
    async with opened_group(group_cluster, kind) as group:
        group.set_route(group_cluster.broker)
        await trio.sleep(100)
        group.nursery.start_soon(group.keep_sending)
        await group.is_shared_out(QUEUES, 1)
        group.twice.clear()
        group.given.clear()
        group.set_route(group_cluster.broker, group.second)
        await trio.sleep(join_s)
        group.join("3")
        await trio.sleep(4)
        await group.is_shared_out(2 * QUEUES, 1)
        assert not group.twice
        assert not [count for count in group.given.values() if count > 1]


async def test_many_that_join_at_once(autojump_clock, group_cluster):
    """Those that are there do not look at the route each time."""
    async with opened_group(group_cluster, "push") as group:
        group_cluster.name_server.seen.clear()
        for name in range(10, 30):
            group.join(str(name))
            await trio.sleep(0.2)
        asked = len(group_cluster.name_server.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        assert asked < 22 * 2 * 2


async def test_brokers_are_asked_for_the_members_once_in_a_round(autojump_clock, group_cluster):
    """Not for each topic, although all brokers are asked after a route's change."""
    broker, second = group_cluster.broker, group_cluster.add_master("broker-b")
    second.consumers.serves_groups = True
    topics = [f"T{number}" for number in range(5)]

    def set_route(*brokers):
        for topic in topics:
            group_cluster.name_server.add_route(topic, *brokers)

    set_route(broker, second)
    async with group_cluster.client() as client, client.lite_pull_consumer("G") as consumer:
        for topic in topics:
            await consumer.subscribe(topic)
        await until(lambda: len(consumer.assignment) == 20)
        set_route(broker)
        await until(lambda: len(consumer.assignment) == 10)
        for each in (broker, second):
            each.seen.clear()
        await trio.sleep(41)
        assert len(broker.requests(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) <= 4
        assert consumer._member.rebalance.rounds > 2


@pytest.mark.parametrize("answer", [None, lambda command: command.answer(3, "not supported")])
async def test_a_broker_that_does_not_say_what_a_member_has(autojump_clock, group_cluster, answer):
    """Its queues are taken in a second, as if nobody had them."""
    async with opened_group(group_cluster, "lite") as group:
        for broker in (group_cluster.broker, group.second):
            broker.script(STATUS, *[answer] * 1000)
        group.set_route(group_cluster.broker)
        await until(lambda: group_cluster.broker.requests(STATUS))
        await group.is_shared_out(QUEUES, 1.5)


async def test_a_broker_that_cannot_be_reached_to_say_what_a_member_has(autojump_clock, group_cluster):
    """It is waited for as long as one that does not answer, although a dial may take longer; the others' answers count."""
    second = group_cluster.add_master("broker-b")
    second.consumers.serves_groups = True
    async with group_cluster.client(instance_name="1") as client, client.lite_pull_consumer("G") as consumer:
        await consumer.subscribe("T")
        await until(lambda: len(consumer.assignment) == 4)
        group_cluster.network.hanging.add(second.address)
        await second.cut()
        began = trio.current_time()
        have = await consumer._member.rebalance._members.still_have(dict.fromkeys(consumer.assignment, "10.0.0.1@1"))
        assert trio.current_time() - began <= STILL_HAVE_TIMEOUT_S
        assert {queue.broker_name for queue in have} == {"broker-a"}


@pytest.mark.parametrize("kind", ["lite", "push", "ordered", "share"])
async def test_a_member_that_is_giving_queues_up(autojump_clock, group_cluster, kind):
    """One has noticed the change 3.3 s before the other, which waits for its callback."""
    async with opened_group(group_cluster, kind) as group:
        group.revokes_s["1"] = 5
        group.set_route(group_cluster.broker)
        await trio.sleep(30)
        await group.is_shared_out(QUEUES)
        assert not group.twice


@pytest.mark.parametrize("first", ["1", "5"])
async def test_a_share_of_which_no_result_was_taken_yet(autojump_clock, group_cluster, first):
    """It has its queues, although no position in them is known."""
    async with opened_group(group_cluster, "idle share") as group:
        await trio.sleep(15 if first == "1" else 18)
        group.set_route(group_cluster.broker)
        await trio.sleep(35)
        await group.is_shared_out(QUEUES)
        assert not group.twice


def halves_for(name):
    def halves(client_id, queues, members):
        if client_id != f"10.0.0.1@{name}":
            raise KeyError(client_id)
        half = len(queues) // 2
        return queues[:half] if client_id == members[0] else queues[half:]

    return halves


async def test_a_strategy_that_knows_its_own_member_only(autojump_clock, group_cluster, caplog):
    """Nobody is asked; the strategy did not fail for this member, whose queues do not stay as they are."""
    async with opened_group(group_cluster, "lite", halves_for) as group:
        group.set_route(group_cluster.broker)
        await trio.sleep(30)
        await group.is_shared_out(QUEUES, 1)
        assert "strategy" not in caplog.text
        assert not group_cluster.broker.requests(STATUS)


def has_everything(command):
    member = command.header(GetConsumerStatusRequest).client_addr
    queues = {triomq.MessageQueue("T", "broker-a", number): 0 for number in range(QUEUES)}
    return command.answer(0, body=GetConsumerStatusBody(consumer_table={member: queues}).encode())


async def test_a_member_that_never_notices(autojump_clock, group_cluster):
    """The other one waits for a minute."""
    broker = group_cluster.broker
    async with opened_group(group_cluster, "lite") as group:
        broker.script(STATUS, *[has_everything] * 1000)
        group.set_route(broker)
        await until(lambda: broker.requests(STATUS))
        mine = [queue for queue, owners in group.owners.items() if queue.topic == "T" and "5" in owners]
        await trio.sleep(ROUTE_SPREAD_S - 5)
        assert not [queue for queue in mine if queue.broker_name == "broker-a"]
        assert len(broker.requests(STATUS)) < 2 * ROUTE_SPREAD_S
        await group.is_shared_out(QUEUES, 10)
