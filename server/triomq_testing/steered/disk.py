"""The disk of a broker in a test: real files, whose times follow the test's clock, and which can fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import msgspec

from triomq_server.disk import RealDisk
from triomq_server.disk.access import DiskUsage, MappedFile


class SteeredDisk(RealDisk):
    """Real files in a temporary directory.

    Attributes:
        full: whether there is no space left.
        dead: whether the broker counts as killed: its last writes are dropped.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__()
        self._clock = clock
        self._created_ms: dict[str, int] = {}
        self.full = False
        self.dead = False

    def modified_ms(self, path: str) -> int:
        """The time by the test's clock: for a file of a log, when the file after the next was created.

        That happens when a file is full. Writing through memory need not change a file's own time.
        """
        folder, name = os.path.split(path)
        later = [each for each in self.list(folder) if each > name]
        return self._created_ms.get(f"{folder}/{later[1]}", 0) if len(later) > 1 else self._clock()

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """Create a file; fails on a full disk."""
        self._check_space(path)
        self._created_ms[path] = self._clock()
        return super().create(path, size, reserve, populate=populate)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:  # noqa: ARG002 - as all disks
        """Write a file; fails on a full disk. It is never forced to the disk: no test survives a power failure."""
        self._check_space(path)
        if not self.dead:
            super().write(path, data, sync=False)

    def replace(self, source: str, target: str) -> None:
        """Nothing when dead."""
        if not self.dead:
            os.replace(source, target)

    def remove(self, path: str) -> None:
        """Nothing when dead."""
        if not self.dead:
            super().remove(path)

    def remove_tree(self, path: str) -> None:
        """Nothing when dead."""
        if not self.dead:
            super().remove_tree(path)

    def usage(self, path: str) -> DiskUsage:
        """The use of the disk; a full disk has no free bytes."""
        usage = super().usage(path)
        return msgspec.structs.replace(usage, free_bytes=0, usable_bytes=0) if self.full else usage

    def _check_space(self, path: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
