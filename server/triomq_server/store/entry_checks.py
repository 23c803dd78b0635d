"""Checks that consume queue entries point to their records, before a pull serves a slice of the log.

A damaged entry may look valid. The head of its record identifies the record: size, queue, queue offset and log offset.
RocketMQ may have given a record additional entries in other queues, mostly light ones; the record's properties then list
these queues and the offsets in them.
"""

from __future__ import annotations

import mmap
import struct
from itertools import repeat

from triomq_protocol.java_text import natural_number
from triomq_protocol.names import LMQ_PREFIX
from triomq_protocol.properties import get_property
from triomq_protocol.record.check import LogRecord, read_record
from triomq_protocol.record.layout import ENTRY_CHECKED, MESSAGE_MAGIC
from triomq_server.store.commitlog import CommitLog
from triomq_server.store.consume_queue import ConsumeQueue

MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_NUMBERS = "INNER_MULTI_QUEUE_OFFSET"
"""The properties that name the further queues of a record, and its numbers there, separated by commas."""

MULTI_MARK = MULTI_DISPATCH.encode()
_HEAD_BYTES = ENTRY_CHECKED.size
_unpack = ENTRY_CHECKED.unpack_from


def entries_fit(
    buffer: mmap.mmap, base: int, queue: ConsumeQueue, number: int, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> bool:
    """Whether entries `number` and following of a queue point to their records in one file of the log.

    Args:
        buffer: the file.
        base: log offset of its first byte.
        queue: whose entries they are.
        number: the first one's number.
        offsets: where in the log they point.
        sizes: the sizes they give.
    """
    places = [offset - base for offset in offsets] if base else offsets
    try:
        found = list(map(_unpack, repeat(buffer), places))
    except struct.error:
        return False
    numbers = range(number, number + len(sizes))
    return found == list(zip(sizes, repeat(MESSAGE_MAGIC), repeat(queue.queue_id), numbers, offsets))


def run_fits(
    buffer: mmap.mmap, base: int, queue: ConsumeQueue, number: int, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> bool:
    """The same for entries whose records are contiguous; then the first and the last one decide.

    If they are right, the bytes between them are right too. Takes as long for one entry as for many.
    """
    queue_id = queue.queue_id
    first = offsets[0]
    try:
        if _unpack(buffer, first - base) != (sizes[0], MESSAGE_MAGIC, queue_id, number, first):
            return False
        last = offsets[-1]
        return last == first or _unpack(buffer, last - base) == (
            sizes[-1], MESSAGE_MAGIC, queue_id, number + len(sizes) - 1, last,
        )  # fmt: skip
    except struct.error:
        return False


def entry_fits(log: CommitLog, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
    """Whether one entry points to its record."""
    if size < _HEAD_BYTES:
        return False
    record = log.select(offset, size)
    if record is None:
        return False
    own_size, magic, queue_id, own_number, own_offset = _unpack(record)
    if (own_size, magic, own_offset) != (size, MESSAGE_MAGIC, offset):
        return False
    if not queue.numbered or (queue_id, own_number) == (queue.queue_id, number):
        return True
    found = read_record(bytes(record), 0, size, offset, check_crc=False)
    return isinstance(found, LogRecord) and further_number(found, queue) == number


def number_in(record: LogRecord, queue: ConsumeQueue) -> int | None:
    """The number that a record has in a queue, its own or a further one; None: it does not belong there."""
    if (record.topic, record.queue_id) == (queue.topic, queue.queue_id):
        return record.queue_offset
    return further_number(record, queue)


def further_number(record: LogRecord, queue: ConsumeQueue) -> int | None:
    """The number that a record's properties give it in a queue that is not its own; None: they do not name it.

    A further queue has the record's queue id, a light queue has 0.
    """
    if MULTI_MARK not in record.properties:
        return None
    text = str(record.properties, "utf-8", "replace")
    topics = (get_property(text, MULTI_DISPATCH) or "").split(",")
    numbers = (get_property(text, MULTI_NUMBERS) or "").split(",")
    is_its_id = queue.queue_id == record.queue_id or (not queue.queue_id and queue.topic.startswith(LMQ_PREFIX))
    if len(topics) != len(numbers) or queue.topic not in topics or not is_its_id:
        return None
    number = numbers[topics.index(queue.topic)]
    return natural_number(number, 64)
