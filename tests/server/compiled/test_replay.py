"""A slave's dispatch of many records at once: the same entries, hashes and arrivals as by Python alone."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from stored_records import encode_record

from triomq_protocol.filters.tags import tags_code
from triomq_protocol.hosts import pack_host
from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.record.check import LogRecord, read_record
from triomq_protocol.record.layout import field_offset
from triomq_server.compiled import USED
from triomq_server.store.dispatch.dispatcher import property_of
from triomq_server.store.dispatch.key_hashes import index_hashes
from triomq_server.store.dispatch.replay import KEYS_MARK, TAGS_MARK, UNIQUE_KEY_MARK, Key, Replay
from triomq_server.store.entry_layout import ENTRY, ENTRY_BYTES
from triomq_server.store.values import Arrival

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")

BASE = 1 << 33
HOSTS = (pack_host("127.0.0.1", 40_000), pack_host("::1", 40_000))
TOPICS = ("t", "T", "topic", "topic-2", "größer", "x" * 127, SCHEDULE_TOPIC)
PLAIN = (
    "",
    "TAGS\x01a",
    "UNIQ_KEY\x01{}",
    "KEYS\x01k {}\x02TAGS\x01b",
    "UNIQ_KEY\x01{}\x02KEYS\x01a  b \x02x\x01y\x02",
)
ODD = (
    "TAGS\x01", "TAGS\x01\x02KEYS\x01k", "TAGS\x01a\x02TAGS\x01b", "TAGS\x01ä", "KEYS\x01ключ {}", "MYTAGS\x01a", "TAGS",
    "MYTAGS\x01a\x02TAGS\x01b", "x\x01TAGS\x01a\x02\x02", "UNIQ_KEY\x01\x02UNIQ_KEY\x01{}", "KEYS\x01a\x01b", "\x02\x02",
)  # fmt: skip


@attrs.define
class Queue:
    """What dispatch uses of a queue."""

    buffer: bytearray
    limit: int
    max_offset: int
    max_physical_offset: int = -1
    position: int = 0


def random_log(chance: random.Random, oddities: float) -> tuple[bytes, dict[tuple[str, int], Queue]]:
    """Records, and the queues they belong to; so many of them have something odd."""
    log = bytearray(chance.choice((300, 6000, 30_000)))
    table: dict[tuple[str, int], Queue] = {}
    numbers: dict[tuple[str, int], int] = {}
    at = number = 0
    while True:

        def odd() -> bool:
            return chance.random() < oddities

        topic = chance.choice(TOPICS[4:] if odd() else TOPICS[:4])
        queue_id = chance.choice((0, 1, 64, 65))
        where = topic, queue_id
        if where not in numbers:
            numbers[where] = start = chance.choice((0, 0, 1 << 40))
            if not odd():
                limit = ENTRY_BYTES * chance.choice((2, 1000) if odd() else (1000,))
                table[where] = Queue(bytearray(ENTRY_BYTES * 1000), limit, start)
        text = chance.choice(ODD if odd() else PLAIN).format(f"{number:032X}")
        record = encode_record(
            topic.encode(),
            queue_id,
            chance.randbytes(chance.choice((0, 1, 30, 200, 2000))),
            text.encode(),
            flag=7,
            sys_flag=chance.choice((4, 8, 12)) if odd() else 0,
            born_timestamp=1_700_000_000_000,
            born_host=HOSTS[odd()],
            store_host=HOSTS[odd()],
            queue_offset=numbers[where] + (chance.choice((-1, 1)) if odd() else 0),
            physical_offset=BASE + at,
            store_timestamp=1_700_000_000_000 + number,
        )
        if at + len(record) > len(log):
            break
        log[at : at + len(record)] = record
        numbers[where] += 1
        at, number = at + len(record), number + 1
    if chance.random() < oddities:
        log[chance.randrange(len(log))] ^= 1 << chance.randrange(8)
    return bytes(log), table


def replayed(
    log: bytes,
    table: dict[tuple[str, int], Queue],
    watched: set[tuple[str, int]] | None,
    chance: random.Random,
    *,
    compiled: bool,
) -> tuple[tuple[Any, ...], int]:
    """What is dispatched, and how many bytes Python did."""
    from triomq_server.compiled import replay

    python = Replay(table, frozenset({SCHEDULE_TOPIC}), index=True)  # type: ignore[arg-type]
    keys: list[Key] = []
    hashes = bytearray()
    arrivals: list[Arrival] = []
    at = by_python = 0
    last_time = 0
    while True:
        until = at + chance.choice((1, 500, 1 << 30))
        behind = at
        if compiled:
            behind, time = replay.run(
                log,  # type: ignore[arg-type]
                BASE, at, len(log), until, table, SCHEDULE_TOPIC, hashes, arrivals, watched, Arrival,
            )  # fmt: skip
        if behind == at:
            behind, time = python.run(log, BASE, at, len(log), keys, arrivals, watched, until)  # type: ignore[arg-type]
            hashes += index_hashes(keys)
            keys.clear()
            by_python += behind - at
        if behind == at:
            record = read_record(log, at, len(log), BASE + at, check_crc=False)
            if not isinstance(record, LogRecord) or not dispatched(record, table, watched, hashes, arrivals):
                return (at, last_time, table, hashes, arrivals), by_python
            behind, time = at + record.size, record.store_timestamp
            by_python += record.size
        at, last_time = behind, time


def dispatched(
    record: LogRecord,
    table: dict[tuple[str, int], Queue],
    watched: set[tuple[str, int]] | None,
    hashes: bytearray,
    arrivals: list[Arrival],
) -> bool:
    """As `Dispatcher.dispatch` does with one record that has nothing special but its properties; false for any other."""
    queue, text = table.get((record.topic, record.queue_id)), str(record.properties, "utf-8", "replace")
    if (
        queue is None
        or record.topic == SCHEDULE_TOPIC
        or record.sys_flag
        or record.queue_offset != queue.max_offset
        or queue.position >= queue.limit
    ):
        return False
    code = tags_code(property_of(text, TAGS_MARK))
    ENTRY.pack_into(queue.buffer, queue.position, record.offset, record.size, code)
    queue.position += ENTRY_BYTES
    queue.max_offset += 1
    queue.max_physical_offset = record.offset + record.size
    found = [property_of(text, UNIQUE_KEY_MARK) or "", *(property_of(text, KEYS_MARK) or "").split(" ")]
    hashes += index_hashes([(record.topic, key, record.offset, record.store_timestamp) for key in found if key])
    if watched is None or (record.topic, record.queue_id) in watched:
        arrivals.append(Arrival(record.topic, record.queue_id, queue.max_offset, code, record.store_timestamp))
    return True


def test_the_layout_is_that_of_the_protocol() -> None:
    from triomq_server.compiled.replay import LAYOUT

    assert {name: field_offset(name) for name in LAYOUT} == LAYOUT


@pytest.mark.parametrize("seed", range(300))
def test_the_same_is_dispatched(seed: int) -> None:
    made: list[tuple[Any, ...]] = []
    for compiled in (False, True):
        chance = random.Random(seed)
        oddities = chance.choice((0.0, 0.01, 0.1))
        log, table = random_log(chance, oddities)
        watched = chance.choice((None, {("t", 0), ("topic", 64)}, set()))
        found, by_python = replayed(log, table, watched, chance, compiled=compiled)
        made.append(found)
        if compiled and not oddities:
            assert by_python == 0
    assert made[1] == made[0]
    assert made[0][0] > 0 or len(log) == 300 or oddities


def test_without_index_or_arrivals() -> None:
    from triomq_server.compiled import replay

    log, table = random_log(random.Random(4), 0.0)
    behind, _ = replay.run(log, BASE, 0, len(log), len(log), table, SCHEDULE_TOPIC, None, None, None, Arrival)  # type: ignore[arg-type]
    assert behind > 0
    assert sum(queue.position for queue in table.values()) >= ENTRY_BYTES
