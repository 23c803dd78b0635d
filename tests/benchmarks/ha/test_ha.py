"""Rows from samples of replication, the results of a watch, and the yardstick's loop."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.clusters.cluster import JAVA_TO_JAVA, OURS_TO_OURS, PAIRINGS, Pairing
from triomq_benchmarks.clusters.processes import Child, ChildError
from triomq_benchmarks.commands.measurements import ha
from triomq_benchmarks.ha import tables as ha_report
from triomq_benchmarks.ha.catch_up import BEHIND, EMPTY, SENDFILE, SENDFILE_SPLICED, SENDFILE_TO_FILE, CatchUp
from triomq_benchmarks.ha.failover import Kill
from triomq_benchmarks.ha.loopback import Keep, send_file
from triomq_benchmarks.ha.measurement import HaFigures
from triomq_benchmarks.ha.sync_sends import SyncSend
from triomq_benchmarks.ha.watching import LogWatch, QueueWatch

MB = 10**6


def catch_ups(mb_per_s: dict[Pairing, float]) -> list[CatchUp]:
    """Three rounds, the middle one of them as given."""
    found = []
    for factor in (0.5, 1, 9):
        for situation in (EMPTY, BEHIND):
            for pairing, speed in mb_per_s.items():
                seconds = 10 / (speed * factor)
                found.append(CatchUp(1024, situation, pairing, 10 * MB, seconds, 0.02, 0.05, 10 / (90 * factor)))
        found += [
            CatchUp(1024, yardstick, None, 10 * MB, 10 / (1000 * factor))
            for yardstick in (SENDFILE, SENDFILE_TO_FILE, SENDFILE_SPLICED)
        ]
    return found


@pytest.fixture
def figures() -> HaFigures:
    speeds = dict.fromkeys(PAIRINGS, 90.0) | {JAVA_TO_JAVA: 100.0, OURS_TO_OURS: 400.0}
    sync = [
        SyncSend(pairing, 500.0 if pairing == JAVA_TO_JAVA else 200.0, 900, 10_000 + 1000 * at, 1, 2, 3)
        for at, pairing in enumerate(PAIRINGS)
    ]
    kills = (Kill(0.01, 3.0), Kill(0.03, 29.0), Kill(0.02, 15.0))
    return HaFigures(tuple(catch_ups(speeds)), tuple(sync), kills)


def test_rows_are_medians_beside_java_and_the_bare_loop(figures: HaFigures) -> None:
    rows = {(row.situation, row.pairing): row for row in ha_report.catch_up_rows(figures.catch_ups)}
    ours = rows[EMPTY, OURS_TO_OURS.name]
    assert ours.mb_per_s == pytest.approx(400)
    assert ours.all_mb_per_s == (200, 400, 3600)
    assert ours.to_java == pytest.approx(4)
    assert ours.to_sendfile == pytest.approx(0.4)
    assert (ours.readable_mb_per_s, ours.readable_to_java) == (pytest.approx(90), pytest.approx(1))
    assert (ours.goal, ours.sendfile_goal) == (3.0, 0.6)
    assert (ours.master_ms_per_mb, ours.slave_ms_per_mb) == (pytest.approx(2), pytest.approx(5))
    assert rows[BEHIND, JAVA_TO_JAVA.name].to_java is None
    mixed = rows[BEHIND, PAIRINGS[2].name]
    assert (mixed.to_java, mixed.goal) == (pytest.approx(0.9), 1.0)
    assert rows[SENDFILE, ""].to_sendfile == pytest.approx(1)


def test_tables_show_goals(figures: HaFigures) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    ha_report.print_figures(figures, console)
    console.file.close()
    text = console.export_text()
    assert "4.00x (>= 3)" in text
    assert "0.40x (>= 0.6)" in text
    assert "0.90x (>= 1)" in text
    assert "0.40x (<= 0.6)" in text
    assert "1.10x (>= 1.3)" in text
    assert "15,000.0" in text
    assert "< 100" in text


def test_json_is_for_machines(figures: HaFigures) -> None:
    content = json.loads(ha_report.figures_json(figures))
    assert content["failover"]["ours"]["p50_ms"] == pytest.approx(20)
    assert content["failover"]["java"]["max_ms"] == pytest.approx(29_000)
    assert {row["pairing"] for row in content["sync"]} == {pairing.name for pairing in PAIRINGS}
    assert len(content["catch_up"]) == 2 * len(PAIRINGS) + 3
    assert set(json.loads(ha_report.figures_json(HaFigures((), (), ())))) == {"machine"}


@pytest.mark.parametrize("keep", list(Keep))
def test_the_bare_loop_moves_every_byte(tmp_path: Path, keep: Keep) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 20_000)
    size = 5_000_001
    into = tmp_path / "copy"
    assert 0 < send_file(source, size, tmp_path / "out", into, keep) < 30
    assert into.exists() == (keep is not Keep.NOTHING)
    if into.exists():
        assert into.read_bytes() == source.read_bytes()[:size]


def test_a_watch_sees_the_first_and_the_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    record = b"\0\0\0\x10MAGIC678\0\0\0\x01"

    def write(at: int) -> None:
        with log.open("r+b") as file:
            file.seek(at)
            file.write(record)

    # Whenever the watch looks again, the slave has come one step further.
    steps = iter(
        [
            lambda: None,
            lambda: log.write_bytes(bytes(4096)),
            lambda: write(0),
            lambda: None,
            lambda: write(len(record) * 2),
        ]
    )
    step_at: list[float] = []

    def pause(_child: Child, _deadline: float) -> None:
        next(steps)()
        step_at.append(time.perf_counter())

    with Child("sleeper", [sys.executable, "-c", "input()"], tmp_path / "out", pipes=True) as child:
        with monkeypatch.context() as patched:
            patched.setattr("triomq_benchmarks.ha.watching.pause", pause)
            first, last = LogWatch(log, child).wait(0, len(record) * 3)
        assert step_at[2] <= first <= step_at[3]
        assert step_at[4] <= last
        child.kill()
        with pytest.raises(ChildError, match="did not catch up"):
            LogWatch(log, child).wait(0, 4096)


def test_a_watch_sees_when_messages_can_be_read(tmp_path: Path) -> None:
    units = bytes.fromhex("0000000000000000 00000100 0000000000000000")
    for queue_id, written in ((0, 2), (2, 1)):
        file = tmp_path / "store" / "consumequeue" / "T" / str(queue_id) / f"{0:020d}"
        file.parent.mkdir(parents=True)
        file.write_bytes(units * written + bytes(200))
    with Child("sleeper", [sys.executable, "-c", "input()"], tmp_path / "out", pipes=True) as child:
        watch = QueueWatch(tmp_path, "T", child)
        assert watch.wait([2, 0, 1, 0]) <= time.perf_counter()
        child.kill()
        for missing in ([3, 0, 1, 0], [2, 1, 1, 0]):
            with pytest.raises(ChildError, match="did not catch up"):
                watch.wait(missing)


def test_a_home_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = []

    def measure(_parts: object, _kills: int, _quick: bool, _java: object, home: Path, _progress: object) -> None:
        homes.append(home)
        raise ha.LoadError("enough")

    monkeypatch.setattr(ha, "find_java", lambda: None)
    monkeypatch.setattr(ha, "measure", measure)
    done = CliRunner().invoke(bench, ["ha", "--home", str(tmp_path / "far" / "off")])
    assert (done.exit_code, done.stderr) == (1, "Error: enough\n")
    assert [home.parent for home in homes] == [tmp_path / "far" / "off"]


def test_parts_are_checked() -> None:
    done = CliRunner().invoke(bench, ["ha", "--part", "speed"])
    assert done.exit_code == 2
    assert "catch-up" in done.output
