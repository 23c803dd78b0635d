"""Repair of a stopped broker's store from its own log: each kind of damage, planted, found, moved aside and
repaired."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from triomq_server.commands.store_repair import repair_store
from triomq_server.config import StoreConfig
from triomq_server.disk import RealDisk
from triomq_server.store import MessageStore, NewRecord, open_store
from triomq_server.store.stopped.whole_repair import look
from triomq_server.wire import to_the_end

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]

MESSAGES = 120
FILE_BYTES = 16384
RECORD_BYTES = 344
FOREVER = 1 << 62
SETTINGS = "mappedFileSizeConsumeQueue=200\nmaxHashSlotNum=20\nmaxIndexNum=60\n"


@pytest.fixture
async def root(tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord) -> Path:
    """A store with several files of everything, and tables."""
    (tmp_path / "broker.conf").write_text(SETTINGS)
    async with open_store(make_config(tmp_path / "store", mapped_file_size_commit_log=FILE_BYTES)) as store:
        for n in range(MESSAGES):
            store.append(make_record(n, queue_id=n % 2, keys=f"k{n}", tags="ab"[n % 2]))
            store.notify_arrivals()
    config = tmp_path / "store" / "config"
    config.mkdir()
    for name in ("topics.json", "topics.json.bak"):
        (config / name).write_text('{"topicConfigTable":{"T":{"topicName":"T"}},"dataVersion":{"counter":1}}')
    return tmp_path / "store"


def run(root: Path, *options: str) -> Result:
    return CliRunner().invoke(repair_store, [str(root), "-c", str(root.parent / "broker.conf"), *options])


async def run_in_thread(root: Path, *options: str) -> Result:
    return await trio.to_thread.run_sync(lambda: run(root, *options))


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*")) if path.is_file() and path.name != "lock"
    }  # fmt: skip


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def flip(path: Path, at: int, size: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + size] = random.Random(1).randbytes(size) if size > 1 else bytes([data[at] ^ 255])
    path.write_bytes(data)


def remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def replace(file: Path) -> None:
    file.unlink()
    file.mkdir()


QUEUE = "consumequeue/T/1"
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an entry's log offset": ("queue", lambda root: flip(root / QUEUE / f"{400:020d}", 45)),
    "an entry's size": ("queue", lambda root: flip(root / QUEUE / f"{400:020d}", 50)),
    "an entry's tags code": ("queue", lambda root: flip(root / QUEUE / f"{400:020d}", 59)),
    "a queue file's zeros": ("queue", lambda root: (root / QUEUE / f"{0:020d}").write_bytes(bytes(200))),
    "a torn queue file": ("queue", lambda root: os.truncate(root / QUEUE / f"{400:020d}", 70)),
    "the first queue file": ("queue", lambda root: (root / QUEUE / f"{0:020d}").unlink()),
    "a queue file in the middle": ("queue", lambda root: (root / QUEUE / f"{600:020d}").unlink()),
    "a directory as the first queue file": ("queue", lambda root: replace(root / QUEUE / f"{0:020d}")),
    "a directory as a queue file": ("queue", lambda root: replace(root / QUEUE / f"{400:020d}")),
    "the last queue file": ("queue", lambda root: newest(root / QUEUE).unlink()),
    "a queue": ("queue", lambda root: remove(root / QUEUE)),
    "an index header": ("index", lambda root: flip(min((root / "index").iterdir()), 36)),
    "an index slot": ("index", lambda root: flip(min((root / "index").iterdir()), 47)),
    "an index entry": ("index", lambda root: flip(min((root / "index").iterdir()), 40 + 80 + 20 * 9 + 2)),
    "a torn index file": ("index", lambda root: os.truncate(newest(root / "index"), 100)),
    "the first index file": ("index", lambda root: min((root / "index").iterdir()).unlink()),
    "the last index file": ("index", lambda root: newest(root / "index").unlink()),
    "the index": ("index", lambda root: remove(root / "index")),
    "the checkpoint": ("checkpoint", lambda root: (root / "checkpoint").unlink()),
    "a torn checkpoint": ("checkpoint", lambda root: os.truncate(root / "checkpoint", 9)),
}


async def check_all(root: Path, config: StoreConfig, record_number: Any, *, missing: int = 0) -> None:
    """Every message can be read and found, in a start that has nothing to repair."""
    async with open_store(config) as store:
        assert store.recovery_report is not None
        assert store.recovery_report.clean
        await check_store_again(store, record_number, missing)


async def check_store_again(store: MessageStore, record_number: Any, missing: int) -> None:
    found = []
    for queue_id in range(2):
        at, end = store.queue_bounds("T", queue_id)
        assert (at, end) == (0, MESSAGES // 2)
        while at < end:
            result = store.read("T", queue_id, at, 1, None)
            assert result is not None
            found += [record_number(one) for one in result.slices]
            at = result.next_offset
    assert len(found) == MESSAGES - missing
    for number in found[:: len(found) // 20]:
        assert len(to_the_end(store.query("T", f"k{number}", 9, 0, FOREVER)).records) == 1


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        *((name, True) for name in DAMAGE),
        *((name, False) for name in ("an entry's size", "the last queue file", "the index", "the checkpoint")),
    ],
)
async def test_what_follows_from_the_log_is_built_again(
    name: str, clean: bool, root: Path, make_config: MakeConfig, record_number: Any
) -> None:
    kind, plant = DAMAGE[name]
    sound = files(root)
    plant(root)
    if not clean:
        (root / "abort").touch()
    damaged = files(root)
    found = await run_in_thread(root, "--json", "--dry-run")
    assert found.exit_code == 1, found.output
    assert {one["kind"] for one in json.loads(found.output)["problems"]} == {kind}
    assert files(root) == damaged
    done = await run_in_thread(root, "--json", "--yes")
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert result["repaired"]
    assert result["left"] == []
    aside = set(files(root / "triomq" / "damaged")) if (root / "triomq" / "damaged").exists() else set()
    changed = {path for path in damaged if path in sound and damaged[path] != sound[path]}
    assert {path for path in changed if f"repair-1/{path}" not in aside} == set()
    again = await run_in_thread(root, "--json", "--dry-run")
    assert (again.exit_code, json.loads(again.output)["problems"]) == (0, [])
    assert {path: data for path, data in files(root).items() if path.startswith(("consumequeue", "commitlog"))} == {
        path: data for path, data in sound.items() if path.startswith(("consumequeue", "commitlog"))
    }
    await check_all(root, make_config(root, mapped_file_size_commit_log=FILE_BYTES), record_number)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_damaged_records_are_skipped(
    clean: bool, root: Path, make_config: MakeConfig, record_number: Any
) -> None:
    """In the oldest file, which no start checks; later records stay."""
    flip(root / "commitlog" / f"{0:020d}", 5 * RECORD_BYTES + 150)
    if not clean:
        (root / "abort").touch()
        (root / "triomq" / "boot_id").write_text("the machine has been started again")
    done = await run_in_thread(root, "--json", "--yes")
    assert done.exit_code == 1, done.output
    assert [one["kind"] for one in json.loads(done.output)["left"]] == ["lost"]
    assert list((root / "triomq" / "damaged").glob("0*"))
    await check_all(root, make_config(root, mapped_file_size_commit_log=FILE_BYTES), record_number, missing=1)
    told = await run_in_thread(root, "--dry-run")
    assert "--from HOST:PORT" in told.output


async def test_a_damaged_end_is_copied_and_cut_off(root: Path, make_config: MakeConfig) -> None:
    log = max(file for file in (root / "commitlog").iterdir() if any(file.read_bytes()))
    end = len(log.read_bytes().rstrip(b"\0"))
    flip(log, end - 200, 300)
    done = await run_in_thread(root, "--json", "--yes")
    assert done.exit_code == 0, done.output
    (kept,) = (root / "triomq" / "damaged" / "repair-1" / "commitlog").iterdir()
    assert int(log.name) < int(kept.name) < int(log.name) + end
    assert len(kept.read_bytes()) > 190
    async with open_store(make_config(root, mapped_file_size_commit_log=FILE_BYTES)) as store:
        assert store.log_max_offset == int(kept.name)
        assert sum(store.queue_bounds("T", n)[1] for n in range(2)) == MESSAGES - 1


@pytest.mark.parametrize(
    ("damage", "what"),
    [("both", "moved aside; the next start"), ("main", "its backup can"), ("no main", "it is missing")],
)
async def test_tables(damage: str, what: str, root: Path) -> None:
    main, backup = root / "config" / "topics.json", root / "config" / "topics.json.bak"
    sound = backup.read_bytes()
    main.write_bytes(b"{")
    if damage == "both":
        backup.write_bytes(b"[")
    if damage == "no main":
        main.unlink()
    done = await run_in_thread(root, "--yes")
    assert done.exit_code == 0, done.output
    found = json.loads((await run_in_thread(root, "--json")).output)
    assert found["problems"] == []
    aside = root / "triomq" / "damaged" / "repair-1" / "config"
    if damage == "both":
        assert (main.exists(), backup.exists()) == (False, False)
        assert ((aside / main.name).read_bytes(), (aside / backup.name).read_bytes()) == (b"{", b"[")
    else:
        assert main.read_bytes() == sound
        assert not aside.exists() or (aside / main.name).read_bytes() == b"{"


async def test_queues_of_deleted_topics_are_not_built_again(
    root: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Also those that RocketMQ has deleted, which keeps no list of them; their offsets continue."""
    remove(root / "consumequeue/T/0")
    remove(root / "consumequeue/T/1")
    (root / "consumequeue/T").rmdir()
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text('{"topicConfigTable":{},"dataVersion":{"counter":1}}')
    (root / "checkpoint").unlink()
    assert (await run_in_thread(root, "--yes")).exit_code == 0
    async with open_store(make_config(root, mapped_file_size_commit_log=FILE_BYTES)) as store:
        assert store.readable_queues() == []
        assert not (root / "consumequeue" / "T").exists()
        assert store.append(make_record(1, queue_id=1)).queue_offset == MESSAGES // 2


