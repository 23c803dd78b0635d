"""The machine that figures were taken on."""

from __future__ import annotations

import os
import platform
import socket

from triomq_benchmarks.figures.run_result import Machine


def this_machine() -> Machine:
    """The machine of this process."""
    return Machine(
        host=socket.gethostname(),
        system=platform.platform(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def machine_now() -> dict[str, object]:
    """The machine of this process with its load, for the JSON of comparisons."""
    return {
        "cpus": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "system": platform.platform(),
    }
