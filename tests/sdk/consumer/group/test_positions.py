"""Positions of consumption: memory, store, the starting point, and missing offsets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio

import triomq
from triomq._cluster import broker_offsets
from triomq._cluster.broker_offsets import BrokerOffsets
from triomq._consumer.group.positions import (
    IllegalOffset,
    Positions,
    Start,
    check_start_from,
    corrected_offset,
    illegal_offset_policy,
    is_overtaken,
    start_of_new_group,
)
from triomq.errors import InvalidCall, OffsetIllegal
from triomq_protocol.requests import UpdateConsumerOffsetRequest

Q0 = triomq.MessageQueue("T", "broker-a", 0)
Q1 = triomq.MessageQueue("T", "broker-b", 1)
SAME = [triomq.MessageQueue("T", "broker-a", number) for number in range(3)]
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


class Store:
    def __init__(self) -> None:
        self.offsets: dict[triomq.MessageQueue, int] = {}
        self.commits: list[dict[triomq.MessageQueue, int]] = []
        self.down: set[str] = set()

    async def read(self, queue, /):
        await trio.lowlevel.checkpoint()
        if queue.broker_name in self.down:
            raise triomq.errors.ConnectFailed("down")
        return self.offsets.get(queue)

    async def commit(self, offsets, /):
        await trio.lowlevel.checkpoint()
        if any(queue.broker_name in self.down for queue in offsets):
            raise triomq.errors.ConnectFailed("down")
        self.offsets.update(offsets)
        self.commits.append(dict(offsets))


class Bounds:
    async def min_offset(self, _queue, *, only_master=False):
        await trio.lowlevel.checkpoint()
        return 10

    async def max_offset(self, _queue, *, only_master=False):
        await trio.lowlevel.checkpoint()
        assert only_master, "a slave may be behind"
        return 90

    async def offset_by_time(self, _queue, time_ms):
        await trio.lowlevel.checkpoint()
        return {NOON_MS: 50}[time_ms]


@pytest.fixture
def store():
    return Store()


def positions(store, **options):
    return Positions(store, Bounds(), **options)


@pytest.mark.parametrize(
    ("start_from", "normal", "retry"),
    [
        ("latest", Start(at_end=True), Start(offset=0)),
        ("earliest", Start(offset=0), Start(offset=0)),
        (NOON, Start(time_ms=NOON_MS), Start(at_end=True)),
        (NOON_MS, Start(time_ms=NOON_MS), Start(at_end=True)),
    ],
)
def test_the_table_of_starts(start_from, normal, retry) -> None:
    assert start_of_new_group(start_from, "T") == normal
    assert start_of_new_group(start_from, "%RETRY%G") == retry


@pytest.mark.parametrize("wrong", ["middle", -1, True, None, 1.5, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_starts_that_are_refused(wrong) -> None:
    with pytest.raises(InvalidCall, match="start_from"):
        check_start_from(wrong)


@pytest.mark.parametrize(("start_from", "offset"), [("latest", 90), ("earliest", 0), (NOON, 50)])
async def test_a_new_groups_start_is_committed_at_once(store, start_from, offset) -> None:
    memory = positions(store, start_from=start_from)
    assert await memory.start(Q0) == offset
    # The next owner starts there, too, however much has been sent meanwhile.
    assert store.offsets == {Q0: offset}
    assert memory.get(Q0) == offset


async def test_a_committed_offset_always_wins(store) -> None:
    store.offsets[Q0] = 33
    memory = positions(store, start_from="latest")
    memory.update(Q0, 70, increase_only=False)
    assert await memory.start(Q0) == 33
    assert memory.get(Q0) == 33


class NoCommits(Store):
    """The first broker lets each commit time out, until it is told to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = True

    async def commit(self, offsets, /):
        if self.silent and any(queue.broker_name == "broker-a" for queue in offsets):
            await trio.sleep(5)
            raise triomq.errors.RequestTimeout("no answer")
        await super().commit(offsets)