async def test_without_a_table_all_queues_are_built(root: Path, make_config: MakeConfig, record_number: Any) -> None:
    for name in ("consumequeue", "index", "config"):
        shutil.rmtree(root / name)
    (root / "checkpoint").unlink()
    assert (await run_in_thread(root, "--yes")).exit_code == 0
    await check_all(root, make_config(root, mapped_file_size_commit_log=FILE_BYTES), record_number)


async def test_a_repair_that_was_killed_at_its_end_is_finished(root: Path) -> None:
    (root / "triomq" / "repairing").write_bytes(b"clean")
    (root / "abort").touch()
    told = await run_in_thread(root, "--dry-run")
    assert (told.exit_code, "an earlier repair was stopped" in told.output) == (1, True)
    assert (await run_in_thread(root, "--yes")).exit_code == 0
    assert not (root / "triomq" / "repairing").exists()
    assert not (root / "abort").exists()


async def test_a_sound_store_is_not_changed(root: Path) -> None:
    before = files(root)
    done = await run_in_thread(root, "--yes")
    assert (done.exit_code, done.output.partition(":")[0]) == (0, "nothing is damaged")
    assert files(root) == before


async def test_without_the_settings_an_index_of_other_sizes_is_left_alone(root: Path) -> None:
    before = files(root)
    refused = CliRunner().invoke(repair_store, [str(root), "--yes"])
    assert refused.exit_code == 2
    assert "give the broker's settings (-c FILE" in refused.output
    assert files(root) == before


