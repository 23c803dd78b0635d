"""Ranges, tasks and limits, without a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark_rocketmq.offsets import COMMITTED, EARLIEST, LATEST, QueueId
from pyspark_rocketmq.read.planning import Bounds, QueueRange, is_due, limit_bytes, limit_rows, ranges, resolved, split

A, B, C = (QueueId("T", "broker-a", number) for number in range(3))


def test_words_become_numbers() -> None:
    held = Bounds(5, 90)
    assert [resolved(word, held, 33) for word in (EARLIEST, LATEST, COMMITTED, 7)] == [5, 90, 33, 7]
    assert resolved(COMMITTED, held, None) == 5, "a group that was never there starts at the first message"


def test_ranges_between_starts_and_ends() -> None:
    parts = ranges({A: 0, B: 5, C: 9}, {A: 10, B: 5, C: 3})
    assert parts == [QueueRange(A, 0, 10)]


def test_long_ranges_are_cut() -> None:
    parts = split([QueueRange(A, 0, 100), QueueRange(B, 1000, 1300)], 8)
    assert len(parts) == 8
    assert [len(part) for part in parts if part.queue == A] == [50, 50]
    assert sum(map(len, parts)) == 400
    assert split([QueueRange(A, 0, 100)], None) == [QueueRange(A, 0, 100)]
    assert len(split([QueueRange(A, 0, 3)], 8)) == 3, "no more tasks than offsets"


@pytest.mark.parametrize(
    ("wanted", "most", "lengths"),
    [
        (None, 300, [300, 10]),
        (None, 299, [150, 150, 10]),
        (None, 100, [100, 100, 100, 10]),
        (None, 1, [1] * 310),
        (2, 100, [100, 100, 100, 10]),
        (6, 100, [60, 60, 60, 60, 60, 10]),
        (6, 1000, [60, 60, 60, 60, 60, 10]),
    ],
)
def test_a_task_has_no_more_than_so_many_offsets(wanted: int | None, most: int, lengths: list[int]) -> None:
    assert [len(part) for part in split([QueueRange(A, 5, 305), QueueRange(B, 0, 10)], wanted, most)] == lengths


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 400)),
)
def test_a_cut_loses_and_repeats_nothing(spans: list[tuple[int, int]], wanted: int | None, most: int | None) -> None:
    parts = [QueueRange(QueueId("T", "b", number), start, start + size) for number, (start, size) in enumerate(spans)]
    pieces = split(parts, wanted, most)
    assert [(p.queue, o) for p in pieces for o in range(p.start, p.end)] == [
        (p.queue, o) for p in parts for o in range(p.start, p.end)
    ]
    assert len(pieces) >= min(wanted or 0, sum(map(len, parts)))
    assert all(0 < len(piece) <= (most or 300) for piece in pieces)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.integers(1, 500))
def test_a_limit_is_used_up_and_not_exceeded(backlogs: list[int], most: int) -> None:
    starts = {QueueId("T", "b", number): 10 * number for number in range(len(backlogs))}
    ends = {queue: start + backlog for (queue, start), backlog in zip(starts.items(), backlogs, strict=True)}
    limited = limit_rows(starts, ends, most)
    taken = {queue: limited[queue] - starts[queue] for queue in starts}
    assert all(0 <= count <= ends[queue] - starts[queue] for queue, count in taken.items())
    assert sum(taken.values()) == min(most, sum(backlogs))


@pytest.mark.parametrize(
    ("backlog", "since_s", "due"),
    [
        (100, 0.0, True),
        (99, 0.0, False),
        (99, 59.9, False),
        (99, 60.0, True),
        (1, 61.0, True),
        (0, 60.0, True),
        (101, 59.9, True),
        (0, None, True),
        (1, None, True),
    ],
)
def test_a_trigger_waits_for_messages_but_not_for_ever(backlog: int, since_s: float | None, *, due: bool) -> None:
    assert is_due(backlog, 100, since_s, 60.0) is due


def test_each_queue_gets_its_share() -> None:
    assert limit_rows({A: 0, B: 0}, {A: 900, B: 100}, 100) == {A: 90, B: 10}


def test_bytes_are_turned_into_rows() -> None:
    limited = limit_bytes({A: 0, B: 0}, {A: 1000, B: 1000}, 100_000, {A: 1000.0, B: 1000.0})
    assert limited == {A: 50, B: 50}
    assert limit_bytes({A: 0}, {A: 10}, 1, {A: 1000.0}) == {A: 1}, "one row goes on in any case"
    assert limit_bytes({A: 0}, {A: 10}, 100_000, {A: 1000.0}) == {A: 10}