async def test_a_broker_that_takes_no_commits_is_waited_for_once(autojump_clock) -> None:
    """And not at each queue of a new group, which would get none of other brokers meanwhile."""
    store = NoCommits()
    memory = positions(store)
    begun_s = trio.current_time()
    for queue in (*SAME, Q1):
        assert await memory.start(queue) == 90
    assert trio.current_time() - begun_s == pytest.approx(5)
    assert store.offsets == {Q1: 90}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.keep_persisting, lambda: SAME)
        store.silent = False
        await trio.sleep(11)
        nursery.cancel_scope.cancel()
    assert store.offsets == dict.fromkeys((*SAME, Q1), 90)


async def test_the_0_of_a_broker_without_an_offset_is_committed(store) -> None:
    # Of a young queue brokers say 0 without having an offset; operators' tools would find none.
    store.offsets[Q0] = 0
    memory = positions(store, start_from="latest")
    assert await memory.start(Q0) == 0
    assert store.commits == [{Q0: 0}]


async def test_no_start_without_an_answer(store) -> None:
    store.down.add("broker-a")
    memory = positions(store)
    with pytest.raises(triomq.TransientError):
        await memory.start(Q0)
    assert memory.get(Q0) is None


async def test_increase_only_refuses_smaller_offsets(store) -> None:
    events = []
    memory = positions(store, report=events.append)
    assert memory.update(Q0, 5, increase_only=True)
    assert not memory.update(Q0, 4, increase_only=True)
    assert not memory.update(Q0, 3, increase_only=True)
    assert memory.get(Q0) == 5
    assert [(event.kind, event.queue) for event in events] == [("offset_refused", Q0)]
    assert memory.update(Q0, 4, increase_only=False)
    assert memory.get(Q0) == 4


async def test_persisting(store) -> None:
    memory = positions(store)
    memory.update(Q0, 5, increase_only=True)
    memory.update(Q1, 6, increase_only=True)
    store.down.add("broker-a")
    # One broker that is down does not keep commits from the others.
    assert not await memory.persist([Q0, Q1])
    assert store.offsets == {Q1: 6}
    with pytest.raises(triomq.TransientError):
        await memory.commit([Q0, Q1])
    store.down.clear()
    assert await memory.persist([Q0])
    assert store.offsets == {Q0: 5, Q1: 6}
    assert (memory.get(Q0), memory.get(Q1)) == (5, 6)


async def test_what_changed_is_persisted_every_five_seconds(store, autojump_clock) -> None:
    memory = positions(store)
    memory.update(Q0, 5, increase_only=True)
    memory.update(Q1, 6, increase_only=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.keep_persisting, lambda: [Q0, Q1])
        await trio.sleep(9.9)
        assert not store.commits
        await trio.sleep(0.2)
        assert store.commits == [{Q0: 5}, {Q1: 6}]
        memory.update(Q0, 7, increase_only=True)
        await trio.sleep(5)
        assert store.commits[2:] == [{Q0: 7}]
        await trio.sleep(15)
        assert len(store.commits) == 3
        # What a broker may have lost in a crash is committed again, though nothing moved.
        await trio.sleep(10)
        assert store.commits[3:] == [{Q0: 7}, {Q1: 6}]
        nursery.cancel_scope.cancel()


async def test_how_often_can_be_set(store, autojump_clock) -> None:
    memory = positions(store, commit_every_s=0.5)
    memory.update(Q0, 5, increase_only=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.keep_persisting, lambda: [Q0])
        await trio.sleep(1.1)
        assert store.commits == [{Q0: 5}]
        memory.update(Q0, 6, increase_only=True)
        await trio.sleep(0.5)
        assert store.commits[1:] == [{Q0: 6}]
        await trio.sleep(25)
        assert len(store.commits) == 2
        await trio.sleep(5)
        assert store.commits[2:] == [{Q0: 6}], "every 30 s, though nothing moved"
        nursery.cancel_scope.cancel()


