"""Sharing a group's queues: the plan, and the loop with brokers whose answers are incomplete or wrong."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import trio

import triomq
from triomq._consumer.group.allocate import Average, ConsistentHash, MachineRoomNearby, hashes_names, in_namespace
from triomq._consumer.group.rebalance import (
    HAND_OVER_S,
    Rebalance,
)
from triomq._message.namespace import Namespace

Q = [triomq.MessageQueue("T", "broker-a", number) for number in range(8)]


class Assignee:
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.refuses: set[tuple[str, triomq.MessageQueue]] = set()
        self.stuck: set[triomq.MessageQueue] = set()
        self.kept_queues: list[triomq.MessageQueue] = []
        self.expected: list[tuple[str, int]] = []
        self.others: list[set[triomq.MessageQueue]] = []

    def expect(self, topic, queues, /):
        self.expected.append((topic, queues))

    def left_to_others(self, queues, /):
        self.others.append(set(queues))

    async def assigned(self, queue, /):
        await trio.lowlevel.checkpoint()
        self.calls.append(("assigned", queue))
        return ("assigned", queue) not in self.refuses

    async def revoked(self, queues, /):
        await trio.lowlevel.checkpoint()
        self.calls.extend(("revoked", queue) for queue in queues)
        self.stuck.difference_update(queues)
        return [queue for queue in queues if ("revoked", queue) not in self.refuses]

    async def kept(self, queue, /):
        await trio.lowlevel.checkpoint()
        self.kept_queues.append(queue)
        return ("kept", queue) not in self.refuses

    async def topic_changed(self, topic, /):
        await trio.lowlevel.checkpoint()
        self.calls.append(("changed", topic))

    def is_stuck(self, queue, /):
        return queue in self.stuck

    def take_calls(self):
        calls, self.calls = self.calls, []
        return calls


class Route:
    def __init__(self, topic, queues):
        self.topic = topic
        self.subscribe_queues = tuple(queues)


class Routes:
    namespace = Namespace()

    def __init__(self) -> None:
        self.changed = []
        self.routes = {"T": Route("T", Q[:4])}

    async def for_subscribing(self, topic):
        await trio.lowlevel.checkpoint()
        if topic not in self.routes:
            raise triomq.errors.RouteNotFound(f"no route to topic {topic}")
        return self.routes[topic]


class Members:
    def __init__(self, *ids: str) -> None:
        self.ids: list[str] | None = list(ids)
        self.asked = 0
        self.during = None
        self.expects_more = False

    def following(self, _topics):
        return nullcontext()

    def begin_round(self):
        pass

    async def of(self, _topic):
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if self.during is not None:
            self.during()
        return self.ids

    async def of_all_brokers(self, topic):
        return await self.of(topic)

    async def still_have(self, _owners):
        await trio.lowlevel.checkpoint()
        return set()


class World:
    def __init__(self, *ids: str, broadcast: bool = False, strategy=None) -> None:
        self.assignee = Assignee()
        self.routes = Routes()
        self.members = Members(*ids)
        self.topics = {"T"}
        self.beats = 0
        self.events = []
        self.rebalance = Rebalance(
            "G", "me", self.assignee, topics=lambda: self.topics, routes=self.routes,
            members=None if broadcast else self.members, beat=self.beat, report=self.events.append,
            strategy=strategy,
        )  # fmt: skip

    async def beat(self):
        await trio.lowlevel.checkpoint()
        self.beats += 1


async def test_a_join_and_a_leave(autojump_clock) -> None:
    world = World("me")
    assert await world.rebalance.rebalance()
    assert world.assignee.take_calls() == [*(("assigned", queue) for queue in Q[:4]), ("changed", "T")]
    world.members.ids = ["you", "me"]
    assert await world.rebalance.rebalance()
    # "me" comes before "you".
    assert world.assignee.take_calls() == [("revoked", Q[2]), ("revoked", Q[3]), ("changed", "T")]
    assert await world.rebalance.rebalance()
    assert world.assignee.take_calls() == []
    assert world.rebalance.owned == set(Q[:2])
    assert world.assignee.expected == [("T", 4), ("T", 2), ("T", 2)]
    assert world.assignee.others == [set(), {Q[2], Q[3]}, {Q[2], Q[3]}]


async def test_queues_that_stay_are_named_after_those_that_go(autojump_clock) -> None:
    world = World("me")
    await world.rebalance.rebalance()
    assert not world.assignee.kept_queues
    world.members.ids = ["you", "me"]
    world.assignee.refuses = {("kept", Q[1])}
    assert not await world.rebalance.rebalance(), "a queue of which nothing is certain yet"
    assert world.assignee.kept_queues == Q[:2]
    assert world.rebalance.rounds == 2
    # Without members nothing is certain.
    world.assignee.kept_queues.clear()
    world.members.ids = None
    assert not await world.rebalance.rebalance()
    assert not world.assignee.kept_queues


async def test_members_are_not_notified(autojump_clock) -> None:
    world = World("me")
    await world.rebalance.rebalance()
    world.assignee.take_calls()
    world.members.ids = None
    assert not await world.rebalance.rebalance()
    world.members.ids = ["me"]
    del world.routes.routes["T"]
    await world.rebalance.rebalance()
    assert world.assignee.take_calls() == []
    assert world.rebalance.owned == set(Q[:4])


async def test_not_listed_keeps_once_and_never_takes(autojump_clock) -> None:
    world = World("you")
    assert not await world.rebalance.rebalance()
    assert not await world.rebalance.rebalance()
    assert world.assignee.take_calls() == []
    world.members.ids = ["me"]
    assert await world.rebalance.rebalance()
    world.assignee.take_calls()
    world.members.ids = ["you"]
    beats = world.beats
    assert not await world.rebalance.rebalance()
    assert (world.assignee.take_calls(), world.beats) == ([], beats + 1)
    assert not await world.rebalance.rebalance()
    assert [call for call in world.assignee.take_calls() if call[0] == "revoked"] == [("revoked", q) for q in Q[:4]]
    assert not world.rebalance.owned
    assert {event.kind for event in world.events} == {"not_a_member"}


async def test_a_member_that_has_just_joined_is_no_event(autojump_clock) -> None:
    world = World("you")
    assert not await world.rebalance.rebalance()
    assert (world.events, world.beats) == ([], 1)
    assert not await world.rebalance.rebalance()
    assert [event.kind for event in world.events] == ["not_a_member"]


async def test_unlisted_members_are_asked_for_less_often_but_refusals_every_second(autojump_clock) -> None:
    world = World("me")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.rebalance.run)
        await trio.sleep(0.5)
        world.members.ids, world.members.asked = None, 0
        world.rebalance.wake()
        await trio.sleep(60)
        assert world.members.asked < 20
        world.members.ids = ["me", "you"]
        await trio.sleep(5)
        assert world.rebalance.owned == set(Q[:2])
        # The other topic stays unlisted, which must not delay this one.
        world.topics.add("U")
        world.routes.routes["U"] = Route("U", [triomq.MessageQueue("U", "broker-b", 0)])
        listed = world.members.of
        world.members.of = lambda topic: listed(topic) if topic == "T" else nobody()
        world.rebalance.wake()
        await trio.sleep(60)
        world.members.ids = ["me"]
        world.assignee.refuses.add(("assigned", Q[3]))
        await trio.sleep(5.5)
        world.assignee.refuses.clear()
        await trio.sleep(1.2)
        assert world.rebalance.owned == set(Q[:4])
        nursery.cancel_scope.cancel()


async def nobody():
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("topic", "soon"), [("T", True), ("%RETRY%G", False)])
async def test_a_new_topic_is_taken_soon(autojump_clock, topic: str, soon: bool) -> None:
    world = World("me")
    world.topics = {topic}
    route = world.routes.routes.pop("T")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.rebalance.run)
        await trio.sleep(4)
        world.routes.routes[topic] = route
        await trio.sleep(5)
        assert bool(world.rebalance.owned) == soon
        nursery.cancel_scope.cancel()


async def test_topics_that_are_no_longer_wanted_are_given_up(autojump_clock) -> None:
    world = World("me")
    await world.rebalance.rebalance()
    world.assignee.take_calls()
    world.topics.clear()
    assert await world.rebalance.rebalance()
    assert [call[0] for call in world.assignee.take_calls()] == ["revoked"] * 4 + ["changed"]


async def test_broadcast_takes_everything(autojump_clock) -> None:
    world = World(broadcast=True)
    assert await world.rebalance.rebalance()
    assert world.rebalance.owned == set(Q[:4])


async def test_a_refusal_is_tried_again_soon(autojump_clock) -> None:
    world = World("me")
    world.assignee.refuses.add(("assigned", Q[1]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.rebalance.run)
        await trio.sleep(0.5)
        assert world.rebalance.owned == {Q[0], Q[2], Q[3]}
        world.assignee.refuses.clear()
        await trio.sleep(1)
        assert world.rebalance.owned == set(Q[:4])
        # And one that cannot be given up yet stays ours.
        world.assignee.refuses.add(("revoked", Q[3]))
        world.members.ids = ["me", "you"]
        world.rebalance.wake()
        await trio.sleep(0.5)
        assert world.rebalance.owned == {Q[0], Q[1], Q[3]}
        world.assignee.refuses.clear()
        await trio.sleep(1)
        assert world.rebalance.owned == {Q[0], Q[1]}
        nursery.cancel_scope.cancel()


async def test_a_failing_strategy_is_logged_now_and_then(autojump_clock, caplog) -> None:
    """Its round is repeated every second."""

    def fails(*_):
        raise RuntimeError("no idea")

    world = World("me", strategy=fails)
    with trio.move_on_after(14.5):
        await world.rebalance.run()
    first, second = (record for record in caplog.records if record.levelname == "ERROR")
    assert first.message.startswith("group G, topic T: the allocation strategy ")
    assert first.exc_info[1].args == ("no idea",)
    assert second.message.endswith("(and 9 more like it since the last such line)")
    assert not world.rebalance.owned


async def test_a_stuck_queue_is_revoked_and_assigned_again(autojump_clock) -> None:
    world = World("me")
    await world.rebalance.rebalance()
    world.assignee.take_calls()
    world.assignee.stuck.add(Q[2])
    await world.rebalance.rebalance()
    assert world.assignee.take_calls() == [("revoked", Q[2]), ("assigned", Q[2]), ("changed", "T")]


async def test_rounds_come_by_time_and_by_waking(autojump_clock) -> None:
    world = World("me")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.rebalance.run)
        await trio.sleep(1)
        assert world.members.asked == 1
        await trio.sleep(20)
        assert world.members.asked == 2
        # Many wake-ups make one round.
        for _ in range(5):
            world.rebalance.wake()
        await trio.sleep(1)
        assert world.members.asked == 3

        def once() -> None:
            world.members.during = None
            for _ in range(5):
                world.rebalance.wake()

        # Those during a round make one more.
        world.members.during = once
        world.rebalance.wake()
        await trio.sleep(1)
        assert world.members.asked == 5
        world.rebalance.suspend()
        world.rebalance.wake()
        await trio.sleep(60)
        assert world.members.asked == 5
        world.rebalance.resume()
        await trio.sleep(1)
        assert world.members.asked == 6
        # A route that changes is shared out at once.
        (on_change,) = world.routes.changed
        on_change(Route("another", ()))
        await trio.sleep(1)
        assert world.members.asked == 6
        on_change(Route("T", Q[:4]))
        await trio.sleep(1)
        assert world.members.asked == 7
        nursery.cancel_scope.cancel()
    assert world.routes.changed == []


async def test_duplicate_ids_are_named_when_they_stay(autojump_clock) -> None:
    world = World("me", "me", "you")
    # The old link of a member whose network broke is listed beside its new one, however often that is looked at,
    # until the broker drops it: after 120 s without a byte, looked for every 10 s.
    for _ in range(27):
        await world.rebalance.rebalance()
        await trio.sleep(5)
    assert not world.events
    world.members.ids = ["me", "you"]
    await world.rebalance.rebalance()
    world.members.ids = ["me", "you", "me"]
    for _ in range(30):
        await world.rebalance.rebalance()
        await trio.sleep(5)
    assert not world.events
    for _ in range(60):
        await world.rebalance.rebalance()
        await trio.sleep(5)
    (event,) = world.events
    assert event.kind == "duplicate_client_id"
    assert "client id me" in event.text
    assert "instance_name" in event.text


async def test_the_id_in_an_event_is_one_line(autojump_clock) -> None:
    """Any client may have any id."""
    world = World("me", "x\nERROR forged", "x\nERROR forged")
    for _ in range(40):
        await world.rebalance.rebalance()
        await trio.sleep(5)
    (event,) = world.events
    assert "client id x?ERROR forged" in event.text
    assert "\n" not in event.text


async def test_any_history_ends_with_each_queue_owned_once(autojump_clock) -> None:
    chance = random.Random(7)
    for _ in range(30):
        worlds: dict[str, World] = {}
        for _ in range(12):
            if worlds and chance.random() < 0.4:
                del worlds[chance.choice(sorted(worlds))]
            else:
                name = f"m{chance.randrange(100)}"
                worlds[name] = World()
                worlds[name].rebalance._client_id = name
            for world in worlds.values():
                world.members.ids = list(worlds)
                if chance.random() < 0.7:
                    await world.rebalance.rebalance()
        for world in worlds.values():
            world.members.ids = list(worlds)
            await world.rebalance.rebalance()
        owned = [queue for world in worlds.values() for queue in world.rebalance.owned]
        assert sorted(owned) == (Q[:4] if worlds else [])


async def test_hashed_names_are_those_that_brokers_know(autojump_clock) -> None:
    world = World("me")
    world.members.ids = ["me", "you"]
    world.routes.namespace = Namespace("N")
    nearby = MachineRoomNearby(ConsistentHash(), lambda _broker: "room", lambda _client: "room")
    assert hashes_names(nearby)
    assert not hashes_names(MachineRoomNearby(Average(), nearby.room_of_broker, nearby.room_of_client))
    world.rebalance._strategy = in_namespace(nearby, world.routes.namespace)
    world.routes.routes["T"] = Route("T", Q)
    await world.rebalance.rebalance()
    wrapped = [triomq.MessageQueue("N%T", queue.broker_name, queue.queue_id) for queue in Q]
    share = [queue.queue_id for queue in ConsistentHash()("me", wrapped, ["me", "you"])]
    assert share != [queue.queue_id for queue in ConsistentHash()("me", Q, ["me", "you"])], "or it shows nothing"
    assert sorted(queue.queue_id for queue in world.rebalance.owned) == sorted(share)


async def test_queues_that_others_may_have_are_taken_a_moment_later(autojump_clock) -> None:
    """Those give them up at the same time, and commit first."""
    world = World("me")
    begun_s = trio.current_time()
    assert await world.rebalance.rebalance()
    assert trio.current_time() == begun_s, "there are no others"
    world.topics.add("U")
    world.routes.routes["U"] = Route("U", [triomq.MessageQueue("U", "broker-a", number) for number in range(4)])
    world.members.ids = ["you", "me"]
    assert await world.rebalance.rebalance()
    assert trio.current_time() == pytest.approx(begun_s + HAND_OVER_S), "once for all topics"
    assert await world.rebalance.rebalance()
    assert trio.current_time() == pytest.approx(begun_s + HAND_OVER_S), "nothing was taken"


@pytest.mark.parametrize("uncertain", ["broker-a", "broker-b"])
async def test_a_round_is_not_done_while_one_broker_of_several_leaves_a_queue_uncertain(
    autojump_clock, uncertain
) -> None:
    world = World("me")
    queues = [triomq.MessageQueue("T", name, 0) for name in ("broker-a", "broker-b")]
    world.routes.routes["T"] = Route("T", queues)
    assert await world.rebalance.rebalance()
    world.assignee.refuses = {("kept", queue) for queue in queues if queue.broker_name == uncertain}
    assert not await world.rebalance.rebalance()


async def test_a_topic_that_is_unsubscribed_meanwhile_is_not_taken(autojump_clock) -> None:
    world = World("me", "you")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.rebalance.rebalance)
        await trio.sleep(HAND_OVER_S / 2)
        world.topics.clear()
    assert not world.rebalance.owned
