"""Temporary directories of clusters: removed at the end, or by the next process if this one is killed.

A forked child that leaves the block, as one that ends with an exception does, removes nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "triomq-testing-"
_LOCK = "in-use"


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory for as long as the block lasts. It is locked while in use, so that no other process removes it."""
    owner = os.getpid()
    while True:
        home = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(home / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            break
        os.close(lock)  # another process took it for one left behind before it was locked
    try:
        yield home
    finally:
        if os.getpid() == owner:
            shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def remove_left_behind() -> None:
    """Remove the directories of processes that were killed."""
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            lock = os.open(home / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(lock)
