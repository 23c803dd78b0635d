"""A run's files: written values are read back, and other files are refused."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_runs import made_run

from triomq_benchmarks.audit.ledger_tables import audit_folder
from triomq_benchmarks.figures.intervals import IntervalRow, encode, fold, new_histogram
from triomq_benchmarks.figures.ledger import folder_sink, open_ledger
from triomq_benchmarks.figures.resources import ResourceRow
from triomq_benchmarks.figures.run_files import (
    INTERVALS,
    RESOURCES,
    RESULT,
    FolderInUseError,
    RunUnreadableError,
    claimed,
    finite,
    read_audit,
    read_run,
    write_run,
)
from triomq_benchmarks.figures.run_result import (
    FORMAT,
    Decision,
    FaultInstant,
    RunResult,
    RunStatus,
    ThresholdResult,
    WorkerResult,
)
from triomq_benchmarks.run.one_run import this_machine, versions
from triomq_benchmarks.workload.workload import Threshold, Workload


def histogram(*microseconds: int) -> bytes:
    filled = new_histogram()
    for _ in fold(filled, microseconds):
        pass
    return encode(filled)


RUN = RunResult(
    run_id="0badcafe",
    started_at="2026-11-21T12:00:00+00:00",
    engine="processes 2",
    target="ours",
    target_details={"nodes": {"broker-a": {"role": "master"}}},
    workload=Workload(name="x", thresholds=(Threshold.parse("p99_ms < 5"),)).settings(),
    loop="open",
    versions=versions(),
    machine=this_machine(),
    seed=7,
    measured_s=20.0,
    partial=True,
    rows=(
        IntervalRow(worker=1, second=-1, sent=10, held_s=0.25),
        IntervalRow(worker=0, second=0, sent=10, backlog=3, intended_to_ack=histogram(1_000, 9_000)),
        IntervalRow(worker=-1, second=0, replication_lag_bytes=512),
    ),
    workers=(WorkerResult(worker=0, host="h", pid=1, failure="was killed", error_examples={"RequestTimeout": "t"}),),
    faults=(FaultInstant(what="kill master", node="broker-a", second=10.25),),
    thresholds=(ThresholdResult(text="drained_s < 5", measured=math.inf, passed=False),),
    decision=Decision(status=RunStatus.INCOMPLETE, explanation="worker 0 was killed", notes=("a note",)),
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write_run(RUN, tmp_path / "new")
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == [INTERVALS, RESOURCES, RESULT]
    again = read_run(tmp_path / "new")
    assert again.rows == RUN.rows
    assert attrs.evolve(again, rows=()) == attrs.evolve(RUN, rows=())
    assert again.quantiles()["intended_to_ack"].max_ms == pytest.approx(9, rel=0.01)


@pytest.mark.parametrize("name", [b"run-22:30", b"file:run", b"r\xff"], ids=["time", "file", "not UTF-8"])
def test_the_name_of_a_folder_is_no_uri_and_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(os.fsdecode(name))
    write_run(RUN, folder)
    assert read_run(folder).rows == RUN.rows
    with open_ledger(folder_sink(folder), worker=0, workers=1, groups=["g"]) as ledger:
        ledger.acknowledged(1, "t", "broker-a", 0, 0, 7)
        ledger.consumed(1, "t", "broker-a", 0, 0, 7, "g")
    assert audit_folder(folder).clean


def test_the_json_is_json(tmp_path: Path) -> None:
    write_run(RUN, tmp_path)
    plain = json.loads((tmp_path / RESULT).read_text(), parse_constant=pytest.fail)
    assert plain["partial"] is True
    assert plain["thresholds"][0]["measured"] is None
    assert plain["quantiles"]["intended_to_ack"]["count"] == 2
    assert "rows" not in plain
    assert "python" in plain["versions"]
    assert plain["machine"]["cpus"] >= 1


def test_numbers_that_json_does_not_have_become_null() -> None:
    plain = {"a": math.inf, "b": [-math.inf, 1.5, (math.nan, "x")], "c": {"d": 2}}
    assert finite(plain) == {"a": None, "b": [None, 1.5, [None, "x"]], "c": {"d": 2}}


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunUnreadableError, match="holds no run: No such file"):
        read_run(tmp_path)
    write_run(RUN, tmp_path / "ours")
    with pytest.raises(RunUnreadableError, match=r"several runs in it: .*ours"):
        read_run(tmp_path)
    result = tmp_path / "ours" / RESULT
    whole = result.read_text()
    result.write_text(whole.replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(RunUnreadableError, match="another format"):
        read_run(tmp_path / "ours")
    result.write_text(whole[:100])
    with pytest.raises(RunUnreadableError, match="is damaged"):
        read_run(tmp_path / "ours")
    result.write_text("[" * 30_000)
    with pytest.raises(RunUnreadableError, match="is damaged"):
        read_run(tmp_path / "ours")
    result.write_text(whole)
    (tmp_path / "ours" / INTERVALS).write_bytes(b"nonsense")
    with pytest.raises(RunUnreadableError, match="is damaged"):
        read_run(tmp_path / "ours")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("machine", 3, "Expected `object`, got `int` - at `$.machine`"),
        ("started_at", 5, "Expected `str`, got `int` - at `$.started_at`"),
        ("measured_s", None, "Expected `float`, got `null` - at `$.measured_s`"),
        ("measured_s", math.inf, "measured_s is no number of seconds"),
        ("measured_s", 1e12, "measured_s is no number of seconds of a run"),
        ("measured_s", -1, "measured_s is no number of seconds of a run"),
        ("versions", {"triomq": 1}, "Expected `str`, got `int` - at `$.versions"),
        ("workload", "quick", "Expected `object`, got `str` - at `$.workload`"),
        ("workers", [{"worker": 0, "host": "h", "pid": 1, "sent": "many"}], "got `str` - at `$.workers[0].sent`"),
        ("decision", {"status": "fine", "explanation": ""}, "Invalid enum value 'fine' - at `$.decision.status`"),
        ("target_details", {"nodes": ["broker-a"]}, "got `array` - at `$.target_details.nodes`"),
        ("audit", {"counts": {"lost": "none"}}, "Expected `int`, got `str` - at `$.audit.counts"),
        ("surroundings", None, "Expected `object`, got `null` - at `$.surroundings`"),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, field: str, value: object, said: str) -> None:
    write_run(RUN, tmp_path)
    edited = {**json.loads((tmp_path / RESULT).read_text()), field: value}
    (tmp_path / RESULT).write_text(json.dumps(edited))
    with pytest.raises(RunUnreadableError, match=re.escape(f"the run in {tmp_path} is damaged: ")) as caught:
        read_run(tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["[]", '{"counts": {"lost": null}}', "{", "[" * 30_000])
def test_an_audit_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.json"
    with pytest.raises(FileNotFoundError):
        read_audit(path)
    path.write_text(text)
    with pytest.raises(RunUnreadableError, match=re.escape(f"{path} is damaged: ")):
        read_audit(path)


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with (
        pytest.raises(FolderInUseError, match="it cannot be made: No such file or directory"),
        claimed(Path("/proc/x")),
    ):
        pass


def test_a_table_of_types_that_arrow_does_not_have_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow finds these in some damaged schemas, where it depends on its version."""

    def refuse(_file: object) -> None:
        raise pa.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    write_run(made_run(), tmp_path)
    monkeypatch.setattr(pq, "read_table", refuse)
    with pytest.raises(RunUnreadableError, match=re.escape(f"the run in {tmp_path} is damaged: ") + ".*64 bits"):
        read_run(tmp_path)