async def test_questions_and_refusals(root: Path) -> None:
    (root / "checkpoint").unlink()
    before = files(root)
    asked = await run_in_thread(root)
    assert asked.exit_code == 2
    assert "--yes repairs" in asked.output
    assert (await run_in_thread(root, "--yes", "--dry-run")).exit_code == 2
    release = RealDisk().lock(f"{root}/lock")
    try:
        refused = subprocess.run(  # noqa: ASYNC221 - nothing else runs
            [sys.executable, "-m", "triomq_server", "admin", "repair-store", str(root), "--yes", "-c",
             str(root.parent / "broker.conf")],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        release()
    assert refused.returncode == 2
    assert "stop the broker first" in refused.stderr
    assert files(root) == before


KILLED = """
import os, signal, sys
from triomq_server.disk import RealDisk
from triomq_server.store.stopped import whole_repair
from pathlib import Path
left = int(sys.argv.pop(1))
def counted(function):
    def call(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call
for kind, names in ((RealDisk, ("write", "remove", "create", "replace")), (Path, ("rename", "unlink"))):
    for name in names:
        setattr(kind, name, counted(getattr(kind, name)))
from triomq_server.commands.store_repair import repair_store
repair_store()
"""
"""The command, killed at one of the changes that it makes to files."""


@pytest.mark.parametrize(("then", "kills_at"), [("repaired", (1, 6, 17)), ("started", (3, 30))])
async def test_a_killed_repair_is_done_again(
    then: str, kills_at: tuple[int, ...], root: Path, make_config: MakeConfig, record_number: Any
) -> None:
    """Or a broker's start does the rest."""
    for name in ("an entry's size", "a torn index file", "a torn checkpoint"):
        DAMAGE[name][1](root)
    command = [str(root), "-c", str(root.parent / "broker.conf"), "--yes"]
    kills = 0
    for left in kills_at:
        done = subprocess.run(  # noqa: ASYNC221 - nothing else runs
            [sys.executable, "-c", KILLED, str(left), *command], capture_output=True, check=False, timeout=60
        )
        kills += done.returncode == -signal.SIGKILL
    assert kills == len(kills_at)
    if then == "repaired":
        assert (await run_in_thread(root, "--yes")).exit_code == 0
    async with open_store(make_config(root, mapped_file_size_commit_log=FILE_BYTES)) as store:
        await check_store_again(store, record_number, 0)
    assert look(make_config(root, mapped_file_size_commit_log=FILE_BYTES)).problems == []
    assert not (root / "triomq" / "repairing").exists()
