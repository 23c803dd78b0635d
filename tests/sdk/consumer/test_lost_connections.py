"""A member whose connection is lost: other members may have taken its queues over, and got further."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consumer_broker import MemoryOffsets, until

import triomq
from triomq import errors
from triomq._consumer.group.expected_members import RETURN_MAX_S
from triomq_protocol.codes import RequestCode

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-a", 1)
KINDS = pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite", "lite by hand"])
PACE_S = 0.5


class Member:
    """A consumer of group G, of any kind, that handles two messages a second of each queue."""

    def __init__(self, consumer: Any, cluster: Any, events: Any, *, by_hand: bool) -> None:
        self.consumer = consumer
        self.cluster = cluster
        self.events = events
        self.seen: dict[int, list[int]] = {0: [], 1: []}
        self._by_hand = by_hand

    async def handle(self, message: Any) -> None:
        await trio.sleep(PACE_S)
        self.seen[message.queue_id].append(int(message.body))

    async def poll(self) -> None:
        async for message in self.consumer:
            await self.handle(message)
            if self._by_hand:
                await self.consumer.commit({message.queue: message.queue_offset + 1})

    def commits(self, queue_id: int = 0) -> list[int]:
        """All offsets of a queue that were committed since they were cleared."""
        return [
            offset
            for _, topic, queue, offset in self.cluster.broker.consumers.commits
            if (topic, queue) == ("T", queue_id)
        ]

    async def cut_off(self, offsets: dict[int, int] | None = None) -> None:
        """The broker ends the connections, as when the member has sent no heartbeat for long.

        Args:
            offsets: queue id -> what another member has committed.
        """
        for queue_id, offset in (offsets or {}).items():
            self.cluster.broker.offsets["G", "T", queue_id] = offset
        self.cluster.broker.consumers.commits.clear()
        await self.cluster.broker.cut()


@pytest.fixture
def at_work(group_cluster: Any, open_consumer: Any, events: Any) -> Any:
    """Opens a member of a kind that has consumed some of 100 messages of each queue, and committed them."""

    @asynccontextmanager
    async def opened(kind: str, **further: Any) -> AsyncIterator[Member]:
        for queue_id in (0, 1):
            for number in range(100):
                group_cluster.broker.store("T", queue_id, b"%d" % number)
        lite = kind.startswith("lite")
        options: dict[str, Any] = (
            {"kind": "lite", "auto_commit": kind == "lite"} if lite else {"ordered": kind == "ordered"}
        )
        async with open_consumer(**options, **further) as consumer, trio.open_nursery() as nursery:
            member = Member(consumer, group_cluster, events, by_hand=kind == "lite by hand")
            if lite:
                nursery.start_soon(member.poll)
            else:
                nursery.start_soon(lambda: consumer.run(member.handle, concurrency=2))
            await until(
                lambda: len(member.seen[0]) >= 5 if further else group_cluster.broker.offsets.get(("G", "T", 0), 0) >= 5
            )
            yield member
            nursery.cancel_scope.cancel()

    return opened


@KINDS
async def test_it_continues_where_another_member_stopped(autojump_clock, at_work, kind):
    async with at_work(kind) as member:
        await member.cut_off({0: 90})
        await until(lambda: 99 in member.seen[0])
        between = [number for number in member.seen[0] if 60 <= number < 90]
        await until(lambda: 100 in member.commits())
        assert sorted(member.seen[0][-10:]) == list(range(90, 100))
        assert not between, "what was pulled before is given up"
        assert min(member.commits()) >= 90, "the group's offset never goes back"
        assert member.events.kinds().count("overtaken") == 1


@KINDS
async def test_a_queue_that_another_member_owns_now_is_given_up_without_a_commit(
    autojump_clock, group_cluster, at_work, kind
):
    async with at_work(kind) as member:
        await member.cut_off({1: 80})
        # It comes behind this member, so that the second queue is its own.
        group_cluster.broker.consumers.members["G"] = {"~other": object()}
        await until(lambda: Q1 not in member.consumer._member.engine.queues)
        await trio.sleep(40)
        assert not member.commits(1)
        assert 80 not in member.seen[1]
        assert min(member.commits()) >= 5, "the other queue is still its own, and goes on"


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
@pytest.mark.parametrize("is_stored_elsewhere", [False, True])
async def test_a_queue_that_is_given_up_before_it_is_certain_is_committed(
    autojump_clock, group_cluster, at_work, kind, is_stored_elsewhere
):
    store = MemoryOffsets()
    async with at_work(kind, **({"offset_store": store} if is_stored_elsewhere else {})) as member:
        await until(lambda: len(member.seen[1]) > 40)
        await member.cut_off()
        group_cluster.broker.consumers.members["G"] = {"~other": object()}
        await until(lambda: Q1 not in member.consumer._member.engine.queues)
        await trio.sleep(2 * PACE_S)
        seen = len(member.seen[1])
        committed = store.offsets[Q1] if is_stored_elsewhere else group_cluster.broker.offsets["G", "T", 1]
        assert seen > 40
        assert seen - 2 <= committed <= seen, "the next owner gets no more than what was being handled"


async def test_a_caller_can_commit_in_on_revoked_after_a_lost_connection(autojump_clock, group_cluster, open_consumer):
    group_cluster.broker.store("T", 1, b"0")

    async def commit(queues):
        if Q1 in queues:
            await consumer.commit({Q1: 1})

    callbacks = triomq.ConsumerCallbacks(on_revoked=commit)
    async with open_consumer("lite", auto_commit=False, callbacks=callbacks) as consumer:
        assert await consumer.poll()
        await group_cluster.broker.cut()
        group_cluster.broker.consumers.members["G"] = {"~other": object()}
        await until(lambda: Q1 not in consumer._member.engine.queues)
        await until(lambda: group_cluster.broker.offsets["G", "T", 1] == 1, 10)


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_silent_broker_delays_giving_up_in_doubt_for_a_moment_only(
    autojump_clock, group_cluster, at_work, kind
):
    async with at_work(kind) as member:
        group_cluster.broker.script(RequestCode.QUERY_CONSUMER_OFFSET, *[None] * 100)
        await member.cut_off()
        group_cluster.broker.consumers.members["G"] = {"~other": object()}
        await until(lambda: Q1 not in member.consumer._member.engine.queues, 10)
        await trio.sleep(10)
        assert not member.commits(1), "another member may have got further"


@KINDS
async def test_a_reset_back_that_was_made_meanwhile_is_overwritten(autojump_clock, at_work, kind):
    """It looks like commits that a broker lost in a crash, which must be repaired."""
    async with at_work(kind) as member:
        await member.cut_off({0: 0})
        await until(lambda: 100 in member.commits())
        assert sorted(member.seen[0]) == list(range(100)), "nothing comes again"
        assert min(member.commits()) >= 5
        assert "overtaken" not in member.events.kinds()


@KINDS
async def test_nothing_is_redelivered_when_there_was_no_other_member(autojump_clock, at_work, kind):
    async with at_work(kind) as member:
        for _ in range(3):
            await member.cut_off()
            await trio.sleep(7)
        await until(lambda: 99 in member.seen[0] and 99 in member.seen[1])
        for queue_id in (0, 1):
            # A delivery that ends while the connection is lost is not repeated either.
            assert sorted(member.seen[queue_id]) == list(range(100))
        await until(lambda: 100 in member.commits() and 100 in member.commits(1))
        assert "overtaken" not in member.events.kinds()


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_seek_back_is_kept(autojump_clock, at_work, kind):
    async with at_work(kind) as member:
        await member.cut_off()
        await member.consumer.seek(Q0, 2)
        member.seen[0].clear()
        await until(lambda: 10 in member.seen[0])
        assert 2 in member.seen[0]
        assert "overtaken" not in member.events.kinds()


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
@pytest.mark.parametrize("other", [0, 95])
async def test_at_the_end_only_progress_is_committed(autojump_clock, at_work, kind, other):
    async with at_work(kind) as member:
        await until(lambda: len(member.seen[0]) > 30)
        await member.cut_off({0: other} if other else None)
        await member.consumer.aclose()
        # What the last poll gave out is not consumed yet.
        progress = member.seen[0][-1] + 1 if kind != "lite" else member.seen[0][-1]
        assert member.commits()
        assert min(member.commits()) >= max(progress, other)


async def test_a_commit_that_stays_in_doubt_is_an_error(autojump_clock, group_cluster, open_consumer):
    group_cluster.broker.store("T", 0, b"0")
    async with open_consumer("lite", auto_commit=False) as consumer:
        assert await consumer.poll()
        await group_cluster.broker.stop()
        started_s = trio.current_time()
        with pytest.raises(errors.LinkLost, match="other members may have got further"):
            await consumer.commit()
        assert trio.current_time() - started_s < 30
        group_cluster.broker.up = True
        await until(lambda: not consumer._member.positions.in_doubt(Q0))
        await consumer.commit()
        assert group_cluster.broker.offsets["G", "T", 0] == 1


async def test_assigned_queues_belong_to_no_other_member(autojump_clock, group_cluster, open_consumer):
    group_cluster.broker.store("T", 0, b"0")
    async with group_cluster.client() as client, client.lite_pull_consumer("H", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        assert await consumer.poll()
        await group_cluster.broker.cut()
        assert not consumer._member.positions.in_doubt(Q0)
        await consumer.commit()
        assert group_cluster.broker.offsets["H", "T", 0] == 1


@asynccontextmanager
async def without_broker(cluster: Any, consumer: Any) -> AsyncIterator[None]:
    """Broker-a restarts with older offsets, as after a crash, and is not in the route meanwhile."""
    other = cluster.network.nodes["broker-b-0:10911"]
    await cluster.broker.stop()
    cluster.name_server.add_route("T", other)
    await until(lambda: Q0 not in consumer._member.engine.queues)
    await trio.sleep(30)  # what handlers have begun has ended
    cluster.broker.offsets["G", "T", 0] = cluster.broker.offsets["G", "T", 1] = 2
    cluster.broker.consumers.commits.clear()
    yield
    cluster.broker.up = True
    cluster.name_server.add_route("T", cluster.broker, other)


@pytest.fixture
def two_masters(group_cluster: Any) -> Any:
    """The cluster with a second master of the topic."""
    group_cluster.add_master("broker-b").consumers.serves_groups = True
    return group_cluster


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_queue_is_continued_when_its_broker_comes_back(autojump_clock, two_masters, at_work, kind):
    async with at_work(kind) as member:
        async with without_broker(two_masters, member.consumer):
            before = len(member.seen[0])
            member.seen[0].clear()
        await until(lambda: 99 in member.seen[0])
        assert before - 2 <= min(member.seen[0]) <= before, "only what was being handled comes again"
        await until(lambda: 100 in member.commits())
        assert min(member.commits()) >= before - 2, "the group's offset never goes back"


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_queue_whose_broker_leaves_the_route_is_committed_while_that_runs(
    autojump_clock, two_masters, at_work, kind
):
    """It has not registered at a name server that has restarted, and other members may get the queue first."""
    async with at_work(kind, commit_every_s=600) as member:
        await until(lambda: len(member.seen[0]) > 30)
        two_masters.name_server.add_route("T", two_masters.network.nodes["broker-b-0:10911"])
        await until(lambda: Q0 not in member.consumer._member.engine.queues, 40)
        progress = len(member.seen[0])
        await until(lambda: member.commits(), 1)
        # What was handed out then does not count.
        assert max(member.commits()) >= progress - 2


async def test_what_was_not_committed_by_hand_comes_again_when_the_broker_comes_back(
    autojump_clock, two_masters, open_consumer
):
    for number in range(10):
        two_masters.broker.store("T", 0, b"%d" % number)
    async with open_consumer("lite", auto_commit=False) as consumer:
        while len(await consumer.poll()) < 10:
            pass
        assert await consumer.poll(0.5) == []
        async with without_broker(two_masters, consumer):
            pass
        assert [message.queue_offset for message in await consumer.poll()] == list(range(2, 10))


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_queue_that_another_member_has_had_since_starts_at_the_committed_offset(
    autojump_clock, two_masters, at_work, kind
):
    brokers = two_masters.broker, two_masters.network.nodes["broker-b-0:10911"]
    async with at_work(kind) as member:
        rebalance = member.consumer._member.rebalance
        async with without_broker(two_masters, member.consumer):
            for broker in brokers:
                broker.consumers.members["G"] = {"!other": object(), **broker.consumers.members["G"]}
        await trio.sleep(60)
        assert Q0 not in rebalance.owned
        # It went back, and ends.
        for broker in brokers:
            del broker.consumers.members["G"]["!other"]
        two_masters.broker.offsets["G", "T", 0] = 3
        member.seen[0].clear()
        rebalance.wake()
        await until(lambda: 99 in member.seen[0])
        assert min(member.seen[0]) == 3


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_new_subscription_starts_at_the_committed_offset(autojump_clock, two_masters, at_work, kind):
    async with at_work(kind) as member:
        async with without_broker(two_masters, member.consumer):
            await member.consumer.unsubscribe("T")
            member.seen[0].clear()
            await member.consumer.subscribe("T")
        await until(lambda: 99 in member.seen[0])
        assert min(member.seen[0]) == 2


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "lite"])
async def test_a_reset_counts_more_than_where_a_member_was(autojump_clock, two_masters, at_work, kind):
    async with at_work(kind) as member:
        async with without_broker(two_masters, member.consumer):
            member.seen[0].clear()
            await member.consumer._member.reset("T", {Q0: 2})
        await until(lambda: 99 in member.seen[0])
        assert min(member.seen[0]) == 2


async def test_a_commit_by_hand_that_a_killed_broker_has_lost(autojump_clock, two_masters, open_consumer):
    for number in range(10):
        two_masters.broker.store("T", 0, b"%d" % number)
    async with open_consumer("lite", auto_commit=False) as consumer:
        while len(await consumer.poll()) < 10:
            pass
        await consumer.commit({Q0: 6})
        async with without_broker(two_masters, consumer):
            pass
        assert [message.queue_offset for message in await consumer.poll()] == list(range(6, 10))


@pytest.fixture
async def shared_by_two(two_masters, open_consumer):
    """A consumer that has the first broker's queues, and the second broker, whose queues are another member's."""
    second = two_masters.network.nodes["broker-b-0:10911"]
    for broker in (two_masters.broker, second):
        broker.consumers.members["G"] = {"~other": object()}
    async with open_consumer("lite") as consumer:
        await until(lambda: consumer.assignment == [Q0, Q1])
        await trio.sleep(60)
        two_masters.name_server.seen.clear()
        yield consumer, second


async def test_a_broker_that_comes_back_knows_a_member_that_pulls_nothing_there(autojump_clock, shared_by_two):
    """Otherwise it would list the group without this member, and the other one take the queues of this one, too."""
    consumer, second = shared_by_two
    me = consumer._member._client.client_id
    await second.stop()
    await trio.sleep(4)
    assert consumer.assignment == [Q0, Q1]
    second.up = True
    await until(lambda: me in second.consumers.members["G"], 6)


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_a_member_without_queues_is_known_again_at_once(autojump_clock, group_cluster, open_consumer, options):
    """It takes over when the members that have the queues end."""
    members = group_cluster.broker.consumers.members
    members["G"] = {"!1": object(), "!2": object()}
    async with open_consumer(**options) as consumer:
        await trio.sleep(10)
        assert not consumer.assignment
        group_cluster.broker.seen.clear()
        await group_cluster.broker.cut()
        await until(lambda: group_cluster.broker.requests(RequestCode.HEART_BEAT), 1)
        await until(lambda: len(members["G"]) == 3, 1)


@pytest.fixture
def half(group_cluster, open_consumer):
    """Opens a member that has one of two queues; the other one is another member's."""

    @asynccontextmanager
    async def opened(**options):
        members = group_cluster.broker.consumers.members
        members["G"] = {"~other": object()}
        async with open_consumer(**options) as consumer:
            await until(lambda: consumer.assignment == [Q0])
            yield consumer, members["G"]

    return opened


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
@pytest.mark.parametrize("away_s", [1, 5, 60])
async def test_a_restarted_broker_lists_the_members_one_after_the_other(
    autojump_clock, group_cluster, half, options, away_s
):
    """The first one that dials it waits for those that it knows."""
    async with half(**options) as (consumer, members):
        await group_cluster.broker.stop()
        await trio.sleep(away_s)
        members.clear()
        group_cluster.broker.up = True
        await until(lambda: members, 6)
        await trio.sleep(min(2 * away_s, 6))
        assert consumer.assignment == [Q0]
        members["~other"] = object()
        await trio.sleep(60)
        assert consumer.assignment == [Q0]


