"""Resources of processes, read from an artificial `/proc` and from this process itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triomq_benchmarks.figures.resources import GENERATORS, MACHINE, ResourceRow, of_nodes, together, use_of
from triomq_benchmarks.run.resource_watch import Sample, descendants, row_between, sample_of, sample_of_machine


def made_process(proc: Path, pid: int, *children: int, name: str = "a (bad) name") -> None:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 250 150 0 0 20 0 1 0 0")
    (folder / "statm").write_text("1000 25 10 1 0 20 0")
    (folder / "io").write_text("rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n")
    (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)))


def test_a_process_is_read(tmp_path: Path) -> None:
    made_process(tmp_path, 7)
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert sample_of(7, tmp_path) == Sample(400 / ticks, 25 * page, 4096, 8192)
    (tmp_path / "7" / "io").unlink()
    assert sample_of(7, tmp_path) == Sample(400 / ticks, 25 * page)
    assert sample_of(8, tmp_path) is None
    assert sample_of_machine(tmp_path) is None


def test_nodes_are_no_generators(tmp_path: Path) -> None:
    for pid, children in ((1, (2, 3)), (2, (4,)), (3, (5, 6)), (4, ()), (5, ())):
        made_process(tmp_path, pid, *children)
    # 3 is a node, 5 below it; 6 has just ended.
    assert sorted(descendants(1, [3], tmp_path)) == [1, 2, 4]
    assert sorted(descendants(1, [], tmp_path)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc, which is Linux's")
def test_this_process_and_its_child_are_read() -> None:
    own = sample_of(os.getpid())
    assert own is not None
    assert own.memory_bytes > 1 << 20
    machine = sample_of_machine()
    assert machine is not None
    assert machine.cpu_s > own.cpu_s
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid(), [])
        assert child.pid not in descendants(os.getpid(), [child.pid])
        child.communicate(b"\n")


def test_rows_are_rates() -> None:
    row = row_between("x", 3, Sample(1.0, 10, 100, 200), Sample(2.0, 20, 100, 1200), 2.0)
    assert row == ResourceRow(who="x", second=3, cpu_cores=0.5, memory_bytes=20, read_bytes=0, written_bytes=500)
    # Processes that end take their sums with them.
    assert row_between("x", 3, Sample(5.0), Sample(2.0), 1.0).cpu_cores == 0


def test_what_was_used() -> None:
    def row(who: str, second: int, cpu: float, memory: int = 10) -> ResourceRow:
        return ResourceRow(who=who, second=second, cpu_cores=cpu, memory_bytes=memory, written_bytes=100)

    rows = [
        row("a", -1, 9.0),
        row("a", 0, 1.0),
        row("b", 0, 2.0),
        row("a", 1, 1.5),
        row(GENERATORS, 0, 7),
        row(MACHINE, 0, 8),
    ]
    nodes = together(of_nodes(rows), "nodes")
    assert [(each.second, each.cpu_cores, each.memory_bytes) for each in nodes] == [
        (-1, 9, 10),
        (0, 3, 20),
        (1, 1.5, 10),
    ]
    used = use_of(nodes, 2)
    assert used is not None
    assert (used.cpu_cores, used.memory_bytes, used.written_bytes_per_s) == (2.25, 20, 150)
    assert use_of([], 2) is None