@pytest.mark.parametrize("part", [slice(0), slice(8), slice(40), slice(None, -4)], ids=["none", "few", "header", "end"])
def test_a_histogram_that_lost_bytes_is_named(tmp_path: Path, part: slice) -> None:
    write_run(made_run(), tmp_path)
    rows = pq.read_table(tmp_path / INTERVALS)
    damaged = [each and (each[part] or b"junk") for each in rows["intended_to_ack"].to_pylist()]
    at = rows.column_names.index("intended_to_ack")
    pq.write_table(rows.set_column(at, "intended_to_ack", pa.array(damaged)), tmp_path / INTERVALS)
    with pytest.raises(RunUnreadableError, match=re.escape(f"the run in {tmp_path} is damaged: ")):
        read_run(tmp_path)


@pytest.mark.parametrize("at", [0, 4, 10])
def test_a_histogram_whose_first_bytes_have_changed_is_named(tmp_path: Path, at: int) -> None:
    write_run(made_run(), tmp_path)
    rows = pq.read_table(tmp_path / INTERVALS)
    damaged = [each and each[:at] + b"z" + each[at + 1 :] for each in rows["intended_to_ack"].to_pylist()]
    assert damaged != rows["intended_to_ack"].to_pylist()
    column = rows.column_names.index("intended_to_ack")
    pq.write_table(rows.set_column(column, "intended_to_ack", pa.array(damaged)), tmp_path / INTERVALS)
    with pytest.raises(RunUnreadableError, match=re.escape(f"the run in {tmp_path} is damaged: ")):
        read_run(tmp_path)


@pytest.mark.parametrize("second", [10**12, -(10**12)])
def test_a_row_of_a_second_that_no_run_has_is_named(tmp_path: Path, second: int) -> None:
    """A page would draw all seconds up to it."""
    for changed in (
        attrs.evolve(RUN, rows=(*RUN.rows, IntervalRow(worker=0, second=second))),
        attrs.evolve(RUN, resources=(ResourceRow(who="broker-a", second=second, cpu_cores=1.0, memory_bytes=1),)),
    ):
        write_run(changed, tmp_path)
        with pytest.raises(RunUnreadableError, match=f"is damaged: .*a row is of second {second}"):
            read_run(tmp_path)
