"""Records of the log and entries of queues passed over many at once: the same end as one by one in Python."""

from __future__ import annotations

import random
from typing import Any

import pytest
from stored_records import encode_record

from triomq_protocol.checksum import raw_crc32
from triomq_protocol.hosts import pack_host
from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_protocol.record.encode import write_blank
from triomq_protocol.record.layout import field_offset
from triomq_server.compiled import USED
from triomq_server.store.commitlog import enters_queue
from triomq_server.store.entry_layout import BLANK_SIZE, ENTRY, ENTRY_BYTES, pass_entries_one_by_one
from triomq_server.store.recovery.log_check import looks_torn

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")

BASE = 1 << 33
HOSTS = (pack_host("127.0.0.1", 40_000), pack_host("::1", 40_000))
FLAGS = (0, 0, 0, 0x4, 0x8, 0xC, 0x1, 0x700)


def random_log(chance: random.Random, size: int) -> bytes:
    """Records, mostly of few queues, then a mark or nothing; often something in it is damaged."""
    log = bytearray(size)
    at = number = 0
    while True:
        queue_id = chance.choice((0, 0, 1, 64, 65, (1 << 31) - 1))
        body = chance.randbytes(chance.choice((0, 1, 30, 200, 2000)))
        properties = chance.choice((b"", b"TAGS\x01a", b"KEYS\x01k\x02", b"x\0\0\0\0"))
        born_host, store_host = (chance.choice((HOSTS[0], HOSTS[0], HOSTS[1])) for _ in range(2))
        record = encode_record(
            chance.choice(("t", "T", "topic", "topic-2", "größer", "x" * 127)).encode(),
            queue_id,
            body,
            properties,
            flag=7,
            sys_flag=chance.choice(FLAGS),
            born_timestamp=1_700_000_000_000,
            born_host=born_host,
            store_host=store_host,
            queue_offset=number,
            physical_offset=BASE + at,
            store_timestamp=1_700_000_000_000 + number,
        )
        if at + len(record) + 8 > size:
            break
        log[at : at + len(record)] = record
        at, number = at + len(record), number + 1
    if chance.random() < 0.5:
        write_blank(log, at, size - at)
    for _ in range(chance.choice((0, 0, 1, 1, 3))):
        log[chance.randrange(size)] = chance.choice((0, 0xFF, chance.randrange(256)))
    return bytes(log)


def one_by_one(log: bytes, *, crc: bool, torn: bool) -> tuple[Any, ...]:
    """As `Recovery` does without the compiled module."""
    at = count = time = 0
    records: dict[tuple[str, int], tuple[int, int, int]] = {}
    while isinstance(found := read_record(log, at, len(log), BASE + at, check_crc=crc), LogRecord):
        if torn and looks_torn(log, at + found.size, len(log), found.properties):
            return at, Finding.TORN, count, time, records
        at, count, time = at + found.size, count + 1, found.store_timestamp
        if enters_queue(found.sys_flag):
            records[found.topic, found.queue_id] = found.queue_offset, found.offset, found.size
    return at, found, count, time, records


def many_at_once(log: bytes, bytes_most: int, *, crc: bool, torn: bool) -> tuple[tuple[Any, ...], int]:
    """As `Recovery` does with it; and how many records were left to Python, but the last."""
    from triomq_server.compiled.recovery import pass_records

    at = count = time = left = 0
    records: dict[tuple[str, int], tuple[int, int, int]] = {}
    while True:
        at, passed, last_time = pass_records(
            log,  # type: ignore[arg-type]
            at, len(log), BASE, bytes_most, raw_crc32 if crc else None, torn, records,
        )  # fmt: skip
        if passed:
            count, time = count + passed, last_time
            continue
        found = read_record(log, at, len(log), BASE + at, check_crc=crc)
        if not isinstance(found, LogRecord):
            return (at, found, count, time, records), left
        if torn and looks_torn(log, at + found.size, len(log), found.properties):
            return (at, Finding.TORN, count, time, records), left
        at, count, time, left = at + found.size, count + 1, found.store_timestamp, left + 1
        if enters_queue(found.sys_flag):
            records[found.topic, found.queue_id] = found.queue_offset, found.offset, found.size


