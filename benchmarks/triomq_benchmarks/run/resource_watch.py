"""Samples what the target's processes, the load generators of this machine, and the machine use, once a second.

It reads `/proc`, so it works only on Linux, and only for our own processes; otherwise there are no samples.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import attrs
import trio

from triomq_benchmarks.figures.resources import GENERATORS, MACHINE, ResourceRow
from triomq_benchmarks.run.targets import RunTarget

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_AT_S = 0.5
"""Between the rows of the generators, which are made at the end of a second."""


@attrs.frozen
class Sample:
    """The resources that a process has used so far, and its memory now; samples of processes are added with `+`."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.cpu_s + other.cpu_s,
            self.memory_bytes + other.memory_bytes,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )


def sample_of(pid: int, proc: Path = Path("/proc")) -> Sample | None:
    """Sample a process; None if it has ended, or the system does not report it."""
    try:
        stat = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        pages = int((proc / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    disk: dict[str, int] = {}
    try:
        lines = (proc / str(pid) / "io").read_text().splitlines()
        disk = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    except (OSError, ValueError):
        pass  # the disk use of another user's process is not visible
    cpu_s = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
    return Sample(cpu_s, pages * _PAGE_BYTES, disk.get("read_bytes", 0), disk.get("write_bytes", 0))


def sample_of_machine(proc: Path = Path("/proc")) -> Sample | None:
    """Sample this machine: CPU use of all processes, and unavailable memory."""
    try:
        ticks = [int(each) for each in (proc / "stat").read_text().splitlines()[0].split()[1:]]
        lines = (line.partition(":") for line in (proc / "meminfo").read_text().splitlines())
        memory = {name: int(value.split()[0]) * 1024 for name, _, value in lines}
        # user, nice, system, irq, softirq, steal: neither idle nor waiting for a disk.
        busy = sum(ticks[:3]) + sum(ticks[5:8])
        return Sample(busy / _TICKS_PER_S, memory["MemTotal"] - memory["MemAvailable"])
    except (OSError, IndexError, ValueError, KeyError):
        return None


def descendants(pid: int, without: Iterable[int], proc: Path = Path("/proc")) -> list[int]:
    """A process and all its descendants, except the processes `without` and their descendants."""
    left_out, found, waiting = set(without), list[int](), [pid]
    while waiting:
        one = waiting.pop()
        if one in left_out:
            continue
        found.append(one)
        try:
            for task in (proc / str(one) / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it ended in the meantime, or the system does not list children
    return found


def row_between(who: str, second: int, before: Sample, after: Sample, length_s: float) -> ResourceRow:
    """The use between two samples. A process that was restarted or has ended does not count as negative use."""

    def rate(old: float, new: float) -> float:
        return max(0.0, new - old) / length_s

    return ResourceRow(
        who=who,
        second=second,
        cpu_cores=rate(before.cpu_s, after.cpu_s),
        memory_bytes=after.memory_bytes,
        read_bytes=round(rate(before.read_bytes, after.read_bytes)),
        written_bytes=round(rate(before.written_bytes, after.written_bytes)),
    )


def _samples(target: RunTarget) -> Mapping[str, tuple[object, Sample]]:
    """By name: the process's identity, and its sample."""
    found: dict[str, tuple[object, Sample]] = {}
    nodes = {node.name: node.pid for node in target.nodes.values() if node.pid}
    for name, pid in nodes.items():
        if (of_node := sample_of(pid)) is not None:
            found[name] = (pid, of_node)
    own = [sample for pid in descendants(os.getpid(), nodes.values()) if (sample := sample_of(pid)) is not None]
    if own:
        found[GENERATORS] = (None, sum(own, Sample()))
    if (whole := sample_of_machine()) is not None:
        found[MACHINE] = (None, whole)
    return found


async def watch_resources(target: RunTarget, origin: float, on_row: Callable[[ResourceRow], None]) -> None:
    """Report rows until cancelled.

    Args:
        target: its processes are sampled if they are ours.
        origin: start of the measured part, on trio's clock.
        on_row: takes one row per process and second.
    """
    taken_at, before = trio.current_time(), _samples(target)
    while True:
        second = math.floor(trio.current_time() - origin - _AT_S) + 1
        await trio.sleep_until(origin + second + _AT_S)
        now, after = trio.current_time(), _samples(target)
        for who, (process, sample) in after.items():
            if who in before and before[who][0] == process:
                on_row(row_between(who, second, before[who][1], sample, now - taken_at))
        taken_at, before = now, after
