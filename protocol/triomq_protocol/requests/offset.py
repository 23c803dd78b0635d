"""Offsets of queues and consumer groups: codes 14, 15, 29, 30, 31, 32, 43, 45 (docs/protocol/broker-api.md §7)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

from collections.abc import Generator
from typing import ClassVar, Self

from triomq_protocol.requests.message_queue import MessageQueue
from triomq_protocol.wire.body import ANSWER_TOLERANT_BYTES, Body, SmallKey
from triomq_protocol.wire.header import Header, Int32, Int64
from triomq_protocol.wire.parts import decode_in_parts, table_parts

_PART_BYTES = 1 << 16
"""Of offsets, whose numbers as keys are not standard JSON, so much is read in one go."""


class QueryConsumerOffsetRequest(Header, kw_only=True):
    """Header of QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    bname: str | None = None


class QueryConsumerOffsetResponse(Header, kw_only=True):
    """Answer header of 14."""

    offset: Int64


class UpdateConsumerOffsetRequest(Header, kw_only=True):
    """Header of UPDATE_CONSUMER_OFFSET (15); its answer has an empty header."""

    consumer_group: str
    topic: str
    queue_id: Int32
    bname: str | None = None  # before commit_offset: they share a bucket of Java's map
    commit_offset: Int64


class UpdateConsumerOffsetResponse(Header, kw_only=True):
    """Answer header of 15: no fields."""


class SearchOffsetRequest(Header, kw_only=True):
    """Header of SEARCH_OFFSET_BY_TIMESTAMP (29); `timestamp` in ms since 1970."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    bname: str | None = None


class SearchOffsetResponse(Header, kw_only=True):
    """Answer header of 29."""

    offset: Int64


class GetMaxOffsetRequest(Header, kw_only=True):
    """Header of GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


class GetMaxOffsetResponse(Header, kw_only=True):
    """Answer header of 30: the next offset to be written."""

    offset: Int64


class GetMinOffsetRequest(Header, kw_only=True):
    """Header of GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


class GetMinOffsetResponse(Header, kw_only=True):
    """Answer header of 31."""

    offset: Int64


class GetEarliestMsgStoretimeRequest(Header, kw_only=True):
    """Header of GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


class GetEarliestMsgStoretimeResponse(Header, kw_only=True):
    """Answer header of 32: ms since 1970, -1 if the queue is empty or unknown."""

    timestamp: Int64


class ConsumerOffsetTable(Body, kw_only=True):
    """Body of 43 and of consumerOffset.json: `topic@group` -> queue id -> offset.

    Upstream `ConsumerOffsetSerializeWrapper`.
    """

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    offset_table: dict[str, dict[SmallKey, int]] = {}

    @classmethod
    def decode_in_slices(cls, data: bytes) -> Generator[None, None, Self]:
        """`decode`, which yields after parts of a long table; returns the body.

        More than 2 MiB must be in the form that brokers write. Raises BodyError.
        """
        rest, queues = table_parts(data, "offsetTable", b'":{', _PART_BYTES)

        def add(body: Self, part: Self) -> None:
            body.offset_table.update(part.offset_table)

        return decode_in_parts(cls, data, rest, [("offsetTable", part) for part in queues], add)


class DelayOffsetTable(Body, kw_only=True):
    """Body of 45 and of delayOffset.json: delay level -> next offset; upstream `DelayOffsetSerializeWrapper`."""

    tolerant_bytes: ClassVar[int] = 1 << 16
    most_bytes: ClassVar[int] = 1 << 16  # a hundred times what the levels of a broker take

    offset_table: dict[SmallKey, int] = {}


class LocalOffsetTable(Body, kw_only=True):
    """Local offset file of a broadcasting consumer; upstream `OffsetSerializeWrapper`."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    offset_table: dict[MessageQueue, int] = {}
