"""Converts rows to the elements of batch requests, thousands at once.

Arrow joins the columns into the bytes of a batch request (docs/protocol/messages.md §7). Rows that cannot be in a
batch, or break a rule of messages, are left to :mod:`pyspark_rocketmq.rows.row_messages`, which sends them one by one,
or names the row and its fault. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.rows.row_keys import ROW_KEY, RowKeys
from pyspark_rocketmq.rows.variable_width import data_of, ends_of
from triomq import Message, MQError
from triomq_protocol.names import (
    DELIVERY_TIMES,
    KEYS,
    MAX_PROPERTIES_BYTES,
    RESERVED_PROPERTIES,
    TAGS,
    TIMER_OUT,
    UNIQ_KEY,
)
from triomq_protocol.record.layout import BATCH_ELEMENT_FIXED_BYTES, BATCH_ELEMENT_HEAD, PROPERTIES_LENGTH

Ints = npt.NDArray[np.int64]

NewIds = Callable[[int], pa.LargeStringArray]
"""Creates the given number of message ids."""

_BYTES: Final = pa.large_binary()
_TEXT: Final = pa.large_string()
_HEAD: Final = np.dtype(",".join(f">{code}4" for code in BATCH_ELEMENT_HEAD.format.lstrip(">")))
_LENGTH: Final = np.dtype(PROPERTIES_LENGTH.format)
_DELIVERY_TIMES: Final = pa.array(sorted(DELIVERY_TIMES), _TEXT)
_SPARE_BYTES: Final = 96
"""Bytes left free in the longest properties for the separators, the name of the row's key, and the properties that the
broker adds to each element."""

_SEPARATORS: Final = r"[\x01\x02]"
_NO_TAG: Final = r"[\x01\x02]|\|\||&&|^[\x00-\x20]|[\x00-\x20]$"
_KEYS: Final = r"^[^\pC\pZ]+( [^\pC\pZ]+)*$"
_IS_PLAIN: Final = np.array([0x20 < byte < 0x7F and byte not in b"|&" for byte in range(256)])
"""By byte: whether it may be anywhere in tags and keys."""
NOT_WRITTEN: Final = RESERVED_PROPERTIES | {ROW_KEY}
"""Properties of a row that are not written: reserved names and row keys belong to the message that was read."""


@attrs.frozen(eq=False)
class Elements:
    """Rows in the form of a batch request.

    Args:
        topic: the topic to send to.
        encoded: one element for each row, large binary.
        body_bytes: the length of each row's body.
        ids: the message id of each row.
        sharding_keys: the sharding key of each row, a dictionary of text; None if no row has one.
    """

    topic: str
    encoded: pa.LargeBinaryArray
    body_bytes: Ints
    ids: pa.LargeStringArray
    sharding_keys: pa.DictionaryArray | None

    def __len__(self) -> int:
        return len(self.encoded)

    def take(self, rows: Ints) -> Elements:
        """Select elements by row, in this order, without their sharding keys."""
        taken = pa.array(rows)
        return Elements(self.topic, self.encoded.take(taken), self.body_bytes[rows], self.ids.take(taken), None)

    def requests(self, max_rows: int, max_bytes: int) -> Iterator[ElementBatch]:
        """Divide the elements into the bodies of requests; an element longer than `max_bytes` gets its own."""
        ends = ends_of(self.encoded)
        data = data_of(self.encoded)
        at = 0
        while at < len(self):
            end = int(np.searchsorted(ends, ends[at] + max_bytes, "right")) - 1
            end = max(at + 1, min(end, at + max_rows))
            begin_byte, end_byte = int(ends[at]), int(ends[end])
            yield ElementBatch(
                self.topic,
                data[begin_byte:end_byte].to_pybytes(),
                self.ids[at:end].to_pylist(),
                int(self.body_bytes[at:end].sum()),
            )
            at = end


@attrs.frozen
class ElementBatch:
    """The body of one batch request.

    Args:
        topic: the topic to send to.
        body: the elements.
        ids: the message id of each element.
        body_bytes: the sum of the lengths of their bodies.
    """

    topic: str
    body: bytes
    ids: Sequence[str]
    body_bytes: int


class ElementEncoder:
    """Encodes a task's rows as elements.

    Args:
        topic: the topic of rows that do not name one.
        max_body_bytes: rows with longer bodies are not put in batches.
        keys: creates the key of each row.
        new_ids: creates message ids.
        max_element_bytes: rows whose elements may be longer are not put in batches; None sets no limit.
    """

    def __init__(
        self,
        topic: str | None,
        max_body_bytes: int,
        keys: RowKeys,
        new_ids: NewIds,
        max_element_bytes: int | None = None,
    ) -> None:
        self._topic = topic
        self._max_body_bytes = max_body_bytes
        self._keys = keys
        self._new_ids = new_ids
        self._max_element_bytes = max_element_bytes

    def encode(self, batch: pa.RecordBatch) -> tuple[list[Elements], Ints]:
        """Encode the rows that may be in batches.

        Args:
            batch: some rows.

        Returns:
            The elements by topic, and the numbers of the rows that must be sent one by one: those with a delay level or
            a time of delivery, and those with long bodies. If sharding keys set an order, or a row breaks a rule, that is all or none.
        """
        rows = np.arange(batch.num_rows, dtype=np.int64)
        alone = self._alone(batch)
        if alone.any():
            if "sharding_key" in batch.schema.names:
                return [], rows
            elements = self._encode(batch.take(pa.array(np.flatnonzero(~alone))))
            return ([], rows) if elements is None else (elements, rows[alone])
        elements = self._encode(batch)
        return ([], rows) if elements is None else (elements, rows[:0])

    def _alone(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows must not be in a batch: delayed ones, whose delay brokers ignore there, and long ones, to compress."""
        lengths = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy(zero_copy_only=False)
        alone: npt.NDArray[np.bool_] = lengths > self._max_body_bytes
        if "delay_level" in batch.schema.names:
            delays = pc.fill_null(batch.column("delay_level"), 0).to_numpy(zero_copy_only=False)
            alone |= delays != 0
        if "properties" in batch.schema.names:
            alone |= _have_delivery_time(batch.column("properties"))
        return alone

    def _encode(self, batch: pa.RecordBatch) -> list[Elements] | None:
        """The elements of some rows, by topic; None if one of them breaks a rule."""
        if not batch.num_rows:
            return []
        columns = {name: batch.column(name) for name in batch.schema.names}
        body = columns["body"].cast(_BYTES)
        if body.null_count:
            return None
        lengths: Ints = pc.binary_length(body).to_numpy(zero_copy_only=False).astype(np.int64)
        topics = self._topics(columns.get("topic"), batch.num_rows)
        tags, keys = _present(columns.get("tags")), _present(columns.get("keys"))
        if not lengths.all() or topics is None or not _are_tags(tags) or not _are_keys(keys):
            return None
        own = None
        if (properties := columns.get("properties")) is not None and (own := _own_properties(properties)) is None:
            return None
        shards = columns.get("sharding_key")
        given = [("", own), (f"{KEYS}\x01", keys), (f"{TAGS}\x01", tags)]
        ids = self._new_ids(batch.num_rows)
        with_ids = [*given, (f"{UNIQ_KEY}\x01", ids)]
        # Before any row gets its key: rows that are left to the other path get their keys there, and a row that had two
        # would have another number among its equals than in a repeated task that cuts the rows into other batches.
        longest = _longest(with_ids) + self._keys.max_bytes + _SPARE_BYTES
        if longest > MAX_PROPERTIES_BYTES:
            return None
        element_bytes = BATCH_ELEMENT_FIXED_BYTES + int(lengths.max()) + longest
        if self._max_element_bytes is not None and element_bytes > self._max_element_bytes:
            return None
        row_keys = self._keys.of(_separated([("", body), *given, ("", topics), ("", shards)]))
        encoded_properties = _separated([*given, (f"{ROW_KEY}\x01", row_keys), (f"{UNIQ_KEY}\x01", ids)])
        properties_bytes: Ints = pc.binary_length(encoded_properties).to_numpy(zero_copy_only=False)
        encoded = _joined([_heads(lengths, properties_bytes), body, _lengths(properties_bytes), encoded_properties])
        return list(_by_topic(Elements("", encoded, lengths, ids, None), topics, shards))

    def _topics(self, column: pa.Array | None, rows: int) -> pa.DictionaryArray | None:
        """The topic of each row; None if one of them cannot be sent to."""
        if column is None:
            column = pa.nulls(rows, pa.string())
        if self._topic is not None and column.null_count:
            column = pc.fill_null(column, self._topic)
        if column.null_count:
            return None
        topics = column.dictionary_encode()
        try:
            for topic in topics.dictionary.to_pylist():
                Message(topic, b"-").check()
        except MQError:
            return None
        return topics


