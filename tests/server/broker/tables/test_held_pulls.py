"""Held pulls: who is woken by what, and when (docs/protocol/broker-api.md §5.4)."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from triomq_protocol.wire.command import Command
from triomq_server.broker.requests.pull import TagCodes
from triomq_server.broker.tables.held_pulls import (
    AT_ONCE,
    BYTES_PER_PLACE,
    DROPPED_AT_ONCE,
    FEW,
    LEAST_SHARE,
    LOOKED_AT_ONCE,
    TAGS_MOST,
    HeldPull,
    HeldPulls,
)
from triomq_server.store import Arrival


class Party:
    """The far end of a link, as far as held pulls care."""

    def __init__(self) -> None:
        self.closed = False


def held(
    link: Party, offset: int = 0, *, deadline: float = 15.0, queue_id: int = 0, codes: frozenset[int] | None = None
) -> HeldPull:
    matcher = None if codes is None else TagCodes(codes)
    return HeldPull(link, Command(), "T", queue_id, offset, matcher, deadline)  # type: ignore[arg-type]


def arrival(next_offset: int, *, queue_id: int = 0, tags_code: int = 0) -> Arrival:
    return Arrival("T", queue_id, next_offset, tags_code, 0)


class Log:
    """Held pulls that write down who was run again, and when."""

    def __init__(self, **settings: Any) -> None:
        self.seconds = 0.0
        self.pulls = HeldPulls(**{"limit": 100, "now": lambda: self.seconds, **settings})
        self.woken: list[HeldPull] = []
        self.times: list[float] = []
        self.pulls.resume = self._resume

    def _resume(self, pull: HeldPull) -> None:
        self.woken.append(pull)
        self.times.append(trio.current_time())


async def test_an_arrival_wakes_the_pulls_of_its_queue_that_it_concerns() -> None:
    log, link = Log(), Party()
    at_end, beyond, elsewhere = held(link, 4), held(link, 5), held(link, 4, queue_id=1)
    other_tag, right_tag = held(link, 4, codes=frozenset({7})), held(link, 4, codes=frozenset({8, 9}))
    for pull in (at_end, beyond, elsewhere, other_tag, right_tag):
        assert log.pulls.hold(pull)
    log.pulls.arrived(arrival(5, tags_code=8))
    assert log.woken == [at_end, right_tag]
    assert log.pulls.waiting == 3
    log.pulls.arrived(arrival(6, tags_code=7))
    assert log.woken[2:] == [beyond, other_tag]


async def test_deadlines_are_kept_to_the_moment() -> None:
    log, link = Log(), Party()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.sleep(1)
        late, early = held(link, deadline=9.0), held(link, deadline=3.5)
        log.pulls.hold(late)
        await trio.sleep(1)
        log.pulls.hold(early)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert log.woken == [early, late]
    assert log.times == pytest.approx([3.5, 9.0])


async def test_with_compat_49_deadlines_are_seen_by_a_scan() -> None:
    ends = {("T", 0): 4}
    log, link = Log(scan_s=5.0, queue_end=lambda topic, queue: ends[topic, queue]), Party()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.sleep(0.1)
        expiring, missed = held(link, 4, deadline=6.0), held(link, 4, deadline=100.0)
        log.pulls.hold(expiring)
        await trio.sleep(7)
        assert log.woken == []
        await trio.sleep(5)
        assert log.woken == [expiring]
        log.pulls.hold(missed)
        ends["T", 0] = 5
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert log.woken == [expiring, missed]
    assert log.times == pytest.approx([10.0, 15.0])


async def test_a_closed_links_pulls_are_dropped_at_once() -> None:
    log, gone, there = Log(), Party(), Party()
    for link in (gone, there, gone):
        log.pulls.hold(held(link))
    log.pulls.drop_link(gone)  # type: ignore[arg-type]
    log.pulls.drop_link(gone)  # type: ignore[arg-type]
    assert log.pulls.waiting == 1
    log.pulls.arrived(arrival(1))
    assert [pull.link for pull in log.woken] == [there]


async def test_very_many_pulls_of_closed_links_are_dropped_in_turns() -> None:
    log, gone, there = Log(limit=100_000), [Party() for _ in range(6)], Party()
    for link in gone:
        for _ in range(4000):
            assert log.pulls.hold(held(link))
    log.pulls.hold(held(there))
    left = [log.pulls.waiting]

    class Turns(trio.abc.Instrument):
        def after_task_step(self, _task: trio.lowlevel.Task) -> None:
            left.append(log.pulls.waiting)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(turns := Turns())
        for link in gone:
            link.closed = True
            log.pulls.drop_link(link)  # type: ignore[arg-type]
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(turns)
        assert log.pulls.waiting == 1
        log.pulls.arrived(arrival(1))
        assert [pull.link for pull in log.woken] == [there]
        nursery.cancel_scope.cancel()
    assert max(before - after for before, after in pairwise(left)) == DROPPED_AT_ONCE
    assert not any((log.pulls._dropped, log.pulls._links, log.pulls._held, log.pulls._hosts))


async def test_pulls_of_closed_links_that_wait_to_be_dropped_are_not_answered() -> None:
    log, gone = Log(limit=100_000), Party()
    for _ in range(DROPPED_AT_ONCE + 500):
        log.pulls.hold(held(gone))
    gone.closed = True
    log.pulls.drop_link(gone)  # type: ignore[arg-type]
    assert log.pulls.waiting == 500
    log.pulls.arrived(arrival(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert log.pulls.waiting == 0
    assert log.woken == []


class Counting:
    """A filter by tags that counts how often it was asked."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.asked = 0

    def by_consume_queue(self, tags_code: int) -> bool:
        self.asked += 1
        return tags_code == self.code

    def by_commitlog(self, record: memoryview) -> bool:
        return True


