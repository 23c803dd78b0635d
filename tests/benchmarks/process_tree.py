"""The descendants of a process and their command lines, from /proc; processes that have ended are left out."""

from __future__ import annotations

import os
from pathlib import Path


def descendants(of: int) -> set[int]:
    """All processes that descend from one."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {of}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {of}


def command_line(pid: int) -> str:
    """The arguments of a process, joined by spaces; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def alive(pids: set[int]) -> set[int]:
    """Those that still run; zombies do not."""
    return {pid for pid in pids if _state(pid) not in {"", "Z", "X"}}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
