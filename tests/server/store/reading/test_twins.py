"""Plain pulls by compiled code: the same records as Python finds, and None for the same entries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from memory_disk import MemoryDisk

from triomq_server.compiled import USED
from triomq_server.config import StoreConfig
from triomq_server.store import NewRecord, ReadResult, open_store
from triomq_server.store.entry_layout import ENTRY, ENTRY_BYTES
from triomq_server.store.reading import queue_reads

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]
HEAD_BYTES = 36


def content(result: ReadResult | None) -> Any:
    if result is None:
        return None
    return msgspec.structs.asdict(result) | {"slices": [bytes(view) for view in result.slices]}


@pytest.mark.parametrize("seed", range(40))
async def test_the_same_records_are_found(
    seed: int,
    memory_disk: MemoryDisk,
    make_config: MakeConfig,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where an entry or the head of a record is damaged, at the ends of files, and with small limits."""
    chance = random.Random(seed)
    config = make_config(
        "/store",
        mapped_file_size_commit_log=chance.choice((1 << 12, 1 << 16)),
        mapped_file_size_consume_queue=ENTRY_BYTES * 50,
        max_transfer_bytes_on_message_in_memory=chance.choice((500, 3000, 1 << 18)),
        max_transfer_count_on_message_in_memory=chance.choice((1, 8, 32)),
        max_transfer_bytes_on_message_in_disk=chance.choice((500, 1 << 16)),
        access_message_in_memory_max_ratio=chance.choice((0, 40)),
    )
    found = 0
    async with open_store(config, disk=memory_disk) as store:
        for n in range(130):
            store.append(make_record(n, queue_id=chance.choice((0, 0, 0, 1)), size=chance.choice((0, 1, 50, 300))))
        for _ in range(chance.choice((0, 0, 3))):
            queue = store.consume_queues.table["T", 0]
            number = chance.randrange(queue.max_offset)
            place = queue.locate(number)
            assert place is not None
            offset, size, code = ENTRY.unpack_from(place[0], place[1])
            if chance.random() < 0.5:
                wrong = chance.choice(
                    ((-1, size), (offset, 0), (offset, size + 1), (offset + 1, size), (1 << 62, size))
                )
                ENTRY.pack_into(place[0], place[1], *wrong, code)
            else:
                segment = store.commitlog.segments.find(offset)
                assert segment is not None
                segment.buffer[offset - segment.base + chance.randrange(HEAD_BYTES)] ^= 1
        for queue in store.consume_queues:
            for _ in range(150):
                at = chance.randrange(queue.max_offset)
                most = chance.choice((1, 2, 7, 32, 1000))
                place = queue.locate(at)
                assert place is not None
                results = []
                for used in (False, True):
                    monkeypatch.setattr(queue_reads, "COMPILED", used)
                    results.append(
                        content(queue_reads._read_run(config, store.commitlog, queue, place, at, most, (0, 0)))
                    )
                assert results[0] == results[1]
                found += results[0] is not None
    assert found > 20