async def test_the_end_is_shielded_but_not_for_ever(store, autojump_clock) -> None:
    memory = positions(store)
    memory.update(Q0, 5, increase_only=True)
    with trio.CancelScope() as scope:
        scope.cancel()
        await memory.persist_at_end([Q0])
    assert store.offsets == {Q0: 5}

    async def hangs(_offsets, /):
        await trio.sleep_forever()

    store.commit = hangs
    start = trio.current_time()
    await memory.persist_at_end([Q0])
    assert trio.current_time() - start == 3


@pytest.mark.parametrize(
    ("policy", "offset"), [("broker", 7), ("earliest", 3), ("latest", 9), ("raise", None), (IllegalOffset.EARLIEST, 3)]
)
def test_policies(policy, offset) -> None:
    chosen = corrected_offset(illegal_offset_policy(policy), next_offset=7, min_offset=3, max_offset=9)
    assert chosen == offset


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(InvalidCall, match="no illegal_offset policy 'never'; there are broker, earliest"):
        illegal_offset_policy("never")


def illegal(min_offset, max_offset):
    return triomq.PullResult(
        triomq.PullStatus.OFFSET_ILLEGAL, Q0, next_offset=max_offset, min_offset=min_offset, max_offset=max_offset,
        suggested_broker_id=0, broker_address="b:1",
    )  # fmt: skip


async def test_a_correction_is_committed_and_kept(store) -> None:
    events = []
    memory = positions(store, illegal_offset="earliest", report=events.append)
    memory.update(Q0, 100, increase_only=True)
    assert await memory.correct(Q0, 100, illegal(3, 9)) == 3
    assert store.offsets == {Q0: 3}
    (event,) = events
    assert event.kind == "offset_illegal"
    assert "has no offset 100, only 3 to 9; going on at 3 (policy earliest)" in event.text


async def test_a_correction_in_doubt_does_not_outdo_other_members(store) -> None:
    """Another member has had the queue meanwhile: the group's offset does not go back to the queue's beginning."""
    memory = positions(store, illegal_offset="earliest")
    memory.update(Q0, 5, increase_only=True)
    memory.doubt()
    assert await memory.correct(Q0, 5, illegal(50, 200)) == 50
    assert not store.offsets
    assert memory.confirm(Q0, 100) == 100


async def test_a_consumer_may_end_instead(store) -> None:
    memory = positions(store, illegal_offset="raise")
    memory.update(Q0, 100, increase_only=True)
    with pytest.raises(OffsetIllegal, match="only 3 to 9"):
        await memory.correct(Q0, 100, illegal(3, 9))
    assert (memory.get(Q0), store.offsets) == (100, {})


async def test_a_reset_moves_offsets_back(store) -> None:
    events = []
    memory = positions(store, report=events.append)
    memory.update(Q0, 100, increase_only=True)
    memory.reset(Q0, 20)
    await memory.persist([Q0])
    assert (memory.get(Q0), store.offsets) == (20, {Q0: 20})
    assert [event.kind for event in events] == ["reset"]


async def test_times(store) -> None:
    memory = positions(store)
    assert await memory.offset_at(Q0, NOON) == 50
    with pytest.raises(InvalidCall, match="time zone"):
        await memory.offset_at(Q0, datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("known", "committed", "moved", "expected"),
    [
        (50, 100, False, True),
        (50, 51, False, True),
        (50, 50, False, False),
        # Written by this member before, or lost by the broker in a crash.
        (50, 40, False, False),
        (50, None, False, False),
        # A seek or a reset has chosen the place.
        (50, 100, True, False),
    ],
)
def test_which_positions_count_as_overtaken(known, committed, moved, expected) -> None:
    assert is_overtaken(known, committed, moved=moved) is expected


