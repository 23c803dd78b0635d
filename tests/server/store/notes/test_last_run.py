"""The note of this run for the next start."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from memory_disk import MemoryDisk

from triomq_server.config import StoreConfig
from triomq_server.store import NewRecord, open_store
from triomq_server.store.notes.last_run import last_run

ROOT = "/store"
MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]


async def test_a_role_that_cannot_be_saved_is_handled_by_the_next_start(
    memory_disk: MemoryDisk, make_config: MakeConfig, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    config = make_config(ROOT)
    with monkeypatch.context() as patch:
        async with open_store(config, disk=memory_disk) as store:
            assert last_run(memory_disk, ROOT) == (True, True)
            patch.setattr(memory_disk, "write", refuse)
            await store.demote()
            assert last_run(memory_disk, ROOT) == (False, False)
            patch.undo()