@asynccontextmanager
async def looks_of_turns(log: Log, matcher: Counting) -> AsyncIterator[list[int]]:
    """Run held pulls until nothing is left to do; afterwards the list has how often each turn has asked the matcher."""
    asked, looks = [0], list[int]()

    class Turns(trio.abc.Instrument):
        def after_task_step(self, _task: trio.lowlevel.Task) -> None:
            asked.append(matcher.asked)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(turns := Turns())
        yield looks
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(turns)
        nursery.cancel_scope.cancel()
    looks += [after - before for before, after in pairwise(asked)]


async def test_arrivals_look_at_very_many_pulls_of_a_queue_in_turns() -> None:
    log, link, matcher, wanting = Log(limit=100_000), Party(), Counting(7), Counting(8)
    for _ in range(9000):
        pull = held(link)
        pull.matcher = matcher
        assert log.pulls.hold(pull)
    last = held(link)
    last.matcher = wanting
    log.pulls.hold(last)
    async with looks_of_turns(log, matcher) as looks:
        for number in range(100):
            log.pulls.arrived(arrival(number + 1, tags_code=3 + number % 2))
        log.pulls.arrived(arrival(101, tags_code=8))
    assert log.woken == [last]
    assert max(looks) < LOOKED_AT_ONCE + 3
    assert matcher.asked == 4 * 9000, "for the first message, and then once for each tag"
    assert log.pulls.waiting == 9000


async def test_very_many_tags_are_not_compared_with_very_many_pulls() -> None:
    log, link, matcher = Log(limit=1000), Party(), Counting(-1)
    beyond = held(link, 10 * TAGS_MOST)
    pulls = [held(link, number) for number in range(FEW)]
    for pull in (*pulls, beyond):
        pull.matcher = matcher
        assert log.pulls.hold(pull)
    async with looks_of_turns(log, matcher) as looks:
        for number in range(8 * TAGS_MOST):
            log.pulls.arrived(arrival(number + 1, tags_code=number))
    assert set(log.woken) == set(pulls), "they are run again, and ask again"
    assert max(looks) <= LOOKED_AT_ONCE + TAGS_MOST
    assert log.pulls.waiting == 1


class Watched(HeldPull):
    """One that weak references are possible to."""