async def test_no_queue_is_taken_while_members_are_expected(autojump_clock, group_cluster, half):
    """One that has joined meanwhile does not expect them, and may take the same queues."""
    async with half() as (consumer, members):
        await group_cluster.broker.stop()
        await trio.sleep(20)
        members.clear()
        members["!new"] = object()
        group_cluster.broker.up = True
        await until(lambda: not consumer.assignment, 6)
        await trio.sleep(RETURN_MAX_S - 3)
        assert not consumer.assignment
        await until(lambda: consumer.assignment == [Q1], 6)


async def test_a_broker_that_has_come_back_is_not_asked_for_the_members_first(autojump_clock, shared_by_two):
    consumer, second = shared_by_two
    await second.stop()
    await trio.sleep(5)
    second.seen.clear()
    second.up = True
    await until(lambda: second.requests(RequestCode.HEART_BEAT), 6)
    second.seen.clear()
    rounds = consumer._member.rebalance.rounds
    for _ in range(20):
        consumer._member.rebalance.wake()
        await trio.sleep(0.1)
    assert consumer._member.rebalance.rounds >= rounds + 20
    assert not second.requests(RequestCode.GET_CONSUMER_LIST_BY_GROUP)


async def test_a_member_that_ended_while_the_broker_was_away(autojump_clock, group_cluster, half):
    async with half() as (consumer, members):
        await group_cluster.broker.stop()
        await trio.sleep(20)
        members.clear()
        group_cluster.broker.up = True
        await until(lambda: consumer.assignment == [Q0, Q1], 6 + RETURN_MAX_S)


