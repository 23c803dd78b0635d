"""Errors that become one line with cause and cure, and errors that keep their traceback."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from triomq_server.config import ConfigError
from triomq_server.disk import StoreLocked
from triomq_server.disk.config_files import ConfigFileDamaged
from triomq_server.plain_files import NotAFileError
from triomq_server.process.failures import explain, leaves
from triomq_server.store import StoreDamaged

SETTINGS = {"brokerName": "b", "brokerIP1": "h", "listenPort": "10911", "storePathRootDir": "/store"}


def failed(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("x is 1"), "bad configuration: x is 1"),
        (StoreLocked("in use"), "in use"),
        (StoreDamaged("too short"), "too short"),
        (ConfigFileDamaged("broken"), "broken"),
        (failed(errno.EADDRINUSE), "port 10911 or its neighbours 10909 and 10912"),
        (
            failed(errno.EISDIR, "/store/abort"),
            "(/store/abort): a directory stands where a file should be; move it away",
        ),
        (
            NotAFileError(errno.EINVAL, "it is a FIFO, not a file", "/store/abort"),
            "/store/abort: it is a FIFO, not a file; move it away, or name another one, then start again",
        ),
        (failed(errno.ENOSPC, "/elsewhere"), "(/store): the disk is full"),
        (failed(errno.EROFS, "/store/lock"), "(/store/lock): the file system is read-only; see whether it has faults"),
        (failed(errno.EACCES, "/root/x"), "(/root/x): this user may not read or write it; look at its owner"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "(brokerIP1=h): a host name cannot be resolved; check brokerIP1 and brokerIP2",
        ),
        (failed(errno.ENAMETOOLONG, "/long"), "(/long): the path is too long"),
        (RuntimeError("can't start new thread"), "can't start new thread: raise the limit of processes (ulimit -u"),
        (failed(errno.EMFILE), "raise its limit (ulimit -n"),
        (failed(errno.EADDRNOTAVAIL), "set brokerIP1 (broker) or bindAddress (name server)"),
    ],
)
def test_what_an_operator_can_do_something_about_is_one_line(error: Exception, line: str) -> None:
    explained = explain(error, SETTINGS)
    assert explained is not None
    assert line in explained
    assert "\n" not in explained


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("z"), failed(errno.EIO), KeyError("y")])
def test_a_defect_keeps_its_traceback(error: Exception) -> None:
    assert explain(error, SETTINGS) is None
    assert explain(ExceptionGroup("", [StoreLocked("in use"), error]), SETTINGS) is None


@pytest.mark.parametrize(("number", "below"), [(errno.EEXIST, ""), (errno.ENOENT, "/00000000000000000000")])
def test_a_link_to_a_file_system_that_is_not_mounted_is_named(number: int, below: str, tmp_path: Path) -> None:
    link = tmp_path / "commitlog"
    link.symlink_to("/no/such/disk")
    explained = explain(failed(number, f"{link}{below}"), SETTINGS)
    assert explained is not None
    assert f"{link} is a symbolic link to /no/such/disk, which is not there; mount that file system" in explained


def test_a_group_is_explained_once_for_each_cause() -> None:
    inner = ExceptionGroup("", [StoreLocked("in use"), StoreLocked("in use")])
    group = ExceptionGroup("", [inner, ConfigError("x is 1")])
    assert len(list(leaves(group))) == 3
    assert explain(group, SETTINGS) == "in use; bad configuration: x is 1"


def test_a_name_server_has_one_port() -> None:
    explained = explain(failed(errno.EADDRINUSE), {"listenPort": "9876"})
    assert explained is not None
    assert "(port 9876):" in explained
