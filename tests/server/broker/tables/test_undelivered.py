"""The file of delayed messages that could not be delivered: what it holds, whatever happens while it is written."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk
from trio.testing import wait_all_tasks_blocked

from triomq_server.broker.tables.undelivered import REMEMBERED, Undelivered
from triomq_server.disk.config_files import ConfigFile


class SlowFile(ConfigFile):
    """A file whose background write ends when the test lets it."""

    def __init__(self) -> None:
        super().__init__("undeliveredDelays.json", MemoryDisk())
        self.content: Any = None
        self.goes_on = trio.Event()
        self.full = False

    def load(self) -> Any:
        return self.content

    async def save_in_background(self, data: bytes) -> None:
        await self.goes_on.wait()
        if self.full:
            raise OSError(28, "No space left on device")
        self.content = data


async def test_changes_while_the_file_is_written_are_in_the_next_write() -> None:
    file = SlowFile()
    table = Undelivered(file)
    table.note(1, 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.persist_in_background)
        await wait_all_tasks_blocked()
        table.note(2, 7)
        file.goes_on.set()
    assert file.content == b"[[1,5]]"
    await table.persist_in_background()
    assert file.content == b"[[1,5],[2,7]]"
    file.content = None
    await table.persist_in_background()
    assert file.content is None, "nothing has changed"


async def test_a_full_disk_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    file = SlowFile()
    file.goes_on.set()
    table = Undelivered(file)
    table.note(1, 5)
    file.full = True
    await table.persist_in_background()
    assert "undeliveredDelays.json cannot be written" in caplog.text
    file.full = False
    await table.persist_in_background()
    assert file.content == b"[[1,5]]"


def test_the_first_are_dropped_where_there_are_too_many() -> None:
    table = Undelivered(None)
    for number in range(REMEMBERED + 2):
        table.note(0, number)
    assert len(table.places) == REMEMBERED
    assert next(iter(table.places)) == (0, 2)