async def test_a_member_that_leaves_after_it_has_come_back(autojump_clock, group_cluster, half):
    """As in a rolling update: the broker restarts, then the members."""
    async with half() as (consumer, members):
        await group_cluster.broker.stop()
        await trio.sleep(20)
        members.clear()
        group_cluster.broker.up = True
        await until(lambda: members, 6)
        members["~other"] = object()
        consumer._member.rebalance.wake()
        await trio.sleep(1)
        del members["~other"]
        consumer._member.rebalance.wake()
        await until(lambda: consumer.assignment == [Q0, Q1], 2)


async def test_a_member_that_leaves_before_another_has_come_back(autojump_clock, group_cluster, open_consumer):
    """That one expects it, too, as it never sees it, and keeps its queue."""
    members = group_cluster.broker.consumers.members
    members["G"] = {"!1": object(), "!2": object()}
    async with open_consumer() as consumer:
        await until(lambda: len(members["G"]) == 3)
        await trio.sleep(1)
        await group_cluster.broker.stop()
        await trio.sleep(20)
        members["G"].clear()
        group_cluster.broker.up = True
        await until(lambda: members["G"], 6)
        for there in ("!1", None, "!2"):
            for name in ("!1", "!2"):
                members["G"].pop(name, None)
            if there is not None:
                members["G"][there] = object()
            consumer._member.rebalance.wake()
            await trio.sleep(1)
        await trio.sleep(RETURN_MAX_S - 6)
        assert not consumer.assignment
        await until(lambda: consumer.assignment == [Q1], 6)