async def test_an_offset_in_doubt_is_not_written(autojump_clock) -> None:
    store, events = Store(), []
    store.offsets = {Q0: 10, Q1: 10}
    positions = Positions(store, Bounds(), report=events.append)
    for queue in (Q0, Q1):
        await positions.start(queue)
        positions.update(queue, 50, increase_only=True)
    positions.doubt()
    assert await positions.persist([Q0, Q1])
    assert not store.commits
    assert positions.confirm(Q0, 10) is None
    assert await positions.persist([Q0, Q1])
    assert store.commits == [{Q0: 50}]
    assert positions.confirm(Q1, 100) == 100
    assert [event.kind for event in events] == ["overtaken"]
    # A message of before was in a user's hands, who commits it now.
    assert not positions.commit_at(Q1, 51)
    assert positions.get(Q1) == 100
    positions.move(Q1, 20)
    assert positions.get(Q1) == 20
    assert positions.commit_at(Q1, 19)


@pytest.mark.parametrize("in_doubt", [False, True])
async def test_a_queue_given_up_takes_no_late_commit(store, in_doubt) -> None:
    events = []
    store.offsets = {Q0: 10}
    memory = positions(store, report=events.append)
    await memory.start(Q0)
    if in_doubt:
        memory.doubt()
    memory.forget(Q0)
    # A message of before may be in a user's hands still, who commits it.
    assert not memory.commit_at(Q0, 11)
    assert [(event.kind, event.queue) for event in events] == [("offset_refused", Q0)]
    await memory.commit([Q0])
    assert not store.commits
    store.offsets[Q0] = 20
    assert await memory.start(Q0) == 20
    assert memory.commit_at(Q0, 11), "a step back of its own queue"


async def test_a_commit_waits_for_the_end_of_doubt(autojump_clock) -> None:
    store = Store()
    store.offsets = {Q0: 10}
    positions = Positions(store, Bounds())
    await positions.start(Q0)
    positions.update(Q0, 50, increase_only=True)
    positions.doubt()
    started_s = trio.current_time()
    with pytest.raises(triomq.errors.LinkLost, match="is not committed"):
        await positions.commit([Q0])
    assert trio.current_time() - started_s == 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(positions.commit, [Q0])
        await trio.sleep(1)
        assert not store.commits
        positions.confirm(Q0, 10)
    assert store.commits == [{Q0: 50}]


class SlowFirstBroker(Store):
    """broker-a does not answer for 5 s."""

    async def commit(self, offsets, /):
        if any(queue.broker_name == "broker-a" for queue in offsets):
            await trio.sleep(5)
            raise triomq.errors.RequestTimeout("no answer")
        await super().commit(offsets)


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (lambda _memory: None, {Q1: 10}),
        (lambda memory: memory.forget(Q1), {}),
        (lambda memory: memory.doubt(), {}),
        # Another member had it in between, and got further.
        (lambda memory: (memory.doubt(), memory.confirm(Q1, 40)), {Q1: 40}),
        (lambda memory: (memory.forget(Q1), memory.update(Q1, 50, increase_only=True)), {Q1: 50}),
    ],
)
async def test_what_changes_while_a_broker_is_silent(autojump_clock, change, written) -> None:
    store = SlowFirstBroker()
    memory = positions(store)
    for queue in (Q0, Q1):
        memory.update(queue, 10, increase_only=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.persist, [Q0, Q1])
        await trio.sleep(1)
        change(memory)
    assert store.offsets == written


