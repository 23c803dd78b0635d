"""Tables and properties files: written whole, with a copy, and log lines about failures."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from memory_disk import MemoryDisk

from triomq_server.disk import Disk, RealDisk
from triomq_server.disk.config_files import ConfigFile, ConfigFileDamaged


async def test_config_file(disk: Disk, tmp_path: Path, caplog: Any) -> None:
    path = f"{tmp_path}/config/topics.json"
    file = ConfigFile(path, disk)
    assert file.load() is None
    file.save(b'{"offsetTable":{"T@G":{0:1,1:2\n\t\t}}}')
    assert file.load() == {"offsetTable": {"T@G": {0: 1, 1: 2}}}
    file.save(b'{"second":2}')
    assert disk.read(path + ".bak") == b'{"second":2}'
    assert not disk.exists(path + ".tmp")
    await file.save_in_background(b'{"third":3}')
    assert file.load() == {"third": 3}
    disk.write(path, b"")
    assert file.load() == {"third": 3}
    assert f"{path} is empty" in caplog.text
    disk.write(path, b"{broken")
    assert file.load() == {"third": 3}
    assert "cannot be parsed" in caplog.text
    disk.remove(path)
    assert file.load() == {"third": 3}
    assert f"{path} is missing" in caplog.text
    disk.write(path + ".bak", b"{broken")
    with pytest.raises(ConfigFileDamaged, match=r"topics\.json"):
        file.load()
    disk.write(path, b"{broken")
    disk.remove(path + ".bak")
    with pytest.raises(ConfigFileDamaged, match=r"there is no .*\.bak: .*; repair the file or move it away"):
        file.load()


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, backup = tmp_path / "broker.conf", tmp_path / "broker.conf.bak"
    file = ConfigFile(str(path), RealDisk())
    path.write_bytes(b"tls.server.keyPassword=x")
    backup.write_bytes(b"an older one, which all may read")
    for mode in (0o600, 0o640, 0o664):
        path.chmod(mode)
        file.save(b"[1]")
        assert [each.stat().st_mode & 0o777 for each in (path, backup)] == [mode, mode]
    owner = (path.stat().st_uid, path.stat().st_gid)
    assert (backup.stat().st_uid, backup.stat().st_gid) == owner

    # A file of another group, which this process may not give away.
    def refuse(*_: int) -> None:
        raise PermissionError

    real = os.stat
    path.chmod(0o640)
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "stat", lambda name: os.stat_result([*real(name)[:5], owner[1] + 1, *real(name)[6:10]]))
    file.save(b"[2]")
    monkeypatch.undo()
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_table_is_reported(tmp_path: Path, caplog: Any) -> None:
    path = f"{tmp_path}/topics.json"
    disk = RealDisk()
    disk.write(path, b"")
    assert ConfigFile(path, disk).load() is None
    assert "what it held is lost" in caplog.text


def test_a_failed_save_leaves_the_old_table(tmp_path: Path) -> None:
    disk = MemoryDisk()
    file = ConfigFile("/s/x.json", disk)
    file.save(b"[1]")
    disk.failing_syncs = True
    with pytest.raises(OSError, match="set to fail"):
        file.save(b"[2]")
    assert file.load() == [1]


def test_a_failure_is_logged_once_and_its_end(caplog: Any) -> None:
    """Tables on a timer are tried every few seconds, and a full disk may stay full for days."""
    disk = MemoryDisk()
    file = ConfigFile("/s/x.json", disk)
    full = OSError(errno.ENOSPC, "no space")
    for error in (full, full, OSError(errno.EIO, "broken"), full):
        file.log_failure(error)
    for _ in range(2):
        file.save(b"[2]")
    file.log_failure(full)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "/s/x.json cannot be written: [Errno 28] no space"),
        ("ERROR", "/s/x.json cannot be written: [Errno 5] broken"),
        ("ERROR", "/s/x.json cannot be written: [Errno 28] no space"),
        ("WARNING", "/s/x.json is written again"),
        ("ERROR", "/s/x.json cannot be written: [Errno 28] no space"),
    ]


def test_a_backup_that_cannot_be_written_is_logged_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    disk = MemoryDisk()
    file = ConfigFile("/s/x.json", disk)
    write = disk.write
    full, broken = OSError(errno.ENOSPC, "no space"), OSError(errno.EIO, "broken")
    failures = [full, full, broken, None, broken]

    def write_but_no_backup(path: str, data: bytes, *, sync: bool = True) -> None:
        if path.endswith(".bak") and (failure := failures.pop(0)) is not None:
            raise failure
        write(path, data, sync=sync)

    monkeypatch.setattr(disk, "write", write_but_no_backup)
    while failures:
        file.save(b"[1]")
    assert file.load() == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "/s/x.json.bak cannot be written: [Errno 28] no space",
        "/s/x.json.bak cannot be written: [Errno 5] broken",
        "/s/x.json.bak cannot be written: [Errno 5] broken",
    ]