async def test_a_member_that_ended_is_not_expected_again(autojump_clock, group_cluster, half):
    """Although the connection is lost again and again."""
    async with half() as (consumer, members):
        await group_cluster.broker.stop()
        await trio.sleep(20)
        members.clear()
        group_cluster.broker.up = True
        with trio.fail_after(30):
            while consumer.assignment == [Q0]:
                await trio.sleep(0.8)
                await group_cluster.broker.cut()


async def test_a_member_whose_lock_another_one_has_is_known_again_at_once(autojump_clock, group_cluster, open_consumer):
    consumers = group_cluster.broker.consumers
    async with open_consumer(ordered=True) as consumer:
        await until(lambda: len(consumer.assignment) == 2)
        for key in consumers.locks:
            consumers.locks[key] = ("other", trio.current_time() + 600)
        await until(lambda: consumer._member.positions.get(Q0) is None)
        await trio.sleep(20)  # the last pull has ended
        group_cluster.broker.seen.clear()
        await group_cluster.broker.cut()
        await until(lambda: group_cluster.broker.requests(RequestCode.HEART_BEAT), 1)


@pytest.mark.parametrize("noticed_s", [0, 0.5, 6])
async def test_a_broker_that_leaves_is_noticed_by_a_member_that_pulls_nothing_there(
    autojump_clock, two_masters, shared_by_two, noticed_s
):
    """The other member notices it when a pull fails, and takes a queue: until this one does, both have it."""
    consumer, second = shared_by_two
    await second.stop()
    await trio.sleep(noticed_s)
    two_masters.name_server.add_route("T", two_masters.broker)
    await until(lambda: consumer.assignment == [Q0], noticed_s + 1.5)


