"""Random damage to every kind of file of a store that is closed or was killed: it starts, and loses nothing sound.

What is served is compared with what was stored. Only records that were hit themselves may be missing, with those that
share a damaged stretch of the log; they are never served otherwise than as they were stored.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.record.check import LogRecord, read_record
from triomq_protocol.record.view import RecordView
from triomq_server.config import StoreConfig
from triomq_server.store import MessageStore, NewRecord, ReadStatus, StoreDamaged, open_store

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]
LOG_BYTES = 8192
FOREVER = 1 << 60
CASES = 25
"""Kept small; more were tried by hand."""


async def served(store: MessageStore) -> dict[tuple[str, int, int], bytes]:
    """Every record that pulls give, by topic, queue and number."""
    found = {}
    for topic, queue_id in store.queues():
        at, high = store.queue_bounds(topic, queue_id)
        for _ in range(1000):
            if at >= high:
                break
            result = store.read(topic, queue_id, at, 5, None)
            assert result is not None
            if result.status is ReadStatus.OFFSET_OVERFLOW_ONE:
                await wait_all_tasks_blocked()
                continue
            joined, position = b"".join(result.slices), 0
            while position < len(joined):
                # Not by `RecordView`: in old log files, damage is left to be found by the readers' checksums.
                size, number = (
                    int.from_bytes(joined[position + a : position + b], "big") for a, b in ((0, 4), (20, 28))
                )
                found[topic, queue_id, number] = joined[position : position + size]
                position += size
            assert result.next_offset > at
            at = result.next_offset
        else:
            pytest.fail("pulls never end")
    return found


async def fill(root: Path, make_config: MakeConfig, make_record: MakeRecord) -> dict[tuple[str, int, int], bytes]:
    async with open_store(make_config(root, mapped_file_size_commit_log=LOG_BYTES)) as store:
        for n in range(150):
            store.append(make_record(n, queue_id=n % 3, size=100 + n % 7 * 30))
            if n % 10 == 0:
                store.append(make_record(n, topic="rare"))
        return await served(store)


def harm(root: Path, chance: random.Random) -> tuple[Path, str]:
    """Damage one file: flip a bit, cut its end off, or fill a piece with zeros or noise."""
    kinds = sorted({path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()} - {"lock"})
    kind = chance.choice(kinds)
    file = chance.choice(sorted(path for path in (root / kind, *(root / kind).rglob("*")) if path.is_file()))
    data = bytearray(file.read_bytes())
    how = chance.choice(("flip", "flip", "flip", "cut", "zeros", "noise"))
    if data:
        at = chance.randrange(len(data.rstrip(b"\0")) or 1)
        size = chance.randrange(1, 200)
        if how == "flip":
            data[at] ^= 1 << chance.randrange(8)
        elif how == "cut":
            del data[at:]
        else:
            piece = bytes(size) if how == "zeros" else chance.randbytes(size)
            data[at : at + size] = piece[: len(data) - at]
    file.write_bytes(data)
    return file.relative_to(root), f"{how} {file.relative_to(root)}"


def still_sound(root: Path, whole: dict[tuple[str, int, int], bytes]) -> set[tuple[str, int, int]]:
    """The records whose bytes in the log are as they were."""
    sound = set()
    for where, data in whole.items():
        offset = RecordView(data).physical_offset
        with (root / "commitlog" / f"{offset // LOG_BYTES * LOG_BYTES:020d}").open("rb") as file:
            file.seek(offset % LOG_BYTES)
            there = file.read(len(data))
        if there == data and isinstance(read_record(there, 0, len(there), offset, check_crc=True), LogRecord):
            sound.add(where)
    return sound


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
async def test_no_sound_record_is_lost(
    killed: bool, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    whole = await fill(tmp_path / "whole", make_config, make_record)
    assert len(whole) == 165
    for seed in range(CASES):
        chance = random.Random(seed)
        root = tmp_path / "harmed"
        shutil.copytree(tmp_path / "whole", root)
        # Without it the start takes a kill for a power failure, and cuts what may not have been flushed.
        boot_id = root / "triomq" / "boot_id"
        known = boot_id.read_bytes()
        if killed:
            (root / "abort").touch()
        harmed = [harm(root, chance) for _ in range(chance.choice((1, 1, 2)))]
        case = f"case {seed}: {', '.join(text for _, text in harmed)}"
        if killed:
            boot_id.write_bytes(known)
        sound = still_sound(root, whole)
        config = make_config(root, mapped_file_size_commit_log=LOG_BYTES)
        try:
            async with open_store(config) as store:
                found = await served(store)
                more = [store.append(make_record(n, queue_id=0)) for n in range(1000, 1005)]
                store.notify_arrivals()
        except StoreDamaged as error:
            assert any(path.parts[0] == "commitlog" and text.startswith("cut") for path, text in harmed), case
            refused = str(error)
            assert "move it away" in refused
            shutil.rmtree(root)
            continue
        for where in sound:
            assert found.get(where) == whole[where], f"{case}: {where} is lost"
        flipped = {where for where, data in found.items() if whole.get(where) != data}
        assert flipped <= set(whole) - sound, f"{case}: {flipped} was never stored"
        async with open_store(config) as store:
            again = await served(store)
        for where in sound:
            assert again.get(where) == whole[where], f"{case}: {where} is lost at the next start"
        for n, result in enumerate(more):
            record = again.get(("T", 0, result.queue_offset))
            assert record is not None, f"{case}: a new message is lost"
            assert record_number(memoryview(record)) == 1000 + n, case
        shutil.rmtree(root)
