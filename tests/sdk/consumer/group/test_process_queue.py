"""The messages of a queue between pull and end: commit points, limits, and messages that no longer count."""

from __future__ import annotations

import gc
import random
import weakref

import attrs
import pytest
from consumer_broker import record_of

import triomq
from triomq._consumer.group.process_queue import OBJECT_BYTES, HeldMessage, HeldPage, ProcessQueue, Stage, held_messages
from triomq_protocol.record.view import RecordView, record_starts

QUEUE = triomq.MessageQueue("T", "b", 3)


BODY_BYTES = 10


class Watched(HeldPage):
    """One whose end can be seen; others have no slot for weak references."""


def page_of(*offsets, body_bytes=BODY_BYTES, max_offset=100):
    records = [
        record_of("T", 3, b"x" * body_bytes, b"", queue_offset=offset, physical_offset=offset, times=0)
        for offset in offsets
    ]
    return Watched(b"".join(records), QUEUE, 0, max_offset)


def put(process, *offsets, **more):
    page = page_of(*offsets, **more)
    return process.put(page, held_messages(page, record_starts(page.body)))


def filled(*offsets, **more):
    process = ProcessQueue(QUEUE)
    return process, put(process, *offsets, **more)


def size_of(*offsets, **more):
    return len(page_of(*offsets, **more).body) + len(offsets) * OBJECT_BYTES


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
            held += put(process, *offsets)
        elif held:
            ended = held.pop(chance.randrange(len(held)))
            assert process.finish(ended)
            done.add(ended.queue_offset)
        if following:
            smallest = min((each.queue_offset for each in held), default=following)
            assert process.commit_point == smallest
            assert set(range(smallest)) <= done
        assert process.count == len(held)
    for ended in held:
        process.finish(ended)
    assert process.size_bytes == 0


def test_a_page_counts_completely_until_its_last_message_has_ended():
    process, (zero, one) = filled(0, 1, body_bytes=2500)
    put(process, 2)
    assert process.size_bytes == size_of(0, 1, body_bytes=2500) + size_of(2)
    process.finish(zero)
    assert process.size_bytes == size_of(0, 1, body_bytes=2500) + size_of(2)
    process.finish(one)
    assert process.size_bytes == size_of(2)


def test_a_stuck_message_keeps_its_own_page_alone():
    process, (stuck, *_) = filled(0, 1)
    messages = put(process, 2, 3)
    behind = weakref.ref(messages[0].page)
    while messages:
        process.finish(messages.pop())
    assert behind() is None, "what has ended is kept although nothing refers to it"
    assert process.size_bytes == size_of(0, 1)
    assert process.commit_point == stuck.queue_offset == 0
    process.finish(stuck)
    assert process.commit_point == 1


@pytest.mark.parametrize(
    "end", [lambda process, messages: process.finish_page(messages), lambda process, _: process.drop()]
)
def test_a_page_that_has_ended_is_in_no_reference_cycle(end):
    """The garbage collector would free it late: a thousand pages later, at 100,000 messages a second."""
    gc.disable()
    try:
        process, messages = filled(0, 1)
        page = weakref.ref(messages[0].page)
        end(process, messages)
        assert page() is not None
        del messages
        assert page() is None
    finally:
        gc.enable()


def test_messages_of_a_page_end_together_or_one_by_one():
    process, messages = filled(0, 1, 2, 3)
    process.finish(messages[1])
    process.finish_page(messages[:3])
    assert (process.count, process.commit_point) == (1, 3)
    process.finish_page(messages)
    assert (process.count, process.size_bytes, process.commit_point) == (0, 0, 4)
    process.finish_page(messages)
    assert process.count == 0


def test_what_is_pulled_twice_is_held_once():
    process, _ = filled(0, 1, 2)
    again = put(process, 1, 2, 3)
    assert [each.queue_offset for each in again] == [3]
    assert process.count == 4
    assert put(process, 3) == []
    for each in again:
        process.finish(each)
    assert process.count == 3


def test_limits_count_when_they_are_exceeded():
    process, _ = filled(*range(10))
    size = size_of(*range(10))
    limits = triomq.FlowLimits(count=10, size_bytes=size, span=9)
    assert process.exceeds(limits) is None
    assert process.exceeds(attrs.evolve(limits, count=9)) == "count"
    assert process.exceeds(attrs.evolve(limits, size_bytes=size - 1)) == "size_bytes"
    assert process.exceeds(attrs.evolve(limits, span=8)) == "span"
    assert process.exceeds(attrs.evolve(limits, span=8), ordered=True) is None


@pytest.mark.parametrize(
    ("limits", "queues", "count", "size_bytes"),
    [
        (triomq.FlowLimits(count=7, size_bytes=5), 3, 7, 5),
        (triomq.FlowLimits(count=7, topic_count=1000, size_bytes=5), 3, 333, 5),
        (triomq.FlowLimits(topic_count=2, topic_size_bytes=2), 3, 1, 1),
        (triomq.FlowLimits(count=7, topic_size_bytes=1 << 20), 4, 7, 1 << 18),
    ],
)
def test_a_topics_limits_are_shared_by_its_queues(limits, queues, count, size_bytes):
    one = limits.of_one(queues)
    assert (one.count, one.size_bytes, one.span) == (count, size_bytes, limits.span)
    # Sharing them out again among others starts from the topic's, not from a queue's.
    assert one.of_one(1) == limits.of_one(1)


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


def test_a_message_that_came_back_has_its_own_topic_and_its_failures():
    def message(times, original=None):
        return HeldMessage(
            RecordView(record_of("T", 3, b"x", b"", queue_offset=0, physical_offset=0, times=times)), QUEUE, original
        )

    came_back = message(2, "orders")
    assert (came_back.topic, came_back.reconsume_times) == ("orders", 2)
    came_back.extra_times += 1
    assert came_back.reconsume_times == 3
    assert message(0).topic == "T"
    assert message(0).queue == QUEUE


def test_how_far_behind_is_known_from_the_last_answer():
    process, _ = filled(0, 1, 2)
    assert process.backlog == 97