async def test_a_pull_that_has_been_answered_is_not_kept_until_its_deadline() -> None:
    log, link = Log(), Party()
    pull = Watched(link, Command(), "T", 0, 0, None, 600.0)  # type: ignore[arg-type]
    gone = weakref.ref(pull)
    assert log.pulls.hold(pull)
    log.pulls.resume = lambda _pull: None
    log.pulls.arrived(arrival(1))
    del pull
    assert gone() is None


async def test_answering_one_pull_may_close_the_link_of_the_next() -> None:
    log, link = Log(), Party()

    def close(pull: HeldPull) -> None:
        log.woken.append(pull)
        link.closed = True
        log.pulls.drop_link(link)  # type: ignore[arg-type]

    log.pulls.resume = close
    for _ in range(3):
        log.pulls.hold(held(link))
    log.pulls.arrived(arrival(1))
    assert len(log.woken) == 1
    assert log.pulls.waiting == 0


async def test_the_count_is_bounded() -> None:
    log, link = Log(limit=2), Party()
    assert [log.pulls.hold(held(link)) for _ in range(3)] == [True, True, False]
    log.pulls.arrived(arrival(1))
    assert log.pulls.hold(held(link))


async def test_dropped_pulls_do_not_fill_the_heap() -> None:
    log, link = Log(), Party()
    for round_ in range(5000):
        log.pulls.hold(held(link, round_, deadline=1e9))
        log.pulls.arrived(arrival(round_ + 1))
    assert len(log.woken) == 5000
    assert len(log.pulls._deadlines) < 200
    assert not log.pulls.queues
    assert not log.pulls._links


@pytest.mark.parametrize(
    ("codes", "tags_code", "wanted"),
    [
        ({2598919}, 2598919, True),
        ({2598919}, 2598920, False),
        ({-5}, -5, True),
        ({-5}, (1 << 32) - 5, True),
        ({1}, (1 << 32) + 1, True),
        (set(), 0, False),
    ],
)
def test_tag_codes_compare_32_signed_bits(codes: set[int], tags_code: int, wanted: bool) -> None:
    matcher = TagCodes(frozenset(codes))
    assert matcher.by_consume_queue(tags_code) == wanted
    assert matcher.by_commitlog(memoryview(b""))


