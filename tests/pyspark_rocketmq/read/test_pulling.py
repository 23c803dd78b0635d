"""Pulling one range: order, holes, slaves that are behind, and deleted messages; on the virtual clock, with brokers
that are dictionaries."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable, Container
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import trio
from pulled_records import PullsInRuns
from stored_records import encode_record

from pyspark_rocketmq.clients import Session
from pyspark_rocketmq.errors import BrokerBehind, DataLoss
from pyspark_rocketmq.offsets import QueueId
from pyspark_rocketmq.read import pulling
from pyspark_rocketmq.read.planning import QueueRange
from pyspark_rocketmq.read.pulling import (
    BEHIND_LIMIT_S,
    FILTERED_STRIDE,
    LANES,
    STRIDE,
    PullPlan,
    Strides,
    records_before,
)
from pyspark_rocketmq.read.task import check_whole, only_brokers
from triomq import MessageQueue, MQError, PullResult, PullStatus, ReadPreference
from triomq.errors import ConnectFailed, QueueIllegal, RouteNotFound, TopicNotFound
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.route import BrokerData, ClusterInfo

PAGE = 32
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def stored(offset: int) -> bytes:
    """The record of a message at an offset."""
    return encode_record(b"T", 0, b"x", b"", queue_offset=offset, born_host=HOST, store_host=HOST)


class FakeBroker:
    """A queue from one offset to another; answers as 4.9's brokers do, and takes a moment for it."""

    def __init__(
        self, start: int, end: int, *, matches: Callable[[int], bool] = lambda _offset: True, address: str = "broker:1"
    ) -> None:
        self.address = address
        self.start = start
        self.end = end
        self.matches = matches
        self.deleted: Container[int] = ()
        """Offsets whose messages are deleted, while the queue still seems to hold them."""
        self.is_down = False
        self.asked: list[int] = []
        self.under_way = self.most_under_way = 0

    async def pull(self, queue: MessageQueue, offset: int, *, max_messages: int, **filters: Any) -> PullResult:
        self.asked.append(offset)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            # Later strides are answered sooner, so that nothing is in order by itself.
            await trio.sleep(0.01 + 1 / (1 + offset))
        finally:
            self.under_way -= 1
        if self.is_down:
            raise ConnectFailed("pull", address="broker:1")
        return self.answer(queue, offset, max_messages, is_filtered=any(filters.values()))

    def answer(self, queue: MessageQueue, offset: int, max_messages: int, *, is_filtered: bool) -> PullResult:
        if offset < self.start or offset > self.end:
            return self.result(PullStatus.OFFSET_ILLEGAL, queue, self.start if offset < self.start else self.end)
        if offset == self.end:
            return self.result(PullStatus.NO_NEW_MESSAGE, queue, offset)
        found: list[int] = []
        at = offset
        while at < self.end and len(found) < min(max_messages, PAGE) and at < offset + 200:
            if at not in self.deleted and (not is_filtered or self.matches(at)):
                found.append(at)
            at += 1
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE
        return self.result(status, queue, at, b"".join(map(stored, found)))

    def result(self, status: PullStatus, queue: MessageQueue, next_offset: int, body: bytes = b"") -> PullResult:
        return PullResult(
            status, queue, next_offset=next_offset, min_offset=self.start, max_offset=self.end, suggested_broker_id=0,
            broker_address=self.address, body=body,
        )  # fmt: skip


class FakePair(PullsInRuns):
    """A consumer: it pulls from one broker unless it is to pull from the master."""

    def __init__(self, preferred: FakeBroker, master: FakeBroker) -> None:
        self.preferred = preferred
        self.master = master

    async def pull(
        self, queue: MessageQueue, offset: int, *, read_preference: ReadPreference | None = None, **options: Any
    ) -> PullResult:
        broker = self.preferred if read_preference in (None, ReadPreference.SLAVE) else self.master
        assert read_preference in (None, ReadPreference.MASTER, ReadPreference.SLAVE)
        return await broker.pull(queue, offset, **options)


