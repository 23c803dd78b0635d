"""What a queue holds between pull and end: commit points, limits, and what no longer counts."""

from __future__ import annotations

import random

import attrs
import pytest
from consumer_broker import record_of

import triomq
from triomq._process_queue import OBJECT_BYTES, HeldMessage, ProcessQueue, Stage
from triomq_protocol.record import RecordView

QUEUE = triomq.MessageQueue("T", "b", 3)


def message(offset, *, times=0, original=None, max_offset=100):
    record = record_of("T", 3, b"x", b"", queue_offset=offset, physical_offset=offset, times=times)
    return HeldMessage(RecordView(record), QUEUE, 0, max_offset, original)


def filled(*offsets, page_bytes=1000):
    process = ProcessQueue(QUEUE)
    return process, process.put([message(offset) for offset in offsets], page_bytes)


def test_the_commit_point_follows_the_smallest_unfinished():
    process, (zero, one, two) = filled(0, 1, 2)
    assert process.commit_point == 0
    assert process.finish(one)
    assert process.commit_point == 0
    assert process.finish(zero)
    assert process.commit_point == 2
    assert process.finish(two)
    assert process.commit_point == 3
    assert not process.finish(two)
    assert process.count == 0


def test_nothing_is_to_commit_before_the_first_answer():
    process = ProcessQueue(QUEUE)
    assert process.commit_point is None
    process.scan(7)
    assert process.commit_point == 7
    process.scan(5)
    assert process.commit_point == 7


def test_offsets_that_did_not_match_are_done_once_what_is_held_before_them_is():
    process, (held,) = filled(3)
    process.scan(50)
    assert process.commit_point == 3
    process.finish(held)
    assert process.commit_point == 50
    # The span is that of messages, not of what was scanned.
    assert process.span == 0


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_ends_commits_exactly_what_is_done(seed):
    chance = random.Random(seed)
    process = ProcessQueue(QUEUE)
    held, done, following = [], set(), 0
    for _ in range(300):
        if chance.random() < 0.3:
            offsets = [following + step for step in range(chance.randrange(1, 6))]
            following = offsets[-1] + 1
            held += process.put([message(offset) for offset in offsets], 100)
        elif held:
            ended = held.pop(chance.randrange(len(held)))
            assert process.finish(ended)
            done.add(ended.place)
        if following:
            smallest = min((each.place for each in held), default=following)
            assert process.commit_point == smallest
            assert set(range(smallest)) <= done
        assert process.count == len(held)
    for ended in held:
        process.finish(ended)
    assert process.size_bytes == 0


def test_a_page_counts_whole_until_its_last_message_has_ended():
    process, (zero, one) = filled(0, 1, page_bytes=5000)
    process.put([message(2)], 100)
    assert process.size_bytes == 5100 + 3 * OBJECT_BYTES
    process.finish(zero)
    assert process.size_bytes == 5100 + 3 * OBJECT_BYTES
    process.finish(one)
    assert process.size_bytes == 100 + OBJECT_BYTES


def test_what_is_pulled_twice_is_held_once():
    process, _ = filled(0, 1, 2)
    again = process.put([message(offset) for offset in (1, 2, 3)], 100)
    assert [each.place for each in again] == [3]
    assert process.count == 4
    assert process.put([message(3)], 100) == []


def test_limits_count_when_they_are_exceeded():
    process, _ = filled(*range(10), page_bytes=1000)
    size = 1000 + 10 * OBJECT_BYTES
    limits = triomq.FlowLimits(count=10, size_bytes=size, span=9)
    assert process.exceeds(limits) is None
    assert process.exceeds(attrs.evolve(limits, count=9)) == "count"
    assert process.exceeds(attrs.evolve(limits, size_bytes=size - 1)) == "size_bytes"
    assert process.exceeds(attrs.evolve(limits, span=8)) == "span"
    assert process.exceeds(attrs.evolve(limits, span=8), ordered=True) is None
    with pytest.raises(ValueError, match="count"):
        triomq.FlowLimits(count=0)


def test_a_stuck_message_keeps_the_span_although_all_behind_it_have_ended():
    process, messages = filled(*range(10))
    for each in messages[1:]:
        process.finish(each)
    assert process.span == 9
    assert process.count == 1


def test_what_was_given_up_no_longer_counts():
    process, (zero, one, two) = filled(0, 1, 2)
    process.finish(one)
    assert process.drop() == [zero, two]
    assert process.dropped
    assert not process.finish(zero)
    assert (process.count, process.size_bytes) == (0, 0)
    assert {zero.stage, one.stage, two.stage} == {Stage.ENDED}


def test_a_message_that_came_back_bears_its_own_topic_and_its_failures():
    came_back = message(0, times=2, original="orders")
    assert (came_back.topic, came_back.reconsume_times) == ("orders", 2)
    came_back.extra_times += 1
    assert came_back.reconsume_times == 3
    assert message(0).topic == "T"


def test_how_far_behind_is_known_from_the_last_answer():
    process, _ = filled(0, 1, 2)
    assert process.backlog == 97
