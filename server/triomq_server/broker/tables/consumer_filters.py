"""Property filters of consumer groups: compiled when a heartbeat arrives, kept in `consumerFilter.json`.

There is one filter per topic and group, from the subscription that is in effect for the group. Subscriptions by tags
need no filter. It answers to `ConsumerFilterManager`; rules: docs/protocol/broker-api.md §5 and §8, docs/protocol/store.md §16.2
and §21.3.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Generic, TypeVar
from zlib import crc32

import attrs
import trio

from triomq_protocol.errors import BodyError
from triomq_protocol.filters.evaluation import Sql92Filter, compile_filter
from triomq_protocol.filters.sql92 import Sql92Error
from triomq_protocol.java_text import utf8
from triomq_protocol.names import RETRY_TOPIC
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.heartbeat import SubscriptionData
from triomq_protocol.wire import fastjson
from triomq_server.config.settings import shown
from triomq_server.disk.config_files import ConfigFile, damaged
from triomq_server.repeats import Repeats

_log = logging.getLogger(__name__)

TAG_TYPE = "TAG"
SQL92_TYPE = "SQL92"

_BLOOM_BITS = 112
_BLOOM_POSITIONS = 3
"""RocketMQ's defaults (error rate 20 %, 32 consumers). Nothing here reads the positions; RocketMQ's loader needs
some."""

MOST_FILTERS = 10_000
"""Filters of a broker: clients choose topics and groups, and a filter without a subscriber is kept for a day. The file
is made of a copy of all."""

MOST_KEPT_BYTES = 16 << 20
"""Of the expressions of all filters."""

MOST_COMPILED_CHARACTERS = 131_072
"""Of all expressions that are compiled at a time: four characters may be an object for the garbage collector, which looks
at all of them at once."""

V = TypeVar("V")

Online = Callable[[str, str], SubscriptionData | None]


class LatestByText(Generic[V]):
    """A cache of values that are made of texts; keeps the latest used, up to `most` characters of text in total.

    Clients choose the texts, so a limit on their number alone would let them fill the memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, V] = OrderedDict()
        self._characters = 0

    def find(self, text: str, make: Callable[[str], V]) -> V:
        """The value of a text, made if it is not there."""
        kept = self._kept
        if text in kept:
            kept.move_to_end(text)
            return kept[text]
        value = kept[text] = make(text)
        self._characters += _weight(text)
        while self._characters > self._most:
            self._characters -= _weight(kept.popitem(last=False)[0])
        return value


def _weight(text: str) -> int:
    return 64 + len(text)


_compiled: LatestByText[Sql92Filter] = LatestByText(MOST_COMPILED_CHARACTERS)


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription is by tags, which is the default."""
    return expression_type in (None, "", TAG_TYPE)


def compiled(expression_type: str, expression: str | None) -> Sql92Filter:
    """The filter of an expression that is not by tags. Raises Sql92Error, also for an unknown type."""
    if expression_type != SQL92_TYPE:
        raise Sql92Error(f"there is no filter of type {expression_type}; the types are {TAG_TYPE} and {SQL92_TYPE}")
    return _compiled.find(expression or "", compile_filter)


class PropertyMatcher:
    """A pull's filter by properties: it reads records, since queue entries hold no properties.

    It compiles the expression, which has been compiled before, again if that was too long ago to be kept.
    """

    __slots__ = ("_expression",)

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def by_consume_queue(self, tags_code: int) -> bool:  # noqa: ARG002
        """Always true: a tags code contains no properties."""
        return True

    def by_commitlog(self, record: memoryview) -> bool:
        """Whether the message's properties make the expression true."""
        try:
            properties = RecordView(record).properties
        except BodyError:
            return False
        return compiled(SQL92_TYPE, self._expression).matches(properties)


class RetryMatcher(PropertyMatcher):
    """The group's filter of the original topic, applied to retried messages (`filterSupportRetry`)."""

    __slots__ = ("_filters", "_group")

    def __init__(self, filters: ConsumerFilters, group: str) -> None:
        self._filters = filters
        self._group = group

    def by_commitlog(self, record: memoryview) -> bool:
        """Whether the group still wants the message; true without a filter."""
        try:
            properties = RecordView(record).properties
        except BodyError:
            return False
        found = self._filters.find(properties.get(RETRY_TOPIC, ""), self._group)
        return found is None or compiled(SQL92_TYPE, found.expression).matches(properties)