class Brokers:
    """Whose answers take 4 s each, and what they were sent: (queue id, offset)."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.address = "b:1"

    async def of(self, _queue, *, only_master=False):
        await trio.lowlevel.checkpoint()
        return self

    def topic_of(self, queue):
        return queue.topic

    async def request(self, command, _timeout_s):
        header = command.header(UpdateConsumerOffsetRequest)
        self.sent.append((header.queue_id, header.commit_offset))
        await trio.sleep(4)
        return command.answer(0)


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (lambda _memory: None, [(0, 10), (1, 10), (2, 10)]),
        (lambda memory: memory.forget(SAME[1]), [(0, 10), (2, 10)]),
        (lambda memory: (memory.doubt(), memory.confirm(SAME[1], 40), memory.confirm(SAME[2], 9)), [(0, 10), (1, 40), (2, 10)]),
        (lambda memory: memory.doubt(), [(0, 10)]),
    ],
)  # fmt: skip
async def test_what_changes_while_a_broker_is_slow(autojump_clock, monkeypatch, change, sent) -> None:
    # As for the queues beyond the first ones, whose requests wait for their turn.
    monkeypatch.setattr(broker_offsets, "AT_ONCE", 1)
    brokers = Brokers()
    memory = Positions(BrokerOffsets("G", brokers, lambda queue, _offset: memory.to_write(queue)), Bounds())
    for queue in SAME:
        memory.update(queue, 10, increase_only=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.persist, SAME)
        await trio.sleep(1)
        change(memory)
    assert brokers.sent == sent


class SlowStore(Store):
    async def commit(self, offsets, /):
        await trio.sleep(4)
        await super().commit(offsets)


@pytest.mark.parametrize("at_brokers", [False, True])
@pytest.mark.parametrize(("first", "sought"), [(10, 50), (10, 5)])
async def test_an_older_answer_does_not_end_a_move(autojump_clock, at_brokers, first, sought) -> None:
    """A seek counts more than what another member commits, until it is written itself."""
    brokers = Brokers()
    if at_brokers:
        memory = Positions(
            BrokerOffsets(
                "G",
                brokers,
                lambda queue, _offset: memory.to_write(queue),
                lambda queue, offset: memory.note_persisted(queue, offset),
            ),
            Bounds(),
        )
    else:
        memory = positions(SlowStore())
    memory.update(Q0, first, increase_only=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.persist, [Q0])
        await trio.sleep(1)
        memory.move(Q0, sought)
        memory.update(Q0, sought + 10, increase_only=True)
    memory.doubt()
    assert memory.confirm(Q0, 900) is None
    await memory.persist([Q0])
    memory.doubt()
    assert memory.confirm(Q0, 900) == 900


async def test_a_queue_that_was_left_is_continued(store):
    memory = positions(store)
    store.offsets[Q0] = 20
    memory.update(Q0, 30, increase_only=True)
    memory.leave(Q0)
    assert memory.get(Q0) is None
    assert await memory.start(Q0) == 30
    assert await memory.persist([Q0])
    assert store.offsets[Q0] == 30
    memory.forget(Q0)
    assert await memory.start(Q0) == 30


@pytest.mark.parametrize(
    ("left", "moved", "committed", "start"),
    [(30, False, 40, 40), (30, True, 40, 30), (30, False, None, 30), (0, False, None, 0), (91, False, 20, 20)],
)
async def test_where_a_queue_that_was_left_starts(store, left, moved, committed, start):
    memory = positions(store)
    if moved:
        memory.move(Q0, left)
    memory.update(Q0, left, increase_only=False)
    memory.leave(Q0)
    if committed is not None:
        store.offsets[Q0] = committed
    assert await memory.start(Q0) == start


async def test_a_queue_that_was_left_keeps_its_position_until_its_broker_answers(store):
    memory = positions(store)
    memory.update(Q0, 30, increase_only=True)
    memory.leave(Q0)
    store.down.add("broker-a")
    with pytest.raises(triomq.errors.ConnectFailed):
        await memory.start(Q0)
    store.down.clear()
    store.offsets[Q0] = 20
    assert await memory.start(Q0) == 30


@pytest.mark.parametrize(("forget", "what"), [("forget_left", [Q0]), ("forget_left_topic", "T")])
async def test_a_queue_that_was_left_to_others(store, forget, what):
    memory = positions(store)
    store.offsets[Q0] = 20
    memory.update(Q0, 30, increase_only=True)
    memory.leave(Q0)
    getattr(memory, forget)(what)
    assert await memory.start(Q0) == 20


def test_positions_in_queues_that_were_left_are_limited(store, monkeypatch):
    monkeypatch.setattr("triomq._consumer.group.positions.LEFT_MAX", 2)
    memory = positions(store)
    for queue in SAME:
        memory.update(queue, 30, increase_only=True)
        memory.leave(queue)
    assert list(memory._left) == SAME[1:]
