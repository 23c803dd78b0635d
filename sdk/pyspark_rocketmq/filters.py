"""Which rows a query selects: its options, and those filters that Spark pushes down and that are applied here.

A filter counts as handled only if exactly its rows are returned. Queues and offsets are never read when they do not
match; times narrow the offsets, and the rows at the edges are tested one by one; tags go to the broker, which compares
their hashes, and then are compared as text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import attrs
import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.tags import check_tags

NEVER_NULL: Final = frozenset(
    {
        "topic", "queue_id", "queue_offset", "broker_name", "message_id", "body", "properties", "born_timestamp",
        "store_timestamp", "reconsume_times", "commit_log_offset",
    }
)  # fmt: skip
"""Columns that always have a value."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@attrs.frozen
class Span:
    """Whole numbers from `start` up to, without, `end`; None is no bound."""

    start: int | None = None
    end: int | None = None

    def meet(self, other: Span) -> Span:
        """The intersection of two spans."""
        starts = [each for each in (self.start, other.start) if each is not None]
        ends = [each for each in (self.end, other.end) if each is not None]
        return Span(max(starts, default=None), min(ends, default=None))

    @property
    def is_empty(self) -> bool:
        """Whether the span contains nothing."""
        return self.start is not None and self.end is not None and self.start >= self.end


@attrs.frozen
class RowTest:
    """The test of every row that comes from a broker.

    Args:
        tags: the selected ones; None for all rows, also those without a tag.
        stored_ms: the selected store times, in ms since 1970.
    """

    tags: frozenset[str] | None = None
    stored_ms: Span = Span()

    def rows(
        self, offsets: npt.NDArray[np.int64], stored_ms: npt.NDArray[np.int64], start: int, end: int
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows lie between two offsets and within the times; None for all of them."""
        wanted: npt.NDArray[np.bool_] = (offsets >= start) & (offsets < end)
        if self.stored_ms.start is not None:
            wanted &= stored_ms >= self.stored_ms.start
        if self.stored_ms.end is not None:
            wanted &= stored_ms < self.stored_ms.end
        return None if wanted.all() else wanted


@attrs.frozen
class RowSelection:
    """The rows a query selects.

    Args:
        tags: see :class:`RowTest`.
        queue_ids: ids of the selected queues; None for all.
        topics: the selected topics, likewise.
        brokers: the selected broker names, likewise.
        offsets: the selected queue offsets.
        stored_ms: the selected store times.
    """

    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    offsets: Span = Span()
    stored_ms: Span = Span()

    @property
    def test(self) -> RowTest:
        """The part of the selection that is tested row by row."""
        return RowTest(self.tags, self.stored_ms)

    @property
    def nothing(self) -> bool:
        """Whether no row can match."""
        sets = (self.tags, self.queue_ids, self.topics, self.brokers)
        return self.offsets.is_empty or self.stored_ms.is_empty or any(each is not None and not each for each in sets)

    def has_queue(self, queue: Queue) -> bool:
        """Whether rows of a queue can match."""
        return (
            (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
        )


class Queue(Protocol):
    """The attributes of a queue that are tested."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def broker_name(self) -> str:
        """Its broker."""

    @property
    def queue_id(self) -> int:
        """Its id."""


_SETS: Final = {"tags": "tags", "queue_id": "queue_ids", "topic": "topics", "broker_name": "brokers"}
_SPANS: Final = {"queue_offset": "offsets", "store_timestamp": "stored_ms"}


def push(selection: RowSelection, filters: Sequence[Filter]) -> tuple[RowSelection, list[Filter]]:
    """Accept the filters that can be handled exactly.

    Returns:
        The rows selected now, and the filters that Spark has to evaluate itself.
    """
    left: list[Filter] = []
    for each in filters:
        narrowed = _narrowed(selection, each)
        if narrowed is None:
            left.append(each)
        else:
            selection = narrowed
    if selection.tags is not None:
        # One of the selected tags is not null.
        left = [each for each in left if not (isinstance(each, IsNotNull) and each.attribute == ("tags",))]
    return selection, left


def _narrowed(selection: RowSelection, each: Filter) -> RowSelection | None:
    column: tuple[str, ...] = getattr(each, "attribute", ())
    if len(column) != 1:
        return None
    name = column[0]
    if isinstance(each, IsNotNull):
        return selection if name in NEVER_NULL else None
    if name in _SETS:
        return _with_set(selection, name, each)
    if name in _SPANS:
        span = _span(each, name == "store_timestamp")
        if span is not None:
            changes: dict[str, Any] = {_SPANS[name]: getattr(selection, _SPANS[name]).meet(span)}
            return attrs.evolve(selection, **changes)
    return None


def _with_set(selection: RowSelection, name: str, each: Filter) -> RowSelection | None:
    kind = int if name == "queue_id" else str
    values = _values(each, kind)
    if values is None:
        return None
    before: frozenset[Any] | None = getattr(selection, _SETS[name])
    changes: dict[str, Any] = {_SETS[name]: values if before is None else before & values}
    return attrs.evolve(selection, **changes)


def _values(each: Filter, kind: type) -> frozenset[Any] | None:
    """The values of an equality; None if the filter is not one, or they are of another type."""
    if isinstance(each, EqualTo | EqualNullSafe):
        values = [each.value]
    elif isinstance(each, In):
        values = list(each.value)
    else:
        return None
    # A bool is an int in Python, but not in Spark.
    return frozenset(values) if all(type(value) is kind for value in values) else None


def _span(each: Filter, is_time: bool) -> Span | None:
    """The whole numbers that an inequality or equality selects; times in ms."""
    value = getattr(each, "value", None)
    if is_time:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        below, rest = divmod(value - _EPOCH, _MILLISECOND)
        exact = not rest
    else:
        if type(value) is not int:
            return None
        below, exact = value, True
    at_least = below if exact else below + 1
    if isinstance(each, GreaterThanOrEqual):
        return Span(at_least, None)
    if isinstance(each, GreaterThan):
        return Span(below + 1, None)
    if isinstance(each, LessThan):
        return Span(None, at_least)
    if isinstance(each, LessThanOrEqual):
        return Span(None, below + 1)
    if isinstance(each, EqualTo | EqualNullSafe):
        return Span(at_least, below + 1)
    return None


def tags_of(expression: str | None) -> frozenset[str] | None:
    """The tags that an option selects; None for all.

    Raises:
        ValueError: it names no tag, or has a ``&&``.
    """
    try:
        return frozenset(check_tags(expression).tags) or None
    except LocalProtocolError as error:
        raise ValueError(str(error)) from error


def expression_for(tags: Iterable[str] | None) -> str | None:
    """The tag expression that makes a broker send these tags, and perhaps others; None when it has to send all."""
    if tags is None:
        return None
    wanted = sorted(tags)
    expression = " || ".join(wanted)
    # A tag with a separator or with blanks around it cannot be written in an expression.
    try:
        return expression if sorted(check_tags(expression).tags) == wanted else None
    except LocalProtocolError:
        return None
