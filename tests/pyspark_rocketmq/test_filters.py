"""Filters that Spark pushes down: handled exactly, or given back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

import numpy as np
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_rocketmq.filters import RowSelection, RowTest, Span, expression_for, push, tags_of
from pyspark_rocketmq.offsets import QueueId

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T0_MS = int(T0.timestamp()) * 1000


def test_tags_queues_topics_brokers() -> None:
    selection, left = push(
        RowSelection(),
        [
            IsNotNull(("tags",)),
            In(("tags",), ("a", "b")),
            EqualTo(("tags",), "b"),
            In(("queue_id",), (1, 2)),
            IsNotNull(("queue_id",)),
            EqualTo(("topic",), "T"),
            EqualTo(("broker_name",), "broker-a"),
        ],
    )
    assert left == []
    assert selection.tags == {"b"}
    assert selection.has_queue(QueueId("T", "broker-a", 1))
    assert not selection.has_queue(QueueId("T", "broker-a", 3))
    assert not selection.has_queue(QueueId("T", "broker-b", 1))
    assert not selection.has_queue(QueueId("U", "broker-a", 1))


def test_offsets() -> None:
    selection, left = push(RowSelection(), [GreaterThan(("queue_offset",), 4), LessThanOrEqual(("queue_offset",), 9)])
    assert (selection.offsets, left) == (Span(5, 10), [])
    assert push(selection, [EqualTo(("queue_offset",), 7)])[0].offsets == Span(7, 8)
    assert push(selection, [LessThan(("queue_offset",), 3)])[0].nothing


@pytest.mark.parametrize(
    ("filter_", "span"),
    [
        (GreaterThanOrEqual(("store_timestamp",), T0), Span(T0_MS, None)),
        (GreaterThan(("store_timestamp",), T0), Span(T0_MS + 1, None)),
        (LessThan(("store_timestamp",), T0), Span(None, T0_MS)),
        (LessThanOrEqual(("store_timestamp",), T0), Span(None, T0_MS + 1)),
        (EqualTo(("store_timestamp",), T0), Span(T0_MS, T0_MS + 1)),
        (GreaterThanOrEqual(("store_timestamp",), T0 + timedelta(microseconds=1)), Span(T0_MS + 1, None)),
        (GreaterThan(("store_timestamp",), T0 + timedelta(microseconds=1)), Span(T0_MS + 1, None)),
        (LessThan(("store_timestamp",), T0 + timedelta(microseconds=1)), Span(None, T0_MS + 1)),
        (LessThanOrEqual(("store_timestamp",), T0 + timedelta(microseconds=1)), Span(None, T0_MS + 1)),
        (EqualTo(("store_timestamp",), T0 + timedelta(microseconds=1)), Span(T0_MS + 1, T0_MS + 1)),
    ],
)
def test_times_to_the_microsecond(filter_: Filter, span: Span) -> None:
    selection, left = push(RowSelection(), [filter_])
    assert (selection.stored_ms, left) == (span, [])


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(("keys",), "a"),
        EqualTo(("properties", "x"), "a"),
        Not(EqualTo(("tags",), "a")),
        IsNull(("tags",)),
        IsNotNull(("tags",)),
        StringStartsWith(("tags",), "a"),
        EqualTo(("queue_id",), True),
        EqualTo(("queue_offset",), 1.5),
        EqualTo(("store_timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - that is the point
        In(("tags",), ("a", None)),
        GreaterThan(("tags",), "a"),
        GreaterThan(("born_timestamp",), T0),
    ],
)
def test_what_cannot_be_handled_exactly_is_given_back(filter_: Filter) -> None:
    selection, left = push(RowSelection(), [filter_])
    assert selection == RowSelection()
    assert left[0] is filter_


def test_an_options_tags_and_a_filters_are_both_meant() -> None:
    assert push(RowSelection(tags=tags_of("a || b")), [EqualTo(("tags",), "b")])[0].tags == {"b"}
    assert push(RowSelection(tags=tags_of("a || b")), [EqualTo(("tags",), "c")])[0].nothing
    assert tags_of("*") is None
    assert tags_of(None) is None


def test_the_brokers_expression() -> None:
    assert expression_for(frozenset({"b", "a"})) == "a || b"
    assert expression_for(None) is None
    for odd in ("a||b", " a", "*", ""):
        assert expression_for(frozenset({odd})) is None, "the broker has to send all, and the text is compared here"


def test_rows_at_the_edges() -> None:
    offsets, times = np.arange(5), np.array([10, 20, 20, 30, 40])
    assert RowTest().rows(offsets, times, 0, 5) is None
    found = RowTest(stored_ms=Span(20, 40)).rows(offsets, times, 1, 4)
    assert found is not None
    assert found.tolist() == [False, True, True, True, False]