def dispatched_one_by_one(log: bytes, indexed_until: int, known: dict[tuple[str, int], int]) -> tuple[int, int, int]:
    """The records to which `Dispatcher.dispatch` adds nothing, from the first on."""
    at = count = time = 0
    while isinstance(record := read_record(log, at, len(log), BASE + at, check_crc=False), LogRecord):
        if record.offset >= indexed_until and b"KEY" in record.properties:
            break
        if enters_queue(record.sys_flag) and record.offset + record.size > known.get(
            (record.topic, record.queue_id), -1
        ):
            break
        at, count, time = at + record.size, count + 1, record.store_timestamp
    return at, count, time


def test_the_layout_is_that_of_the_protocol() -> None:
    from triomq_server.compiled.recovery import LAYOUT

    assert {name: field_offset(name) for name in LAYOUT} == LAYOUT


@pytest.mark.parametrize("seed", range(200))
def test_the_same_records_are_sound(seed: int) -> None:
    chance = random.Random(seed)
    log = random_log(chance, chance.choice((200, 5_000, 40_000)))
    crc, torn = chance.random() < 0.7, chance.random() < 0.5
    found, left = many_at_once(log, chance.choice((1, 500, 1 << 30)), crc=crc, torn=torn)
    assert found == one_by_one(log, crc=crc, torn=torn)
    if not torn:
        assert left == 0


def test_what_lies_outside_is_refused() -> None:
    from triomq_server.compiled.recovery import pass_records

    for start, end in ((-1, 10), (0, 101)):
        with pytest.raises(ValueError, match="not in the file"):
            pass_records(bytes(100), start, end, 0, 1, None, False, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(200))
def test_the_same_entries_are_valid(seed: int) -> None:
    from triomq_server.compiled.recovery import pass_entries

    chance = random.Random(seed)
    data, offset = b"", 0
    for _ in range(chance.choice((0, 1, 50))):
        size = chance.choice((1, 91, 1000, BLANK_SIZE, (1 << 31) - 2))
        data += ENTRY.pack(0 if size == BLANK_SIZE else offset, size, chance.randrange(1 << 40))
        offset += 0 if size == BLANK_SIZE else size
    data += chance.choice((b"", bytes(20), ENTRY.pack(-1, 5, 0), ENTRY.pack(5, -1, 0), ENTRY.pack(3, 7, 0)))
    data += chance.choice((b"", ENTRY.pack((1 << 63) - 1, (1 << 31) - 2, 0), ENTRY.pack(1 << 62, 9, 0)))
    limit = chance.choice((-1, -1, 0, offset // 2, offset, 1 << 62))
    wanted = pass_entries_one_by_one(data, 0, len(data) + 100, limit, 0, 0)
    assert pass_entries(data, 0, len(data) + 100, limit, 0, 0) == wanted

    at = before = last = why = 0
    while not why and at + ENTRY_BYTES <= len(data):
        at, before, last, why = pass_entries(data, at, at + chance.choice((20, 100)), limit, before, last)
    assert (at, before, last, why) == wanted


@pytest.mark.parametrize("seed", range(200))
def test_the_same_records_have_been_dispatched(seed: int) -> None:
    from triomq_server.compiled.recovery import pass_dispatched

    chance = random.Random(seed)
    log = random_log(chance, chance.choice((200, 5_000, 40_000)))
    numbers = one_by_one(log, crc=False, torn=False)[4]
    known = {
        where: BASE + chance.choice((len(log), len(log), chance.randrange(len(log))))
        for where in numbers
        if chance.random() < 0.95
    }
    indexed_until = BASE + chance.choice((0, len(log), len(log), chance.randrange(len(log))))
    expected = dispatched_one_by_one(log, indexed_until, known)
    at = count = time = 0
    while True:
        at, passed, last_time = pass_dispatched(
            log,  # type: ignore[arg-type]
            at, len(log), BASE, chance.choice((1, 500, 1 << 30)), indexed_until, known,
        )  # fmt: skip
        if not passed:
            break
        count, time = count + passed, last_time
    assert (at, count, time) == expected
