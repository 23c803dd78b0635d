"""The age of a server's process, which its ready line reports."""

from __future__ import annotations

import os
import time


def seconds_since_start() -> float:
    """The age of this process in seconds, including the start of the interpreter, to a hundredth of a second."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
            started_ticks = int(stat.read().rpartition(")")[2].split()[19])
    except OSError:
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
