"""A kill between the creation of a log or queue file and the moment it gets its size; the next start succeeds."""

from pathlib import Path

import pytest

from triomq_server.config import StoreConfig
from triomq_server.store import AppendStatus, NewRecord, ReadStatus, open_store


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/t/0"])
async def test_an_empty_file_at_the_end_is_ignored(tmp_path: Path, folder: str) -> None:
    config = StoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=200
    )
    async with open_store(config) as store:
        for number in range(3):
            assert store.append(NewRecord("t", 0, b"%d" % number, b"")).status is AppendStatus.PUT_OK
    size = 65536 if folder == "commitlog" else 200
    (tmp_path / folder / f"{size:020d}").touch()
    (tmp_path / "abort").touch()
    async with open_store(config) as store:
        assert store.queue_bounds("t", 0) == (0, 3)
        for number in range(3, 500):
            assert store.append(NewRecord("t", 0, b"%d" % number, b"")).status is AppendStatus.PUT_OK
        result = store.read("t", 0, 499, 1, None)
        assert result is not None
        assert result.status is ReadStatus.FOUND
