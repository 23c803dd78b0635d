"""Only files are opened, and nothing is waited for; links and mounted files stay when their content is replaced."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from triomq_server.acl import AclError, AclFiles
from triomq_server.acl.signing import read_tool_account
from triomq_server.commands.options import absolute, configured
from triomq_server.config import ConfigError, TlsConfig
from triomq_server.disk import RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.plain_files import NotAFileError, open_plain, read_plain, replace_plain
from triomq_server.wire.tls.certificates import effective, server_context

READING = os.O_RDONLY
WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def make_odd(path: Path, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))


@pytest.mark.parametrize("flags", [READING, WRITING])
@pytest.mark.parametrize("kind", ["FIFO", "device", "socket"])
def test_what_is_no_file_is_refused_at_once(flags: int, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    make_odd(path, kind)
    with pytest.raises(NotAFileError, match=f"it is a {kind}, not a file: '{path}'"):
        open_plain(str(path), flags)
    assert path.exists()


@pytest.mark.parametrize("flags", [READING, WRITING])
def test_a_directory_is_refused_as_by_the_system(flags: int, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"Is a directory: '{tmp_path}'"):
        open_plain(str(tmp_path), flags)


def test_files_and_the_null_device_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "masked").symlink_to("/dev/null")
    assert read_plain(str(tmp_path / "file")) == b"content"
    assert read_plain(str(tmp_path / "file"), 3) == b"con"
    assert read_plain(str(tmp_path / "masked")) == b""
    with pytest.raises(FileNotFoundError):
        read_plain(str(tmp_path / "missing"))


@pytest.mark.parametrize("name", ["plain_acl.yml", "acl/more.yml"])
def test_an_account_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "conf/acl").mkdir(parents=True)
    os.mkfifo(tmp_path / "conf" / name)
    with pytest.raises(AclError, match=f"it is a FIFO, not a file: '{tmp_path}/conf/{name}'"):
        AclFiles(str(tmp_path), lambda: 0, RealDisk().run).load()


def test_the_account_of_a_tool(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tools.yml")
    with pytest.raises(AclError, match=r"tools\.yml cannot be read: it is a FIFO, not a file"):
        read_tool_account(str(tmp_path / "tools.yml"))


def test_files_of_tls(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match=f"tls.config.file={fifo}: it is a FIFO, not a file"):
        effective(TlsConfig(config_file=fifo))
    with pytest.raises(ConfigError, match=f"tls.server.certPath={fifo}: it is a FIFO, not a file"):
        server_context(TlsConfig(server_cert_path=fifo, server_key_path=fifo))


def test_a_configuration_file_but_not_a_pipe_of_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SystemExit) as ended:
        configured(str(tmp_path / "fifo"), (), {})
    assert ended.value.code == 2
    assert f"configuration file {tmp_path}/fifo: it is a FIFO, not a file; give -c" in capsys.readouterr().err
    reading, writing = os.pipe()
    os.write(writing, b"brokerName=piped")
    os.close(writing)
    assert configured(f"/dev/fd/{reading}", (), {}) == {"brokerName": "piped"}
    os.close(reading)


@pytest.mark.parametrize("name", ["table.json", "table.json.tmp"])
def test_a_table(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    table = ConfigFile(str(tmp_path / "table.json"), RealDisk())
    with pytest.raises(NotAFileError):
        table.save(b"{}") if name.endswith("tmp") else table.load()


def busy(*paths: str) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), *paths)


@pytest.mark.parametrize("old", [b"a longer content", b"a", b""])
def test_a_file_that_is_mounted_by_itself_is_overwritten(
    old: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one file of a container often is: the system refuses to put another one in its place."""

    mounted, new = tmp_path / "broker.conf", tmp_path / "broker.conf.tmp"
    mounted.write_bytes(old)
    new.write_bytes(b"new content")
    number = mounted.stat().st_ino
    monkeypatch.setattr(os, "replace", busy)
    RealDisk().replace(str(new), str(mounted))
    assert mounted.read_bytes() == b"new content"
    assert mounted.stat().st_ino == number
    assert not new.exists()


def test_a_mounted_file_that_cannot_be_written_leaves_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "plain_acl.yml.tmp"
    new.write_bytes(b"secretKey: 12345678")
    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(IsADirectoryError):  # as root may write any file, a directory stands for one mounted read-only
        replace_plain(str(new), str(tmp_path))
    assert not new.exists()


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "new").write_bytes(b"new content")
    with pytest.raises(IsADirectoryError):
        replace_plain(str(tmp_path / "new"), str(tmp_path / "directory"))
    assert (tmp_path / "new").read_bytes() == b"new content"


async def test_a_link_to_an_account_file_stays(tmp_path: Path) -> None:
    """Else changes by requests and by an operator's editor would be in two files."""
    (tmp_path / "home/conf").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    link, file = tmp_path / "home/conf/plain_acl.yml", tmp_path / "etc/accounts.yml"
    file.write_text("accounts:\n- {accessKey: adminkey, secretKey: 'a secret', admin: true}\n")
    link.symlink_to(file)
    accounts = AclFiles(str(tmp_path / "home"), lambda: 0, RealDisk().run)
    accounts.load()
    await accounts.put_account({"accessKey": "otherkey", "secretKey": "b secret"})
    assert link.is_symlink()
    assert "otherkey" in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["accounts.yml"]


def test_a_link_to_a_configuration_file_stays(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc/broker.conf"
    file.write_bytes(b"brokerName=a")
    (tmp_path / "broker.conf").symlink_to(file)
    assert absolute("") == ""
    ConfigFile(absolute(str(tmp_path / "broker.conf")), RealDisk()).save(b"brokerName=b")
    assert (tmp_path / "broker.conf").is_symlink()
    assert file.read_bytes() == b"brokerName=b"
