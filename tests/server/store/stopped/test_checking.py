"""The check of a whole store: it names damage, changes nothing, and finds nothing in a sound store."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click import Command
from click.testing import CliRunner

from triomq_server.commands.store_check import check_store as check_store_command
from triomq_server.commands.store_repair import repair_store
from triomq_server.config import StoreConfig
from triomq_server.store import NewRecord, StoreDamaged, open_store
from triomq_server.store.stopped import checking
from triomq_server.store.stopped.checking import check_store

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


@pytest.fixture
async def root(tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord) -> Path:
    """A store of several log files, with a topic that was deleted and created again."""
    async with open_store(make_config(tmp_path / "store", mapped_file_size_commit_log=8192)) as store:
        for n in range(10):
            store.append(make_record(n, topic="again"))
        await store.queue_removal.remove_topic("again")
        for n in range(80):
            store.append(make_record(n, queue_id=n % 2))
        store.append(make_record(11, topic="again"))
        store.append(make_record(12, topic="gone"))
        await store.queue_removal.remove_topic("gone")
    return tmp_path / "store"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


async def check_in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = partial(
        subprocess.run, [sys.executable, "-m", "triomq_server", "admin", "check-store", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return await trio.to_thread.run_sync(run)


async def test_the_entries_of_a_queue_without_directory_are_missing(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/T/0")
    report = check_store(root)
    assert report.count == 40
    assert report.damage[0].what == "entry 0 of queue T-0 is missing or points elsewhere"


@pytest.mark.parametrize("command", [check_store_command, repair_store])
@pytest.mark.parametrize(
    ("path", "directory", "text"),
    [
        ("config/topics.json", True, "a directory stands where a file should be; move it away"),
        (f"commitlog/{0:020d}", True, "it is a directory, not a file; move it away"),
        ("config", False, "a file stands where a directory should be; move it away"),
    ],
)
async def test_what_stands_in_a_files_place_is_an_error_with_its_cure(
    command: Command, path: str, directory: bool, text: str, root: Path
) -> None:
    shutil.rmtree(root / "index")  # its size is not the default's
    if path == "config":
        (root / path).write_bytes(b"")
    else:
        (root / path).unlink(missing_ok=True)
        (root / path).mkdir(parents=True)
    result = CliRunner().invoke(command, [str(root)])
    assert (result.exit_code, text in result.output) == (2, True), result.output


async def test_a_sound_store_is_sound(root: Path, golden: Any, tmp_path: Path) -> None:
    report = check_store(root)
    assert (report.records, report.count) == (92, 0)
    for name in ("store-small", "store-crashed"):
        report = check_store(golden.unpack(name, tmp_path))
        assert report.records > 100
        assert report.damage == []


async def test_a_store_in_use_is_sound(root: Path, make_config: MakeConfig, make_record: MakeRecord) -> None:
    async with open_store(make_config(root, mapped_file_size_commit_log=8192)) as store:
        store.append(make_record(80))
        assert (check_store(root).records, check_store(root).count) == (93, 0)


async def test_flipped_bits_of_bodies_are_found(root: Path) -> None:
    chance = random.Random(1)
    clean = check_store(root)
    for _ in range(20):
        number = chance.randrange(2, 20)
        file = root / "commitlog" / f"{0:020d}"
        at = number * 335 + 120 + chance.randrange(100)
        flip(file, at)
        report = check_store(root)
        assert report.count == 1
        assert report.damage[0].kind == "record"
        assert report.damage[0].offset <= at < report.damage[0].offset + report.damage[0].size_bytes
        assert "does not match its checksum" in report.damage[0].what
        assert report.records == clean.records - 1
        assert report.log_end == clean.log_end
        flip(file, at)


async def test_damaged_and_missing_entries_are_found(root: Path) -> None:
    flip(root / "consumequeue/T/0" / f"{200:020d}", 6)
    (root / "consumequeue/T/1" / f"{0:020d}").unlink()
    report = check_store(root)
    assert {damage.kind for damage in report.damage} == {"entry"}
    assert [damage.what.split(" is")[0] for damage in report.damage if "T-0" in damage.what] == [
        "entry 10 of queue T-0"
    ]
    assert sum("T-1" in damage.what for damage in report.damage) == report.count - 1 == 10


async def test_a_log_that_has_lost_its_end_is_found(root: Path) -> None:
    *_, last = sorted((root / "commitlog").iterdir())
    last_message_bytes = 336
    end = check_store(root).log_end - last_message_bytes  # it is of a topic that is gone
    last.unlink()
    report = check_store(root)
    (damage,) = report.damage
    assert (damage.kind, damage.offset, damage.size_bytes) == ("missing", report.log_end, end - report.log_end)
    assert damage.what == f"the log ends here, but its queues know of messages up to log offset {end}"


async def test_a_damaged_end_is_not_reported_as_a_lost_end_too(root: Path) -> None:
    last_message_bytes = 336
    end = check_store(root).log_end - last_message_bytes  # it is of a topic that is gone
    for at in (end - 50, end + last_message_bytes - 50):
        flip(root / "commitlog" / f"{at - at % 8192:020d}", at % 8192)
    report = check_store(root)
    assert [damage.kind for damage in report.damage] == ["record"]
    assert report.log_end < end


async def test_the_command(root: Path, tmp_path: Path) -> None:
    sound = await check_in_process(str(root))
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "92 sound records" in sound.stdout
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}  # noqa: ASYNC240
    flip(root / "commitlog" / f"{0:020d}", 5 * 335 + 150)
    damaged = await check_in_process(str(root), "--json")
    assert damaged.returncode == 1
    assert [d["kind"] for d in json.loads(damaged.stdout)["damage"]] == ["record"]
    flip(root / "commitlog" / f"{0:020d}", 5 * 335 + 150)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before  # noqa: ASYNC240
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"x":5}}')
    refused = await check_in_process(str(root))
    assert refused.returncode == 1
    assert "a start would refuse config/topics.json" in refused.stdout
    listed = json.loads((await check_in_process(str(root), "--json")).stdout)
    assert [one["file"] for one in listed["refusedFiles"]] == ["config/topics.json"]
    none = await check_in_process(str(tmp_path))
    assert none.returncode == 2
    assert "has no log files: give the store's directory" in none.stderr


async def test_a_log_file_with_a_wrong_name_is_named(root: Path) -> None:
    (root / "commitlog" / f"{4096:020d}").write_bytes(bytes(8192))
    with pytest.raises(StoreDamaged, match="4096: a log file of 8192 bytes cannot have this name"):
        check_store(root)


async def test_what_expires_during_a_check_is_no_damage(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of deleted files are still read, through their maps, but their entries are gone."""
    monkeypatch.setattr(checking, "_RECORDS_PER_REPORT", 5)
    monkeypatch.setattr(checking, "DAMAGE_LISTED", 10)
    async with open_store(make_config(tmp_path, mapped_file_size_commit_log=8192)) as store:
        for n in range(200):
            store.append(make_record(n, queue_id=n % 2))

        def expire(*_: int) -> None:
            if store.log_min_offset:
                return
            for _ in range(4):
                store.commitlog.delete_first()
            assert [queue.delete_expired(store.log_min_offset) for queue in store.consume_queues] == [4, 4]

        report = check_store(tmp_path, progress=expire)
    assert store.log_min_offset
    assert (report.count, report.records) == (0, 200)


async def test_log_files_of_different_lengths_are_named(root: Path) -> None:
    with (root / "commitlog" / f"{8192:020d}").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(StoreDamaged, match="different lengths"):
        check_store(root)