class NameServer:
    """Answers as the administrative calls of a client do.

    Args:
        masters: the broker names whose masters are registered.
        has_topic: whether the masters have the topic; None: they do not answer.
    """

    def __init__(self, masters: str, *, has_topic: bool | None = False) -> None:
        self._masters = masters.split()
        self._has_topic = has_topic

    async def cluster_info(self) -> ClusterInfo:
        await trio.lowlevel.checkpoint()
        slave = {"broker-a": BrokerData(broker_name="broker-a", broker_addrs={1: "s:1"})}
        masters = {
            name: BrokerData(broker_name=name, broker_addrs={0: f"{name}:1", 1: "s:1"}) for name in self._masters
        }
        return ClusterInfo(broker_addr_table=slave | masters)

    async def _queues_on_broker(self, address: str, topic: str) -> int | None:
        await trio.lowlevel.checkpoint()
        assert (address, topic) == ("broker-a:1", "T")
        if self._has_topic is None:
            raise ConnectFailed("no connection")
        return 1 if self._has_topic else None


async def pulled(
    broker: FakeBroker,
    start: int,
    end: int,
    *,
    master: FakeBroker | None = None,
    names: NameServer | None = None,
    consumer: FakePair | None = None,
    **plan: Any,
) -> list[int]:
    part = QueueRange(QueueId("T", "broker-a", 0), start, end)
    pages: list[bytes] = []
    client = SimpleNamespace(admin=names)
    session = Session(client, None, consumer or FakePair(broker, master or broker))  # type: ignore[arg-type]

    def take(bundle: list[bytes]) -> None:
        pages.extend(bundle)
        strides.taken(sum(map(len, bundle)))

    strides = Strides(session, PullPlan(part, **plan), take)
    await strides.pull()
    return [each.queue_offset for page in pages for each in iter_records(page)]


async def test_several_pulls_at_once_keep_the_order(autojump_clock: trio.testing.MockClock) -> None:
    broker = FakeBroker(0, 10_000)
    assert await pulled(broker, 100, 5_003) == list(range(100, 5_003))
    assert broker.most_under_way == LANES


async def test_nothing_is_asked_twice(autojump_clock: trio.testing.MockClock) -> None:
    broker = FakeBroker(0, 10_000)
    await pulled(broker, 0, 4 * STRIDE)
    assert len(broker.asked) == len(set(broker.asked)) == 4 * STRIDE // PAGE


async def test_a_part_ends_at_its_end_not_at_the_last_message_seen(autojump_clock: trio.testing.MockClock) -> None:
    broker = FakeBroker(0, 100_000, matches=lambda offset: offset % 1000 == 7)
    found = await pulled(broker, 0, 50_000, tags="a")
    assert found == list(range(7, 50_000, 1000))
    assert max(broker.asked) < 50_000


@pytest.mark.parametrize("step", [1, 3, 10, 150, FILTERED_STRIDE])
@pytest.mark.parametrize("end", [3 * FILTERED_STRIDE, 2 * FILTERED_STRIDE + 5])
async def test_matches_of_a_long_range_come_once(autojump_clock: trio.testing.MockClock, step: int, end: int) -> None:
    # The last pull of a stride finds matches of the next one, too.
    broker = FakeBroker(0, 100_000, matches=lambda offset: offset % step == 0)
    assert await pulled(broker, 5, end, tags="a") == [each for each in range(5, end) if each % step == 0]


