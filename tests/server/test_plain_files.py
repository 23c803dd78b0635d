"""Only files are opened, and nothing is waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from triomq_server.acl import AclError, AclFiles
from triomq_server.acl.signing import read_tool_account
from triomq_server.commands.options import configured
from triomq_server.config import ConfigError, TlsConfig
from triomq_server.disk import RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.plain_files import NotAFileError, open_plain, read_plain
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
