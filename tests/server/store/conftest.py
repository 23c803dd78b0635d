"""Small stores for the store's tests: golden archives, a memory disk, records with a body one can predict."""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from memory_disk import MemoryDisk

from triomq_server.config import StoreConfig
from triomq_server.store import NewRecord
from triomq_server.store.reading import queue_reads

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


@attrs.define
class Clock:
    """A wall clock that tests set."""

    now: int = 1_795_300_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture(autouse=True)
def patient_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep reads from ending early because this machine is slow, or a garbage collection runs."""
    monkeypatch.setattr(queue_reads, "FILTER_TURN_S", float("inf"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory_disk(clock: Clock) -> MemoryDisk:
    return MemoryDisk(now_ms=clock)


@attrs.frozen
class Golden:
    """A store recorded from RocketMQ 4.9.7, and its expected contents."""

    folder: Path
    config_values: dict[str, int]
    doc: dict[str, Any]

    def document(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.json").read_text())

    def unpack(self, name: str, target: Path) -> Path:
        with tarfile.open(self.folder / f"{name}.tar.gz") as archive:
            # By the attribute: Python learned the argument in 3.11.4, and Debian 12 has 3.11.2.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(target)
        return target / name


@pytest.fixture
def golden(vectors: Path) -> Golden:
    doc = json.loads((vectors / "store-small.json").read_text())
    return Golden(vectors, doc["config"], doc)


def small_config(root: Path | str, **values: Any) -> StoreConfig:
    """The geometry of the recorded stores, independent of how full this machine's disk is."""
    return StoreConfig(
        store_path_root_dir=str(root),
        **{
            "disk_max_used_space_ratio": 95,
            "disk_space_warning_level_ratio": 0.99,
            "disk_space_clean_forcibly_ratio": 0.98,
            "mapped_file_size_commit_log": 65536,
            "mapped_file_size_consume_queue": 200,
            "max_hash_slot_num": 20,
            "max_index_num": 60,
            **values,
        },
    )


@pytest.fixture
def make_config() -> Callable[..., StoreConfig]:
    return small_config


def plain_record(
    n: int, *, topic: str = "T", queue_id: int = 0, size: int = 200, keys: str | None = None, **more: Any
) -> NewRecord:
    """Record number n, with the number in its body."""
    body = struct.pack(">q", n) + bytes((n + j) % 251 for j in range(max(0, size - 8)))
    pairs = [("UNIQ_KEY", f"{n:032X}")]
    if keys:
        pairs.append(("KEYS", keys))
    if more.get("tags"):
        pairs.append(("TAGS", more["tags"]))
    properties = "\x02".join(f"{k}\x01{v}" for k, v in pairs).encode()
    return NewRecord(
        topic,
        queue_id,
        body,
        properties,
        keys=keys,
        uniq_key=f"{n:032X}",
        born_timestamp=1,
        born_host=HOST,
        store_host=HOST,
        **more,
    )


@pytest.fixture
def make_record() -> Callable[..., NewRecord]:
    return plain_record


def number_of(record: memoryview) -> int:
    """The number of a `plain_record`."""
    return struct.unpack_from(">q", record, 88)[0]


@pytest.fixture
def record_number() -> Callable[[memoryview], int]:
    return number_of


@pytest.fixture
def damage() -> Callable[[Path, list[dict[str, Any]]], None]:
    """Apply the damage operations of the golden recoveries to a store directory."""

    def apply(store: Path, operations: list[dict[str, Any]]) -> None:
        for o in operations:
            path = store / o["file"]
            if o["op"] == "rmtree":
                shutil.rmtree(path)
            elif o["op"] == "remove":
                path.unlink()
            else:
                data = bytearray(path.read_bytes())
                match o["op"]:
                    case "zero":
                        data[o["start"] : o["end"]] = bytes(o["end"] - o["start"])
                    case "fill":
                        data[o["start"] : o["end"]] = bytes([o["value"]]) * (o["end"] - o["start"])
                    case "xor":
                        data[o["start"]] ^= o["value"]
                    case "truncate":
                        del data[o["size"] :]
                path.write_bytes(data)

    return apply
