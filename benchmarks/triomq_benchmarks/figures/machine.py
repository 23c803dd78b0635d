"""Describes the machine on which figures were measured."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path

from triomq_benchmarks.figures.run_result import Machine

_GIT_LIMIT_S = 10


def usable_cpus() -> int:
    """The processors on which this process may run: `taskset` and containers leave it a part of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_machine() -> Machine:
    """The machine of this process."""
    return Machine(
        host=socket.gethostname(),
        system=platform.platform(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        cpus=usable_cpus(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def surroundings() -> dict[str, object]:
    """The other load on this machine now: its load average, and its available memory."""
    found: dict[str, object] = {"load_average_1_minute": round(os.getloadavg()[0], 2)}
    try:
        lines = (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found["memory_available_bytes"] = next(
            int(value.split()[0]) * 1024 for name, _, value in lines if name == "MemAvailable"
        )
    except (OSError, StopIteration):
        pass  # not Linux: only the load is recorded
    return found


def commit_of(folder: Path) -> str | None:
    """The commit of a folder's checkout, with `+` if files were changed; None if there is no checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    # A folder that is only installed below some checkout is not part of its commits.
    commands = ("ls-files --error-unmatch .", "rev-parse HEAD", "status --porcelain --untracked-files=no")
    asked = [(git, "-C", str(folder), *command.split()) for command in commands]
    try:
        _, commit, changed = (
            subprocess.run(argv, capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=True).stdout
            for argv in asked
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return f"{commit.strip()}{'+' if changed.strip() else ''}"


def machine_now() -> dict[str, object]:
    """The machine of this process with its load, for the JSON of comparisons."""
    return {
        "cpus": usable_cpus(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "system": platform.platform(),
    }