async def test_a_new_broker_that_closes_its_first_connection(autojump_clock, two_masters, shared_by_two):
    """The route is asked for at once, although another broker was lost an hour ago: the new one may leave it again."""
    _, second = shared_by_two
    await second.stop()
    await trio.sleep(600)
    second.up = True
    await trio.sleep(3000)
    third = two_masters.add_master("broker-c")
    third.talk = trio.aclose_forcefully
    two_masters.name_server.add_route("T", two_masters.broker, second, third)
    await until(lambda: third.address in two_masters.network.dials, 40)
    two_masters.name_server.seen.clear()
    await until(lambda: two_masters.name_server.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC), 1.5)


async def test_a_broker_that_is_connected_again_causes_no_further_questions(autojump_clock, two_masters, shared_by_two):
    consumer, second = shared_by_two
    await second.cut()
    await until(lambda: not consumer._member.positions.in_doubt(Q0))
    await trio.sleep(20)
    asked = two_masters.name_server.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert 1 <= len(asked) <= 4


@pytest.mark.parametrize("polls_again", [False, True])
@pytest.mark.parametrize("ends", [False, True])
async def test_the_start_of_a_new_group_is_not_committed_behind_another_member(
    autojump_clock, group_cluster, open_consumer, polls_again, ends
):
    """It could not be committed at once. What was polled since is perhaps further, but is not committed by hand."""
    broker = group_cluster.broker
    for number in range(10):
        broker.store("T", 1, b"%d" % number)
    broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, *[None] * 100)
    async with open_consumer("lite", auto_commit=False) as consumer:
        polled = 0
        while polled < 10:
            polled += len(await consumer.poll())
        if polls_again:
            assert not await consumer.poll(0.5)
        assert ("G", "T", 1) not in broker.offsets
        broker.scripts.clear()
        broker.offsets["G", "T", 1] = 5
        await broker.cut()
        if ends:
            await until(lambda: consumer._member.positions.in_doubt(Q1))
        else:
            broker.consumers.members["G"] = {"~other": object()}
            await until(lambda: Q1 not in consumer._member.engine.queues)
            await trio.sleep(5)
    assert broker.offsets["G", "T", 1] == 5


@pytest.mark.parametrize("how", ["down", "behind a proxy"])
@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_a_broker_that_stays_unreachable_costs_few_route_requests(
    autojump_clock, group_cluster, open_consumer, options, how
):
    """Also if a proxy in front of it takes each connection and closes it."""
    broker = group_cluster.broker
    async with open_consumer(**options) as consumer:
        await until(lambda: len(consumer.assignment) == 2)
        await trio.sleep(20)
        if how == "down":
            await broker.stop()
        else:
            broker.talk = trio.aclose_forcefully
            await broker.cut()
        await trio.sleep(60)
        group_cluster.name_server.seen.clear()
        await trio.sleep(600)
        route_requests = group_cluster.name_server.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        topics = 1 if options.get("kind") else 2  # with the retry topic
        assert len(route_requests) < topics * (600 / 5 + 600 / 30 + 10)
