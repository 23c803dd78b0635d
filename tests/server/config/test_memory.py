"""The memory that counts is the least of the machine's and of the control groups' limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triomq_server.config.memory import usable_memory_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, MACHINE),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "65536000\n"}, 65_536_000),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "5000\n"}, 5000),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "4000\n", "sys/fs/cgroup/a/memory.max": "5000\n"}, 4000),
        ("0::/as/the/host/names/it\n", {"sys/fs/cgroup/memory.max": "7000\n"}, 7000),
        ("0::/a\n", {"sys/fs/cgroup/unified/a/memory.max": "7001\n"}, 7001),
        (
            "5:devices:/x\n4:memory,other:/c:d\n0::/\n",
            {"sys/fs/cgroup/memory/c:d/memory.limit_in_bytes": "6000\n", "sys/fs/cgroup/memory/x": "1\n"},
            6000,
        ),
        ("4:memory:/c\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("0::/\nno line of its kind\n", {"sys/fs/cgroup/memory.max": "0\n"}, MACHINE),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert usable_memory_bytes(tmp_path) == expected


def test_this_process_may_use_some_memory() -> None:
    assert 0 < usable_memory_bytes() <= MACHINE
