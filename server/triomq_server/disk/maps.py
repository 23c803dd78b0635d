"""Keeps the number of mapped files below the system's limit (`vm.max_map_count`).

A store may have more files than that: each queue has one that is written, and a start reads three of each. A process
that reaches the system's limit gets no more memory for any purpose. So the oldest maps are released, and made again when
their bytes are used.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Protocol


class Mapped(Protocol):
    """A file with a map that can be released."""

    def unmap(self) -> None:
        """Release the map; the next use of its bytes maps the file again."""
        ...


def map_limit() -> int:
    """Three quarters of the system's limit; the rest is for the interpreter, threads and other buffers."""
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            allowed = int(file.read())
    except (OSError, ValueError):
        allowed = 65_530
    return max(allowed - allowed // 4, 1)


_sharing: weakref.WeakSet[Maps] = weakref.WeakSet()
_guard = threading.Lock()


class Maps:
    """The mapped files of one disk.

    Only the thread that made it releases maps: others may be reading a file that this one is about to release.

    Args:
        limit: maximum number of maps in the process; by default `map_limit`, over all disks.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = map_limit() if limit is None else limit
        self._files: OrderedDict[Mapped, None] = OrderedDict()
        self._owner = threading.get_ident()
        self._shares = limit is None
        if self._shares:
            with _guard:
                _sharing.add(self)

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Mapped) -> None:
        """Add a newly mapped file. Releases the oldest maps if there are too many."""
        with _guard:
            self._files[file] = None
            count = sum(map(len, _sharing)) if self._shares else len(self._files)
        if count > self._limit:
            self.give_up(count - self._limit, keep=file)

    def remove(self, file: Mapped) -> None:
        """Remove a closed file."""
        with _guard:
            self._files.pop(file, None)

    def give_up(self, count: int | None = None, *, keep: Mapped | None = None) -> int:
        """Release `count` maps, the oldest first, or half of them by default; returns the number released.

        Returns 0 in a thread other than the owner's.
        """
        if threading.get_ident() != self._owner:
            return 0
        if count is None:
            count = (len(self._files) + 1) // 2
        given_up: list[Mapped] = []
        with _guard:
            for file in self._files:
                if len(given_up) == count:
                    break
                if file is not keep:
                    given_up.append(file)
            for file in given_up:
                del self._files[file]
        for file in given_up:
            file.unmap()
        return len(given_up)