def row_content(
    body: bytes,
    own: Iterable[tuple[str, str]],
    keys: str | None,
    tags: str | None,
    topic: str,
    sharding_key: str | None,
) -> bytes:
    """The bytes from which a row's key is derived; the same for a single row as for many."""
    texts = [f"{name}\x01{value}" for name, value in own]
    texts += [f"{name}\x01{value}" for name, value in ((KEYS, keys), (TAGS, tags)) if value]
    texts.append(topic)
    if sharding_key is not None:
        texts.append(sharding_key)
    return b"\x02".join((body, *(text.encode() for text in texts)))


def _separated(parts: Sequence[tuple[str, pa.Array | None]]) -> pa.LargeBinaryArray:
    """The parts of each row, separated as properties are; those that are null are left out.

    Args:
        parts: the prefix of each value, and the values; None if no row has one.
    """
    columns = [(begin.encode(), values.cast(_BYTES)) for begin, values in parts if values is not None]
    if any(values.null_count for _, values in columns):
        whole = [_joined([pa.scalar(begin, _BYTES), values]) if begin else values for begin, values in columns]
        return pc.binary_join_element_wise(*whole, pa.scalar(b"\x02", _BYTES), null_handling="skip")
    pieces: list[pa.Array | pa.Scalar] = []
    for begin, values in columns:
        pieces += [pa.scalar(b"\x02" + begin if pieces else begin, _BYTES), values]
    return _joined(pieces)


