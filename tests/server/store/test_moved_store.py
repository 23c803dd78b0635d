"""A store whose directories disappear while it is open: its maps still take messages, but no path leads to them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.disk import RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.store import AppendStatus, MessageStore, NewRecord, open_store

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


async def confirmed(store: MessageStore, record: NewRecord) -> bool:
    """Whether a message that is appended now reaches the disk."""
    answers: list[bool] = []
    ended = trio.Event()

    def done(answer: bool) -> None:
        answers.append(answer)
        ended.set()

    store.flusher.when_flushed(store.append(record).end_offset, trio.current_time() + 30, done)
    await ended.wait()
    return answers[0]


async def second_file(root: Path) -> None:
    """Wait for the log's next file, which a thread prepares after the first message, at the path it had by then."""
    with trio.fail_after(30):
        while len(list((root / "commitlog").iterdir())) < 2:  # noqa: ASYNC110 - files have no events
            await trio.sleep(0.005)


@pytest.mark.parametrize("moved", ["", "commitlog"])
async def test_no_message_is_safe_while_the_store_is_elsewhere(
    moved: str, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    root = tmp_path / "store"
    config = make_config(root, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with open_store(config) as store:
        assert await confirmed(store, make_record(0))
        await second_file(root)
        os.rename(root / moved, tmp_path / "elsewhere")
        assert not await confirmed(store, make_record(1))
        assert not store.writable
        assert moved or not root.exists(), "nothing stands where the store is to be put back"
        await store.flusher.try_again()
        assert not store.writable
        os.rename(tmp_path / "elsewhere", root / moved)
        await store.flusher.try_again()
        assert store.writable
        assert await confirmed(store, make_record(2))
    assert store.not_written is None
    async with open_store(config) as store:
        assert store.queue_bounds("T", 0) == (0, 3)


async def test_another_directory_in_its_place_is_noticed(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """As a copy of the store is, or the file system that an unmounted one has covered."""
    root = tmp_path / "store"
    async with open_store(make_config(root, flush_disk_type=FlushDiskType.SYNC_FLUSH)) as store:
        assert await confirmed(store, make_record(0))
        await second_file(root)
        os.rename(root, tmp_path / "elsewhere")
        shutil.copytree(tmp_path / "elsewhere", root)
        assert not await confirmed(store, make_record(1))
        assert not store.writable
    assert store.not_written is not None
    assert f"the directory is another one than at the start, put that one back: '{root}/commitlog'" in store.not_written
    assert (tmp_path / "elsewhere" / "abort").exists(), "the next start looks at all of it"


async def test_an_idle_store_that_was_moved_is_reported_at_its_end(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    root = tmp_path / "store"
    async with open_store(make_config(root)) as store:
        store.append(make_record(0))
        await store.flush()
        os.rename(root, tmp_path / "elsewhere")
    assert store.not_written is not None
    assert (tmp_path / "elsewhere" / "abort").exists()


@pytest.mark.parametrize("moved", ["", "commitlog", "config", "consumequeue"])
async def test_nothing_is_made_where_a_directory_is_to_be_put_back(
    moved: str, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    root = tmp_path / "store"
    disk = RealDisk()
    async with open_store(make_config(root), disk=disk) as store:
        topics = ConfigFile(f"{root}/config/topics.json", disk)
        topics.save(b"{}")
        assert store.append(make_record(0)).status is AppendStatus.PUT_OK
        await second_file(root)
        os.rename(root / moved, tmp_path / "elsewhere")
        for path in ("commitlog/1", "consumequeue/Other/0/0", "config/groups.json"):
            if moved in path:
                with pytest.raises(OSError, match="moved or removed, put it back"):
                    disk.create(f"{root}/{path}", 4096, 4096)
        if moved in ("", "config"):
            with pytest.raises(OSError, match="moved or removed, put it back"):
                topics.save(b"{}")
        assert not (root / moved).exists()
        os.rename(tmp_path / "elsewhere", root / moved)
        topics.save(b'{"a":1}')
        disk.create(f"{root}/consumequeue/Other/0/0", 4096, 4096).close()
        assert store.append(make_record(1)).status is AppendStatus.PUT_OK
    assert store.not_written is None


async def test_what_a_store_itself_removes_it_may_make_again(tmp_path: Path, make_config: MakeConfig) -> None:
    disk = RealDisk()
    async with open_store(make_config(tmp_path), disk=disk):
        disk.make_directory(f"{tmp_path}/own/below")
        disk.remove_tree(f"{tmp_path}/own")
        disk.make_directory(f"{tmp_path}/own/below")
        assert (tmp_path / "own/below").is_dir()
    shutil.rmtree(tmp_path / "commitlog")
    disk.make_directory(f"{tmp_path}/commitlog")  # no store is open


async def test_a_directory_that_a_full_disk_refused_is_made_later(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = RealDisk()
    async with open_store(make_config(tmp_path), disk=disk):
        with monkeypatch.context() as patch:
            patch.setattr(os, "makedirs", full)
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                disk.make_directory(f"{tmp_path}/own/below")
        disk.make_directory(f"{tmp_path}/own/below")
        assert (tmp_path / "own/below").is_dir()
