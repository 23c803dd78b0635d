"""The memory that this process may use: the machine's, or the smallest limit of its control groups (cgroup v1 and v2).

In a container the machine's memory is irrelevant: the kernel kills a process that exceeds its group's limit, and drops
cached pages of files as if there were no more memory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

_UNIFIED = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_MEMORY_V1 = "sys/fs/cgroup/memory"


@functools.lru_cache(maxsize=1)
def usable_memory_bytes(root: Path = Path("/")) -> int:
    """The memory in bytes that this process may use; read only once, so later changes of limits do not count.

    A configuration needs it for several settings, and reading the control groups' files takes a millisecond each time.

    Args:
        root: the directory in which `proc` and `sys` are mounted.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(root)])


def share_of_memory(part: int, *, least: int, most: int = 1 << 62) -> int:
    """One of so many equal parts of the memory that this process may use, in bytes, within bounds."""
    return min(most, max(least, usable_memory_bytes() // part))


def _limits(root: Path) -> Iterator[int]:
    """The limits of this process's control groups and of all their parents."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            for mount in _UNIFIED:
                yield from _limits_along(root / mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_along(root / _MEMORY_V1, path, "memory.limit_in_bytes")


def _limits_along(mount: Path, path: str, name: str) -> Iterator[int]:
    # A container may see its group's path as named on the host, while only the group itself is mounted.
    group = Path(path.lstrip("/"))
    for folder in (group, *group.parents):
        limit = _text(mount / folder / name).strip()
        if limit.isdecimal() and int(limit) > 0:  # "max": no limit
            yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