def test_an_answer_is_cut_at_an_offset() -> None:
    page = b"".join(map(stored, (3, 5, 9)))
    whole = len(stored(3))
    assert [len(records_before(page, end)) // whole for end in (3, 4, 9, 10)] == [0, 1, 2, 3]
    assert records_before(page[:-1], 10) == page[:-1], "what is broken is left to the reader of the records"


async def test_little_is_kept_when_nothing_is_taken(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "BUFFERED_BYTES", 1000)
    monkeypatch.setattr(pulling, "BUNDLE_BYTES", 100)
    broker = FakeBroker(0, 100_000)
    part = QueueRange(QueueId("T", "broker-a", 0), 0, 100_000)
    taken: list[int] = []
    async with trio.open_nursery() as nursery:
        session = Session(None, None, FakePair(broker, broker))  # type: ignore[arg-type]
        strides = Strides(session, PullPlan(part), lambda bundle: taken.append(sum(map(len, bundle))))
        nursery.start_soon(strides.pull)
        await trio.sleep(1000)
        # Only the first stride goes on, to its end; then every stride waits.
        assert sum(taken) <= STRIDE * len(stored(0))
        before = sum(taken)
        strides.taken(before)
        await trio.sleep(1000)
        assert sum(taken) > before
        nursery.cancel_scope.cancel()


def test_a_long_range_takes_no_memory_before_it_is_read() -> None:
    part = QueueRange(QueueId("T", "broker-a", 0), 0, 20_000_000)
    session = Session(None, None, None)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        strides = Strides(session, PullPlan(part), lambda _bundle: None)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert strides.skipped == 0
    assert held < 100_000, "a stride has 256 offsets and takes more than 100 bytes"


async def test_what_a_slave_does_not_have_yet_comes_from_the_master(autojump_clock: trio.testing.MockClock) -> None:
    slave, master = FakeBroker(0, 500), FakeBroker(0, 1000)
    assert await pulled(slave, 0, 1000, master=master) == list(range(1000))


async def test_a_slave_may_catch_up_when_the_master_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    slave, master = FakeBroker(0, 500), FakeBroker(0, 1000)
    master.is_down = True

    async def catch_up() -> None:
        await trio.sleep(BEHIND_LIMIT_S / 2)
        slave.end = 1000

    async with trio.open_nursery() as nursery:
        nursery.start_soon(catch_up)
        assert await pulled(slave, 0, 1000, master=master) == list(range(1000))


async def test_a_slave_that_stays_behind_is_an_error_and_no_loss(autojump_clock: trio.testing.MockClock) -> None:
    slave, master = FakeBroker(0, 500), FakeBroker(0, 1000)
    master.is_down = True
    started = trio.current_time()
    with pytest.raises(BrokerBehind, match=r"of queue 0 .* ends at 500.* master does not answer"):
        await pulled(slave, 0, 1000, master=master)
    assert BEHIND_LIMIT_S <= trio.current_time() - started < 2 * BEHIND_LIMIT_S


@pytest.mark.parametrize("value", ["slave", 2])
async def test_with_a_preference_for_others_the_master_is_not_asked(
    autojump_clock: trio.testing.MockClock, value: str | int
) -> None:
    slave, master = FakeBroker(0, 500), FakeBroker(0, 1000)
    with pytest.raises(BrokerBehind, match=f"readPreference={value} allows no other broker"):
        await pulled(slave, 0, 1000, master=master, only=only_brokers(value))
    assert master.asked == []
    # Pauses grow: the first lane whose time is over ends the others.
    assert slave.asked.count(500) < 20


@pytest.mark.parametrize("value", ["suggested", "prefer_slave", "master", 0])
async def test_other_preferences_let_the_master_be_asked(
    autojump_clock: trio.testing.MockClock, value: str | int
) -> None:
    slave, master = FakeBroker(0, 500), FakeBroker(0, 1000)
    assert await pulled(slave, 0, 1000, master=master, only=only_brokers(value)) == list(range(1000))
    assert master.asked != []


async def test_what_the_master_has_deleted_is_lost(autojump_clock: trio.testing.MockClock) -> None:
    broker = FakeBroker(300, 1000)
    with pytest.raises(DataLoss, match=r"are gone: broker:1 holds offsets 300 to 1000.*failOnDataLoss"):
        await pulled(broker, 0, 1000)


async def test_what_is_lost_is_skipped_and_logged_if_wanted(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FakeBroker(300, 1000)
    with caplog.at_level(logging.WARNING):
        assert await pulled(broker, 0, 1000, fail_on_data_loss=False) == list(range(300, 1000))
    assert "offsets 0 to 256 of queue 0 of topic T at broker-a are gone" in caplog.text


@pytest.mark.parametrize("held", [(900_000, 900_100), (0, 100), (400, 500)])
@pytest.mark.parametrize("plan", [{}, {"tags": "a"}])
async def test_a_long_loss_takes_few_requests_and_lines(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    held: tuple[int, int],
    plan: dict[str, str],
) -> None:
    broker = FakeBroker(*held)
    with caplog.at_level(logging.WARNING):
        assert await pulled(broker, 0, 900_100, fail_on_data_loss=False, **plan) == list(range(*held))
    assert len(broker.asked) < 20 * LANES
    assert len(caplog.records) < 3 * LANES


async def test_a_master_that_ends_earlier_has_lost_messages(autojump_clock: trio.testing.MockClock) -> None:
    broker = FakeBroker(0, 400)
    with pytest.raises(DataLoss, match="are gone: broker:1 holds offsets 0 to 400"):
        await pulled(broker, 0, 1000)
    assert await pulled(broker, 0, 1000, fail_on_data_loss=False) == list(range(400))


async def test_no_broker_can_be_asked(autojump_clock: trio.testing.MockClock) -> None:
    broker = FakeBroker(0, 400)
    broker.is_down = True
    with pytest.raises(ConnectFailed):
        await pulled(broker, 0, 400)


@pytest.mark.parametrize("hole", [30, 250, 700])
@pytest.mark.parametrize("plan", [{}, {"only": "slave"}])
async def test_messages_that_are_deleted_before_their_entries_are_gone(
    autojump_clock: trio.testing.MockClock, hole: int, plan: dict[str, str]
) -> None:
    # Brokers delete a file of the log first; then the queue still begins at 0, and answers begin after the file.
    broker = FakeBroker(0, 1000)
    broker.deleted = range(hole)
    with pytest.raises(
        DataLoss, match=r"offsets \d+ to \d+ of queue 0 of topic T at broker-a are gone: broker:1 has del"
    ):
        await pulled(broker, 0, 900, **plan)
    assert await pulled(broker, 0, 900, fail_on_data_loss=False, **plan) == list(range(hole, 900))
    assert await pulled(broker, hole, 900, **plan) == list(range(hole, 900))


async def test_what_a_slave_has_deleted_comes_from_its_master(autojump_clock: trio.testing.MockClock) -> None:
    slave, master = FakeBroker(0, 1000), FakeBroker(0, 1000)
    slave.deleted = range(400)
    assert await pulled(slave, 50, 600, master=master) == list(range(50, 600))


async def test_deleted_messages_of_a_filtered_read_are_gone(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FakeBroker(0, 20_000, matches=lambda offset: offset % 10 == 3)
    broker.deleted = range(FILTERED_STRIDE + 100)
    with pytest.raises(DataLoss, match=r"offsets \d+ to \d+ of queue 0 .* are gone: .* perhaps before it was asked"):
        await pulled(broker, 0, 20_000, tags="a")
    found = await pulled(broker, 0, 20_000, tags="a", fail_on_data_loss=False)
    assert found == [offset for offset in range(FILTERED_STRIDE + 100, 20_000) if offset % 10 == 3]
    assert sum("perhaps before" in each.message for each in caplog.records) == 2


def even(offset: int) -> bool:
    return offset % 2 == 0


class LeavingBroker(FakeBroker):
    """Refuses from the first pull without a filter on, which follows those of a stride."""

    def __init__(self, refusal: MQError) -> None:
        super().__init__(0, 1000, matches=even)
        self.refusal = refusal
        self.has_left = False

    def answer(self, queue: MessageQueue, offset: int, max_messages: int, *, is_filtered: bool) -> PullResult:
        self.has_left = self.has_left or not is_filtered
        if self.has_left:
            raise self.refusal
        return super().answer(queue, offset, max_messages, is_filtered=is_filtered)


@pytest.mark.parametrize("start", [300, 550, 1000])
async def test_what_a_slave_has_deleted_is_no_loss_of_a_filtered_read(
    autojump_clock: trio.testing.MockClock, start: int
) -> None:
    slave = FakeBroker(start, 1000, matches=even, address="slave:1")
    master = FakeBroker(0, 1000, matches=even)
    assert await pulled(slave, 0, 900, master=master, tags="a") == list(range(0, 900, 2))


class Failover(FakePair):
    """A consumer that pulls from another broker if the preferred one does not answer."""

    def __init__(self, preferred: FakeBroker, other: FakeBroker, master: FakeBroker) -> None:
        super().__init__(preferred, master)
        self.other = other

    async def pull(
        self, queue: MessageQueue, offset: int, *, read_preference: ReadPreference | None = None, **options: Any
    ) -> PullResult:
        try:
            return await super().pull(queue, offset, read_preference=read_preference, **options)
        except ConnectFailed:
            if read_preference is not None:
                raise
            return await self.other.pull(queue, offset, **options)


@pytest.mark.parametrize("stops", [True, False])
async def test_what_a_slave_is_deleting_comes_from_its_master_in_a_filtered_read(
    autojump_clock: trio.testing.MockClock, stops: bool
) -> None:
    # Files of the log first, so its queue seems to hold their messages, and its answers start behind them.
    slave = LeavingBroker(ConnectFailed("pull", address="slave:1")) if stops else FakeBroker(0, 1000, matches=even)
    slave.address, slave.deleted = "slave:1", range(301)
    master = FakeBroker(0, 1000, matches=even)
    found = await pulled(slave, 0, 900, consumer=Failover(slave, master, master), tags="a")
    assert sorted(found) == list(range(0, 900, 2))


async def test_what_a_master_was_deleting_when_it_left_comes_from_its_slave_in_a_filtered_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slave = FakeBroker(0, 300, matches=even, address="slave:1")
    master = LeavingBroker(ConnectFailed("pull", address="broker:1"))
    master.deleted = range(101)
    found = await pulled(master, 0, 900, consumer=Failover(master, slave, master), tags="a")
    assert sorted(found) == list(range(0, 900, 2))


class SuggestingEachOther(FakePair):
    """A consumer whose two brokers suggest each other for the next pull."""

    def __init__(self, slave: FakeBroker, master: FakeBroker, *, first: FakeBroker) -> None:
        super().__init__(slave, master)
        self.suggested = first

    async def pull(
        self, queue: MessageQueue, offset: int, *, read_preference: ReadPreference | None = None, **options: Any
    ) -> PullResult:
        if read_preference is not None:
            return await super().pull(queue, offset, read_preference=read_preference, **options)
        broker = self.suggested
        self.suggested = self.master if broker is self.preferred else self.preferred
        return await broker.pull(queue, offset, **options)


@pytest.mark.parametrize("deletes", ["slave", "master", "none"])
@pytest.mark.parametrize("first", ["slave", "master"])
@pytest.mark.parametrize("end", [150, 300, 900])
async def test_brokers_that_suggest_each_other_in_a_filtered_read(
    autojump_clock: trio.testing.MockClock, deletes: str, first: str, end: int
) -> None:
    """What one of them lacks is not asked of the same one again and again."""
    brokers = {
        name: FakeBroker(0, 1000, matches=lambda at: at % 50 == 49, address=name) for name in ("slave", "master")
    }
    if deletes in brokers:
        brokers[deletes].deleted = range(301)
    consumer = SuggestingEachOther(brokers["slave"], brokers["master"], first=brokers[first])
    found = await pulled(brokers["slave"], 0, end, consumer=consumer, tags="a")
    assert sorted(found) == list(range(49, end, 50))
    assert sum(len(broker.asked) for broker in brokers.values()) < 100


async def test_what_the_master_has_deleted_meanwhile_is_a_loss_of_a_filtered_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Cleaned(FakeBroker):
        """Deletes messages before the last answer to a filtered pull."""

        def answer(self, queue: MessageQueue, offset: int, max_messages: int, *, is_filtered: bool) -> PullResult:
            if offset >= 150:
                self.start = self.end
            return super().answer(queue, offset, max_messages, is_filtered=is_filtered)

    slave = FakeBroker(200, 1000, matches=even, address="slave:1")
    master = Cleaned(0, 1000, matches=even)
    with pytest.raises(DataLoss, match=r"are gone: broker:1 "):
        await pulled(slave, 0, 900, master=master, tags="a")


async def test_a_filtered_read_of_a_queue_that_a_slave_lacks(autojump_clock: trio.testing.MockClock) -> None:
    class NoQueue(FakeBroker):
        def answer(self, *_arguments: object, **_options: object) -> PullResult:
            raise QueueIllegal("pull", address="slave:1", code=1)

    master = FakeBroker(0, 1000, matches=even)
    assert await pulled(NoQueue(0, 0), 0, 900, master=master, tags="a") == list(range(0, 900, 2))
    with pytest.raises(QueueIllegal):
        await pulled(LeavingBroker(QueueIllegal("pull", address="slave:1")), 0, 900, tags="a", only="slave")


async def test_a_filtered_read_does_not_need_a_master_that_has_left_since(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slave = FakeBroker(0, 300, matches=even, address="slave:1")
    master = LeavingBroker(ConnectFailed("pull", address="broker:1"))
    assert await pulled(slave, 0, 900, master=master, tags="a") == list(range(0, 900, 2))
    # What the slave has deleted, the master may have deleted before it answered.
    slave = FakeBroker(300, 1000, matches=even, address="slave:1")
    master = LeavingBroker(ConnectFailed("pull", address="broker:1"))
    with pytest.raises(DataLoss, match=r"offsets 0 to 300 of queue 0 .* are gone: slave:1 has deleted"):
        await pulled(slave, 0, 900, master=master, tags="a")


@pytest.mark.parametrize("refusal", [QueueIllegal, TopicNotFound, RouteNotFound])
async def test_a_topic_that_is_deleted_behind_the_last_answer_of_a_filtered_read(
    autojump_clock: trio.testing.MockClock, refusal: type[MQError]
) -> None:
    error, names = refusal("pull", address="broker:1"), NameServer("broker-a")
    with pytest.raises(DataLoss, match=r"offsets 0 to 900 of queue 0 .* are gone: .*, perhaps before it was asked"):
        await pulled(LeavingBroker(error), 0, 900, names=names, tags="a")
    found = await pulled(LeavingBroker(error), 0, 900, names=names, tags="a", fail_on_data_loss=False)
    assert found == list(range(0, 900, 2))


@pytest.mark.parametrize("kind", [QueueIllegal, TopicNotFound])
async def test_a_queue_that_no_longer_exists(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, kind: type[MQError]
) -> None:
    class NoQueue(FakeBroker):
        def answer(self, *_arguments: object, **_options: object) -> PullResult:
            raise kind("pull", address="broker:1", code=1)

    with pytest.raises(
        DataLoss, match=r"offsets \d+ to \d+ of queue 0 .* are gone: broker:1 does not have the queue any"
    ):
        await pulled(NoQueue(0, 500), 0, 400)
    assert await pulled(NoQueue(0, 500), 0, 400, fail_on_data_loss=False) == []
    assert "offsets 256 to 400" in caplog.text
    broker = NoQueue(0, 500_000)
    assert await pulled(broker, 0, 500_000, fail_on_data_loss=False) == []
    assert len(broker.asked) == 2 * LANES, "a long range is not asked for stride by stride"
    # A slave may not know the topic yet.
    assert await pulled(NoQueue(0, 500), 0, 400, master=FakeBroker(0, 500)) == list(range(400))
    with pytest.raises(kind):
        await pulled(NoQueue(0, 500), 0, 400, only="slave", fail_on_data_loss=False)


class NoRoute(FakeBroker):
    """As the SDK answers if the route of a topic is missing, or lacks the broker."""

    def answer(self, *_arguments: object, **_options: object) -> PullResult:
        raise RouteNotFound("no route to topic T")


@pytest.mark.parametrize("names", [NameServer("broker-a"), NameServer("broker-a broker-b")])
async def test_a_topic_that_has_been_deleted(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, names: NameServer
) -> None:
    with pytest.raises(DataLoss, match=r"are gone: topic T has been deleted from broker-a; .*failOnDataLoss=false"):
        await pulled(NoRoute(0, 500), 0, 400, names=names)
    assert await pulled(NoRoute(0, 500), 0, 400, names=names, fail_on_data_loss=False) == []
    assert "offsets 256 to 400" in caplog.text


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (NameServer(""), RouteNotFound),
        (NameServer("broker-b"), RouteNotFound),
        # The name servers lack the topic of a master that has registered and has it.
        (NameServer("broker-a", has_topic=True), RouteNotFound),
        (NameServer("broker-a", has_topic=None), ConnectFailed),
    ],
)
async def test_a_topic_whose_broker_is_away_is_no_loss(
    autojump_clock: trio.testing.MockClock, names: NameServer, error: type[MQError]
) -> None:
    with pytest.raises(error):
        await pulled(NoRoute(0, 500), 0, 200, names=names, fail_on_data_loss=False)


def test_offsets_left_out_of_an_answer_are_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    part = QueueRange(QueueId("T", "broker-a", 0), 100, 300)
    check_whole(PullPlan(part), 200)
    with pytest.raises(DataLoss, match=r"2 of offsets 100 to 300 of queue 0 of topic T at broker-a are gone"):
        check_whole(PullPlan(part), 198)
    check_whole(PullPlan(part, fail_on_data_loss=False), 198)
    assert "2 of offsets 100 to 300" in caplog.text
