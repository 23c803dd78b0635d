"""CPU, memory and disk used by processes, second by second.  Values and their addition; pure.

`run/resource_watch.py` takes them, `report/charts.py` draws them, comparisons show their medians.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import attrs

GENERATORS, MACHINE = "load generators", "machine"
"""All load generators on this machine together; all processes on it."""


@attrs.frozen(kw_only=True)
class ResourceRow:
    """The resources used in one second by one or several processes.

    Attributes:
        who: a node's name, `GENERATORS` or `MACHINE`.
        second: whole seconds since the measured part began; negative: warm-up.
        cpu_cores: CPU seconds per second, user and system.
        memory_bytes: resident at the end of the second; for the machine: unavailable memory.
        read_bytes: per second, from disks; 0 for the machine, where it is not measured.
        written_bytes: per second, to disks; 0 for the machine, where it is not measured.
    """

    who: str
    second: int
    cpu_cores: float
    memory_bytes: int
    read_bytes: int = 0
    written_bytes: int = 0


@attrs.frozen(kw_only=True)
class Use:
    """The resources used over the measured part by one or several processes.

    Attributes:
        cpu_cores: the median over the seconds.
        memory_bytes: the maximum.
        written_bytes_per_s: the mean.
    """

    cpu_cores: float
    memory_bytes: int
    written_bytes_per_s: float


def together(rows: Iterable[ResourceRow], who: str) -> list[ResourceRow]:
    """One row per second: the sums over all of `rows`, in order of time."""
    seconds: defaultdict[int, list[ResourceRow]] = defaultdict(list)
    for row in rows:
        seconds[row.second].append(row)
    return [
        ResourceRow(
            who=who,
            second=second,
            cpu_cores=sum(row.cpu_cores for row in several),
            memory_bytes=sum(row.memory_bytes for row in several),
            read_bytes=sum(row.read_bytes for row in several),
            written_bytes=sum(row.written_bytes for row in several),
        )
        for second, several in sorted(seconds.items())
    ]


def of_nodes(rows: Iterable[ResourceRow]) -> list[ResourceRow]:
    """The rows of the target's processes."""
    return [row for row in rows if row.who not in (GENERATORS, MACHINE)]


def use_of(rows: Sequence[ResourceRow], measured_s: float) -> Use | None:
    """The use over the measured part, from rows of one or several processes; None if nothing was measured."""
    counted = [row for row in rows if 0 <= row.second < measured_s]
    if not counted:
        return None
    return Use(
        cpu_cores=median(row.cpu_cores for row in counted),
        memory_bytes=max(row.memory_bytes for row in counted),
        written_bytes_per_s=sum(row.written_bytes for row in counted) / len(counted),
    )
