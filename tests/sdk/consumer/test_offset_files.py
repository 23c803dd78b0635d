"""The offset file of broadcasting consumers: Java's form, both ways, and what a crash leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import triomq
from triomq._consumer.offset_files import offset_file

QUEUE = triomq.MessageQueue("SpecT5", "broker-a", 1)

JAVAS = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"SpecT5"
\t\t}:7
\t}
}"""
"""As a Java client wrote it (docs/protocol/consumer.md §12.3)."""

WITH_TEXT_KEYS = b'{"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":1,\\"topic\\":\\"SpecT5\\"}":9}}'


@pytest.mark.parametrize(("data", "offset"), [(JAVAS, 7), (WITH_TEXT_KEYS, 9)])
async def test_both_forms_are_read(tmp_path: Path, data: bytes, offset: int) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(data)
    assert await triomq.plugins.FileOffsets(path).read(QUEUE) == offset


async def test_javas_form_is_written(tmp_path: Path) -> None:
    path = offset_file("10.0.0.1@DEFAULT", "G", tmp_path)
    assert path == tmp_path / "10.0.0.1@DEFAULT" / "G" / "offsets.json"
    await triomq.plugins.FileOffsets(path).commit({QUEUE: 7})
    assert path.read_bytes() == JAVAS


async def test_the_file_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = triomq.plugins.FileOffsets(path)
    await store.commit({QUEUE: 7})
    await store.commit({QUEUE: 8})
    assert (tmp_path / "offsets.json.bak").read_bytes() == JAVAS
    assert not (tmp_path / "offsets.json.tmp").exists()
    # A file that was cut short counts as lost: the one before it is read.
    path.write_bytes(b"")
    assert await triomq.plugins.FileOffsets(path).read(QUEUE) == 7
    path.write_bytes(JAVAS[:30])
    assert await triomq.plugins.FileOffsets(path).read(QUEUE) == 7


@pytest.mark.parametrize("data", [b"", JAVAS[:30]])
async def test_a_backup_is_not_lost_while_it_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(data)
    (tmp_path / "offsets.json.bak").write_bytes(JAVAS)
    store = triomq.plugins.FileOffsets(path)
    assert await store.read(QUEUE) == 7

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "as if the process were killed here")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(triomq.MQError, match="cannot be written"):
            await store.commit({QUEUE: 8})
    store.close()
    after = triomq.plugins.FileOffsets(path)
    assert await after.read(QUEUE) == 7
    await after.commit({QUEUE: 8})
    await after.commit({QUEUE: 9})
    assert (tmp_path / "offsets.json.bak").read_bytes() == JAVAS.replace(b":7", b":8")


async def test_two_broken_files_are_an_error(tmp_path: Path) -> None:
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / name).write_bytes(b'{"offsetTable":[')
    with pytest.raises(triomq.MQError, match=r"offsets\.json\.bak cannot be read; repair it"):
        await triomq.plugins.FileOffsets(tmp_path / "offsets.json").read(QUEUE)


@pytest.mark.parametrize("backup", [None, b""])
async def test_a_broken_file_without_its_backup_is_an_error(tmp_path: Path, backup: bytes | None) -> None:
    """The consumer would silently begin at the end of each queue."""
    path = tmp_path / "offsets.json"
    path.write_bytes(JAVAS[:30])
    if backup is not None:
        (tmp_path / "offsets.json.bak").write_bytes(backup)
    store = triomq.plugins.FileOffsets(path)
    for _ in range(2):
        with pytest.raises(triomq.MQError, match=r"offsets\.json cannot be read; repair it, or delete it"):
            await store.read(QUEUE)
    with pytest.raises(triomq.MQError, match="cannot be read"):
        await store.commit({QUEUE: 1})
    assert path.read_bytes() == JAVAS[:30]
    path.unlink()
    assert await store.read(QUEUE) is None


async def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(triomq.MQError, match=r"file/offsets\.json cannot be read"):
        await triomq.plugins.FileOffsets(tmp_path / "file" / "offsets.json").read(QUEUE)
    store = triomq.plugins.FileOffsets(tmp_path / "folder" / "offsets.json")
    assert await store.read(QUEUE) is None
    (tmp_path / "folder").write_bytes(b"")
    with pytest.raises(triomq.MQError, match=r"folder/offsets\.json cannot be written"):
        await store.commit({QUEUE: 1})