async def test_no_link_and_no_host_takes_all_places() -> None:
    links = [Party() for _ in range(8)]
    hosts = {link: n // 7 for n, link in enumerate(links)}
    log = Log(limit=10_000, host_of=hosts.__getitem__)
    assert sum(log.pulls.hold(held(links[0])) for _ in range(1500)) == 1000, "a tenth for a link"
    for link in links[1:7]:
        for _ in range(1000):
            log.pulls.hold(held(link))
    assert log.pulls.waiting == 5000, "a half for a host"
    assert log.pulls.hold(held(links[7]))
    log.pulls.drop_link(links[0])  # type: ignore[arg-type]
    assert log.pulls.hold(held(links[1])) is False, "a tenth still"
    assert log.pulls.hold(held(links[5]))


async def test_thousands_of_woken_pulls_leave_others_their_turn(autojump_clock: Any) -> None:
    log = Log(limit=100_000)
    links = [Party() for _ in range(5)]
    for link in links:
        for _ in range(1000):
            assert log.pulls.hold(held(link))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        log.pulls.arrived(arrival(1))
        assert len(log.woken) == AT_ONCE
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert len(log.woken) < 2000
        await trio.testing.wait_all_tasks_blocked()
        assert len(log.woken) == 5000
        assert len({id(pull) for pull in log.woken}) == 5000
        assert log.pulls.waiting == 0
        nursery.cancel_scope.cancel()


class Slow:
    """A filter that takes a while to look into a record: it wants one of them."""

    def __init__(self, log: Log, wanted: bytes) -> None:
        self._log = log
        self._wanted = wanted
        self.looked = 0

    def by_consume_queue(self, tags_code: int) -> bool:
        return True

    def by_commitlog(self, record: memoryview) -> bool:
        self._log.seconds += 0.003
        self.looked += 1
        return record == self._wanted


async def test_a_woken_pull_that_waits_for_its_turn_is_not_woken_again() -> None:
    log, link = Log(limit=1000), Party()
    for _ in range(2 * AT_ONCE):
        log.pulls.hold(held(link))
    few = [held(link, queue_id=1) for _ in range(10)]
    for pull in few:
        log.pulls.hold(pull)
    log.pulls.arrived(arrival(1))
    for number in range(100):
        log.pulls.arrived(arrival(number + 1, queue_id=1))
    assert len(log.pulls._later) == log.pulls.waiting
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert log.woken[-10:] == few
    assert log.pulls.waiting == 0


@pytest.mark.parametrize("wake", ["wake_link", "wake_all"])
async def test_pulls_that_wait_for_their_turn_are_not_woken_again_by_their_client(wake: str) -> None:
    log, link = Log(limit=1000), Party()
    for _ in range(2 * AT_ONCE):
        log.pulls.hold(held(link))
    for _ in range(10):
        log.pulls.wake_link(link) if wake == "wake_link" else log.pulls.wake_all()
    assert len(log.pulls._later) == log.pulls.waiting == AT_ONCE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(log.woken) == 2 * AT_ONCE


async def test_filters_look_into_what_has_come_in_turns(autojump_clock: Any) -> None:
    log = Log(limit=100_000, record_of=lambda _topic, _queue, offset: memoryview(b"%d" % offset))
    link, matchers = Party(), [Slow(log, b"%d" % number) for number in range(40)]
    pulls = [held(link) for _ in matchers]
    for pull, matcher in zip(pulls, matchers, strict=True):
        pull.matcher, pull.examines = matcher, True  # type: ignore[assignment]
        assert log.pulls.hold(pull)
    turns = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        log.pulls.arrived(arrival(1))
        log.pulls.arrived(arrival(20))
        assert log.seconds == 0, "nothing is looked into while messages are stored"
        while log.pulls.waiting > 20:
            before = log.seconds
            await trio.lowlevel.checkpoint()
            turns.append(log.seconds - before)
        await trio.testing.wait_all_tasks_blocked()
        assert log.woken == pulls[:20], "those that look for what has not come wait"
        assert max(turns) < 0.03, "two turns at most: each of 10 ms and a record"
        assert [matcher.looked for matcher in matchers] == [*range(1, 21), *[20] * 20], "each looks at a record once"
        log.pulls.arrived(arrival(40))
        await trio.testing.wait_all_tasks_blocked()
        assert log.woken == pulls
        nursery.cancel_scope.cancel()


async def test_long_answers_of_woken_pulls_leave_others_their_turn(autojump_clock: Any) -> None:
    log, link = Log(), Party()

    def resume(pull: HeldPull) -> None:
        log.woken.append(pull)
        log.seconds += 0.004

    log.pulls.resume = resume
    for queue_id in range(50):
        assert log.pulls.hold(held(link, queue_id=queue_id))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        for queue_id in range(50):
            log.pulls.arrived(arrival(1, queue_id=queue_id))
        assert len(log.woken) == 3
        await trio.testing.wait_all_tasks_blocked()
        assert [pull.queue_id for pull in log.woken] == [*range(50)]
        nursery.cancel_scope.cancel()


async def test_long_requests_take_the_places_of_several_pulls() -> None:
    log, link, other = Log(limit=100 * LEAST_SHARE, host_of=lambda _: "one host"), Party(), Party()

    def long_pull(party: Party, places: int) -> HeldPull:
        command = Command(body=bytes((places - 1) * BYTES_PER_PLACE))
        return HeldPull(party, command, "T", 0, 0, None, 15.0)  # type: ignore[arg-type]

    share = 10 * LEAST_SHARE
    assert not log.pulls.hold(long_pull(link, share + 1))
    assert log.pulls.hold(long_pull(link, share - 1))
    assert log.pulls.hold(held(link))
    assert not log.pulls.hold(held(link))
    for party in [Party() for _ in range(4)]:
        assert log.pulls.hold(long_pull(party, share))
    assert not log.pulls.hold(held(other))
    assert log.pulls.waiting == 6
    log.pulls.drop_link(link)  # type: ignore[arg-type]
    assert log.pulls.hold(long_pull(other, share))