def _longest(parts: Sequence[tuple[str, pa.Array | None]]) -> int:
    """An upper bound of the bytes of a row of :func:`_separated` without separators: the sum of the longest value of
    each part."""
    longest = [(begin, pc.max(pc.binary_length(values)).as_py()) for begin, values in parts if values is not None]
    return sum(len(begin) + (value_bytes or 0) for begin, value_bytes in longest)


def _joined(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", _BYTES))


def _present(column: pa.Array | None) -> pa.Array | None:
    """A column of text, null where it is empty; None if all of it is."""
    if column is None or column.null_count == len(column):
        return None
    column = column.cast(_TEXT)
    return pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, _TEXT), column)


def _are_tags(column: pa.Array | None) -> bool:
    return (
        column is None
        or _is_plain(column)
        or not _any(pc.match_substring_regex(column, _NO_TAG), pc.utf8_is_space(column))
    )


def _are_keys(column: pa.Array | None) -> bool:
    return column is None or _is_plain(column) or not _any(pc.invert(pc.match_substring_regex(column, _KEYS)))


def _is_plain(column: pa.LargeStringArray) -> bool:
    """Whether all bytes are those that may be anywhere in tags and keys. A regular expression takes many times as
    long."""
    ends = ends_of(column)
    return bool(_IS_PLAIN[np.frombuffer(data_of(column), np.uint8)[ends[0] : ends[-1]]].all())


def _any(*conditions: pa.Array) -> bool:
    return any(pc.any(condition).as_py() for condition in conditions)


def _have_delivery_time(column: pa.MapArray) -> npt.NDArray[np.bool_]:
    """Which rows a broker would keep until a time; not those that one of RocketMQ 5 has delivered already."""
    offsets: Ints = column.offsets.to_numpy().astype(np.int64)
    names = column.keys[int(offsets[0]) : int(offsets[-1])].cast(_TEXT)
    found = np.zeros(len(column), np.bool_)
    timed: npt.NDArray[np.bool_] = pc.is_in(names, _DELIVERY_TIMES).to_numpy(zero_copy_only=False)
    if timed.any():
        rows = np.repeat(np.arange(len(column)), np.diff(offsets))
        found[rows[timed]] = True
        found[rows[pc.equal(names, TIMER_OUT).to_numpy(zero_copy_only=False)]] = False
    return found


def _own_properties(column: pa.MapArray) -> pa.Array | None:
    """The users' properties of each row, null where there are none; None if one of them cannot be sent."""
    offsets: Ints = column.offsets.to_numpy().astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    names, values = column.keys[begin:end].cast(_TEXT), column.items[begin:end].cast(_TEXT)
    written = pc.and_(pc.is_valid(values), pc.invert(pc.is_in(names, pa.array(NOT_WRITTEN, _TEXT))))
    kept = np.concatenate(([0], np.cumsum(written.to_numpy(zero_copy_only=False), dtype=np.int64)))
    names, values = names.filter(written), values.filter(written)
    for texts in (names, values):
        empty = pc.equal(pc.binary_length(texts), 0)
        if _any(pc.match_substring_regex(texts, _SEPARATORS), pc.utf8_is_space(texts), empty):
            return None
    entries = pc.binary_join_element_wise(names, values, pa.scalar("\x01", _TEXT))
    rows = pa.LargeListArray.from_arrays(pa.array(kept[offsets - begin]), entries)
    return _present(pc.binary_join(rows, pa.scalar("\x02", _TEXT)))  # null where there are none


def _heads(body_bytes: Ints, properties_bytes: Ints) -> pa.Array:
    """The head of each element."""
    heads = np.zeros(len(body_bytes), _HEAD)
    heads["f0"] = BATCH_ELEMENT_FIXED_BYTES + body_bytes + properties_bytes
    heads["f4"] = body_bytes
    return _fixed(heads)


def _lengths(properties_bytes: Ints) -> pa.Array:
    """The length before each element's properties."""
    return _fixed(properties_bytes.astype(_LENGTH))


def _fixed(values: npt.NDArray[Any]) -> pa.Array:
    kind = pa.binary(values.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).cast(_BYTES)


def _by_topic(whole: Elements, topics: pa.DictionaryArray, shards: pa.Array | None) -> Iterator[Elements]:
    """Divide elements by topic."""
    names = topics.dictionary.to_pylist()
    if shards is not None:
        shards = None if shards.null_count == len(shards) else shards.dictionary_encode()
    if len(names) == 1:
        yield attrs.evolve(whole, topic=names[0], sharding_keys=shards)
        return
    codes = topics.indices.to_numpy()
    for code, name in enumerate(names):
        rows = np.flatnonzero(codes == code)
        own_shards = None if shards is None else shards.take(pa.array(rows))
        yield attrs.evolve(whole.take(rows), topic=name, sharding_keys=own_shards)
