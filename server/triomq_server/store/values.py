"""The arguments and results of the store: plain values without behaviour.

The classes are msgspec structs because an object is made per message or per pull on the hot path. Statuses have
RocketMQ's names (`PutMessageStatus`, `GetMessageStatus`). The broker maps them to response codes
(docs/protocol/store.md §5.3 and §15.2).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

import msgspec


class AppendStatus(IntEnum):
    """How an append ended (`PutMessageStatus`). The message is in the log only with `PUT_OK`."""

    PUT_OK = 0
    MESSAGE_ILLEGAL = 1
    PROPERTIES_SIZE_EXCEEDED = 2
    SERVICE_NOT_AVAILABLE = 3


class ReadStatus(IntEnum):
    """How a read ended (`GetMessageStatus` and its numbers, docs/protocol/store.md §15.1).

    `NO_MATCHED_LOGIC_QUEUE` (7) is left out: RocketMQ never returns it either.
    """

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MESSAGE_IN_QUEUE = 8


class NewRecord(msgspec.Struct, gc=False):
    """One message to be stored, as the broker wants it on disk.

    `properties` are the final property bytes: CLUSTER added, WAIT dropped, and for a delayed message REAL_TOPIC
    and REAL_QID inside, with `topic` and `queue_id` already those of SCHEDULE_TOPIC_XXXX. The store does not read
    them; `tags`, `keys`, `uniq_key` and `delay_level` repeat what dispatch needs.
    `born_host` and `store_host` are packed: address bytes (4 or 16) and a 4-byte port. The IPv6 bits of `sys_flag`
    are set from their lengths.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\0\0\0\0\0\0\0\0"
    store_host: bytes = b"\0\0\0\0\0\0\0\0"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags: str | None = None
    keys: str | None = None
    uniq_key: str | None = None
    delay_level: int = 0


class NewBatch(msgspec.Struct, gc=False):
    """A batch (code 320) to be stored (docs/protocol/messages.md §7).

    `body` holds the elements as the producer sent them. `properties` are the batch-level property
    bytes, appended to each element's own.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\0\0\0\0\0\0\0\0"
    store_host: bytes = b"\0\0\0\0\0\0\0\0"
    reconsume_times: int = 0


class AppendResult(msgspec.Struct, gc=False):
    """The place of a message (or a batch) in the log. With any status but PUT_OK the numbers are meaningless.

    `physical_offset` is its first byte in the log, `end_offset` the first byte after it, `queue_offset` its (first) queue
    offset, `physical_offsets` one log offset per element of a batch (empty for a single message).
    """

    status: AppendStatus
    physical_offset: int = -1
    size_bytes: int = 0
    end_offset: int = -1
    queue_offset: int = 0
    store_timestamp: int = 0
    physical_offsets: tuple[int, ...] = ()

    @property
    def message_ids(self) -> tuple[int, ...]:
        """Physical offsets to build the message ids from: one per stored record."""
        return self.physical_offsets or (self.physical_offset,)


class ReadResult(msgspec.Struct, gc=False):
    """The result of a pull. `slices` are views of the log's maps; contiguous records share one slice.

    A slice stays valid, with its pages mapped, for as long as it is held, even after the store is closed or the file
    deleted. Hold it briefly.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: list[memoryview]
    message_count: int = 0
    bytes_total: int = 0
    suggest_slave: bool = False


class QueryResult(msgspec.Struct, gc=False):
    """Records found by key, in ascending log order, and how far the index reaches."""

    records: list[memoryview]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int


class Arrival(NamedTuple):
    """Messages became visible in a queue; `next_offset` is the queue's offset behind the last of them.

    `tags_code` is theirs; None where they have too many to be named.
    """

    topic: str
    queue_id: int
    next_offset: int
    tags_code: int | None
    store_timestamp: int


class TagMatcher(Protocol):
    """A pull's filter, called for each entry and then for its record (docs/protocol/store.md §16)."""

    def by_consume_queue(self, tags_code: int) -> bool:
        """Whether an entry with this (sign-extended) tags code may match."""
        ...

    def by_commitlog(self, record: memoryview) -> bool:
        """Whether the record itself matches; only called if `by_consume_queue` returned true."""
        ...