@attrs.define
class ConsumerFilter:
    """One group's filter of one topic.

    Attributes:
        client_version: the subVersion of the subscription it belongs to.
        born_ms, dead_ms: when it was made, and since when it has had no subscriber (0: it has one).
        positions: Bloom positions, kept as they were read.
        matcher: what pulls use.
        kept_bytes: the memory that the expression takes.
    """

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    born_ms: int
    dead_ms: int
    positions: list[int]
    matcher: PropertyMatcher = attrs.field(init=False)
    kept_bytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.matcher = PropertyMatcher(self.expression)
        self.kept_bytes = getsizeof(self.expression)


Row = tuple[ConsumerFilter, int, int]
"""A filter with copies of the values that may change while the file is made: client_version and dead_ms."""


class ConsumerFilters:
    """All filters of a broker.

    Args:
        file: `config/consumerFilter.json`; None keeps them in memory only.
        clock: wall clock in ms.
    """

    def __init__(self, file: ConfigFile | None, clock: Callable[[], int]) -> None:
        self._file = file
        self._clock = clock
        self._table: dict[tuple[str, str], ConsumerFilter] = {}
        self.kept_bytes = 0
        """Of the expressions of all filters."""
        self.changed = False
        self._not_compiled = Repeats()

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """The compiled filter of a group's subscription; None if there is none, or it could not be compiled."""
        return self._table.get((topic, group))

    def update(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Compile the filters of a group's present subscriptions, and drop those of subscriptions by tags."""
        for data in subscriptions:
            topic = data.topic or ""
            known = self._table.get((topic, group))
            if is_tag_type(data.expression_type):
                if known is not None:
                    self._drop(known)
            elif known is None or (known.expression, known.expression_type) != (
                data.sub_string or "",
                data.expression_type,
            ):
                self._compile(topic, group, data)
            elif known.client_version != data.sub_version or known.dead_ms:
                known.client_version, known.dead_ms = data.sub_version, 0
                self.changed = True

    def _compile(self, topic: str, group: str, data: SubscriptionData) -> None:
        known = self._table.get((topic, group))
        try:
            self._check_space(known, data.sub_string or "")
            compiled(data.expression_type, data.sub_string)
        except Sql92Error as error:
            if (due := self._not_compiled.add(f"{group} of {topic}")) is not None:
                _log.warning(
                    "%d subscriptions receive no messages, since their filters cannot be compiled: %s; the last one: %s",
                    *due, error,
                )  # fmt: skip
            if known is not None:
                self._drop(known)
            return
        made = ConsumerFilter(
            topic,
            group,
            data.sub_string or "",
            data.expression_type,
            data.sub_version,
            self._clock(),
            0,
            _positions_of(topic, group) if known is None else known.positions,
        )
        self._put(made)
        self.changed = True

    def _check_space(self, known: ConsumerFilter | None, expression: str) -> None:
        """Raise Sql92Error if a new filter would exceed the number of filters, or the total length of their expressions."""
        if known is None and len(self._table) >= MOST_FILTERS:
            raise Sql92Error(f"the broker has {MOST_FILTERS} filters already")
        freed = 0 if known is None else known.kept_bytes
        if self.kept_bytes - freed + getsizeof(expression) > MOST_KEPT_BYTES:
            raise Sql92Error(f"the broker's filters have {self.kept_bytes} bytes of {MOST_KEPT_BYTES} already")

    def _put(self, made: ConsumerFilter) -> None:
        before = self._table.get((made.topic, made.group))
        self.kept_bytes += made.kept_bytes - (0 if before is None else before.kept_bytes)
        self._table[made.topic, made.group] = made

    def _drop(self, known: ConsumerFilter) -> None:
        del self._table[known.topic, known.group]
        self.kept_bytes -= known.kept_bytes
        self.changed = True

    def expire(self, online: Online, keep_ms: int) -> None:
        """Mark filters without a subscriber, and drop those without one for `keep_ms`.

        Args:
            online: the subscription of an online group to a topic.
            keep_ms: the setting filterDataCleanTimeSpan.
        """
        now_ms = self._clock()
        for known in list(self._table.values()):
            alive = online(known.group, known.topic) is not None
            if alive != (known.dead_ms == 0):
                known.dead_ms = 0 if alive else now_ms
                self.changed = True
            elif not alive and now_ms - known.dead_ms > keep_ms:
                self._drop(known)

    # -- file

    def load(self) -> None:
        """Read `consumerFilter.json`; what cannot be compiled is left out and logged. Raises OSError or ConfigFileDamaged."""
        data = self._file.load() if self._file is not None else None
        topics = data.get("filterDataByTopic") if isinstance(data, Mapping) else None
        if self._file is None or not isinstance(topics, Mapping):
            return
        left_out: list[str] = []
        try:
            found = [entry for topic in topics.values() for entry in topic["groupFilterData"].values()]
            for entry in found:
                try:
                    self._read(entry)
                except Sql92Error as error:
                    left_out.append(f"{entry['consumerGroup']} of {entry['topic']}: {error}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(self._file.path, f"does not hold what it should: {error!r}") from error
        if left_out:
            _log.warning(
                "%s: %d filters cannot be compiled and are left out until their groups subscribe again; the first one: %s",
                self._file.path, len(left_out), shown(left_out[0]),
            )  # fmt: skip

    def _read(self, entry: Mapping[str, object]) -> None:
        text, kind = str(entry["expression"]), str(entry.get("expressionType") or TAG_TYPE)
        topic, group = str(entry["topic"]), str(entry["consumerGroup"])
        compiled(kind, text)
        bloom = entry.get("bloomFilterData")
        positions = bloom.get("bitPos") if isinstance(bloom, Mapping) else None
        version, born, dead = (int(str(entry.get(name, 0))) for name in ("clientVersion", "bornTime", "deadTime"))
        bits = [int(one) for one in positions] if isinstance(positions, list) else _positions_of(topic, group)
        self._put(ConsumerFilter(topic, group, text, kind, version, born, dead, bits))

    def _text(self) -> bytes:
        return _text_of(self._rows())

    def _rows(self) -> list[Row]:
        return [(known, known.client_version, known.dead_ms) for known in self._table.values()]

    def persist(self) -> None:
        """Write the file now if anything has changed; if the disk fails, it logs an error and the next call tries
        again."""
        if self._file is None or not self.changed:
            return
        try:
            self._file.save(self._text())
        except OSError as error:
            self._file.log_failure(error)
        else:
            self.changed = False

    async def persist_in_background(self) -> None:
        """Write the file without holding up the event loop, if anything has changed."""
        if self._file is None or not self.changed:
            await trio.lowlevel.checkpoint()
            return
        self.changed = False
        written = False
        try:
            file, rows = self._file, self._rows()
            await file.in_background(lambda: file.save(_text_of(rows)))
            written = True
        except OSError as error:
            self._file.log_failure(error)
        finally:
            if not written:  # also at a cancel
                self.changed = True


def _text_of(rows: list[Row]) -> bytes:
    """The file's text."""
    topics: dict[str, dict[str, object]] = {}
    for known, client_version, dead_ms in rows:
        entry = {
            "bloomFilterData": {"bitNum": _BLOOM_BITS, "bitPos": known.positions},
            "bornTime": known.born_ms,
            "clientVersion": client_version,
            "consumerGroup": known.group,
            "dead": dead_ms != 0,
            "deadTime": dead_ms,
            "expression": known.expression,
            "expressionType": known.expression_type,
            "topic": known.topic,
        }
        groups = topics.setdefault(known.topic, {"groupFilterData": {}, "topic": known.topic})["groupFilterData"]
        assert isinstance(groups, dict)
        groups[known.group] = entry
    return fastjson.dumps_pretty({"filterDataByTopic": topics})


def _positions_of(topic: str, group: str) -> list[int]:
    """Three different places below _BLOOM_BITS."""
    first = crc32(utf8(f"{group}#{topic}"))
    return [(first + step * 37) % _BLOOM_BITS for step in range(_BLOOM_POSITIONS)]
