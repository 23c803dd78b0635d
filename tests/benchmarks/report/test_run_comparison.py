"""Comparison of two runs: same, worse, better, unclear, not comparable; and the command's output and exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result
from made_runs import PER_SECOND, made_run

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_files import RESULT, write_run
from triomq_benchmarks.figures.run_result import RunResult, RunStatus
from triomq_benchmarks.report.repeated_comparison import compare_repeats
from triomq_benchmarks.report.run_comparison import (
    STRETCHES,
    Change,
    RunComparison,
    _stretches,
    change_of,
    compare_runs,
)


def calm(run: RunResult) -> RunResult:
    """Without the two seconds in which the master did not respond: two others replace them."""
    instead = {8: 6, 9: 7}
    by_place = {(row.worker, row.second): row for row in run.rows}
    rows = (
        attrs.evolve(by_place[row.worker, instead.get(row.second, row.second)], second=row.second) for row in run.rows
    )
    return attrs.evolve(run, rows=tuple(rows))


def measured_change(comparison: RunComparison, name: str) -> Change:
    (found,) = (each.change for each in comparison.measures if each.name == name)
    return found


@pytest.mark.parametrize(
    ("ratio", "low", "high", "smaller_is_better", "change"),
    [
        (1.0, 1.0, 1.0, True, Change.SAME),
        (1.1, 1.05, 1.2, True, Change.SAME),
        (0.91, 0.9, 0.95, True, Change.SAME),
        (1.2, 1.1, 1.3, True, Change.WORSE),
        (1.2, 1.1, 1.3, False, Change.BETTER),
        (0.8, 0.7, 0.9, True, Change.BETTER),
        (0.8, 0.7, 0.9, False, Change.WORSE),
        (1.2, 0.99, 1.5, True, Change.UNCLEAR),
        (0.8, 0.5, 1.0, False, Change.UNCLEAR),
    ],
)
def test_a_ratio_counts_beyond_tolerance_and_chance(
    ratio: float, low: float, high: float, smaller_is_better: bool, change: Change
) -> None:
    assert change_of(ratio, low, high, 0.1, smaller_is_better=smaller_is_better) is change


def test_the_same_load_again_is_the_same() -> None:
    comparison = compare_runs(made_run(seed=1), made_run(seed=2))
    assert (comparison.result, comparison.exit_code) == ("same", 0)
    assert {each.change for each in comparison.measures} == {Change.SAME}
    names = [each.name for each in comparison.measures]
    assert names[:3] == ["send p50, ms", "send p99, ms", "send p99.9, ms"]
    assert {"acknowledged per second", "consumed per second", "failed sends", "lost"} < set(names)
    p50 = comparison.measures[0]
    assert p50.low is not None
    assert p50.high is not None
    assert p50.low <= p50.after / p50.before <= p50.high


@pytest.mark.parametrize(("slower", "result", "code"), [(2.0, "worse", 1), (0.5, "better", 0)])
def test_slower_is_worse_and_faster_is_better(slower: float, result: str, code: int) -> None:
    comparison = compare_runs(made_run(seed=1), made_run(slower=slower, seed=2))
    assert (comparison.result, comparison.exit_code) == (result, code)
    assert measured_change(comparison, "send p50, ms") is Change(result)
    assert comparison.measures[0].ratio == pytest.approx(slower, rel=0.1)


def test_a_wide_tolerance_lets_it_pass() -> None:
    assert compare_runs(made_run(), made_run(slower=1.3, seed=2)).exit_code == 1
    assert compare_runs(made_run(), made_run(slower=1.3, seed=2), tolerance=0.5).exit_code == 0


def test_a_single_stall_may_be_chance() -> None:
    run = made_run()
    comparison = compare_runs(calm(run), run)
    assert measured_change(comparison, "send p99, ms") is Change.UNCLEAR
    assert measured_change(comparison, "send p50, ms") is Change.SAME
    assert (comparison.result, comparison.exit_code) == ("same", 0)


def test_less_throughput_is_worse_and_silence_is_not_left_out() -> None:
    run = made_run()
    half = attrs.evolve(run, rows=tuple(row for row in run.rows if row.second % 2))
    comparison = compare_runs(run, half)
    rate = next(each for each in comparison.measures if each.name == "acknowledged per second")
    assert (rate.ratio, rate.change) == (0.5, Change.WORSE)


def test_consumers_that_got_nothing_are_worse() -> None:
    run = made_run()
    rows = tuple(attrs.evolve(row, consumed=0, intended_to_consumed=b"") for row in run.rows)
    comparison = compare_runs(run, attrs.evolve(run, rows=rows))
    assert measured_change(comparison, "consumed per second") is Change.WORSE
    assert measured_change(compare_runs(attrs.evolve(run, rows=rows), run), "consumed per second") is Change.BETTER


@pytest.mark.parametrize("fault", [{"errors": 1}, {"lost": 1}])
def test_each_failed_or_lost_message_counts(fault: dict[str, int]) -> None:
    assert compare_runs(made_run(), made_run(**fault)).result == "worse"
    assert compare_runs(made_run(**fault), made_run()).result == "better"
    assert compare_runs(made_run(**fault), made_run(slower=3.0)).result == "mixed"


def test_the_target_may_differ_the_workload_may_not() -> None:
    java = compare_runs(made_run(), made_run(target="java"))
    assert (java.exit_code, java.circumstances) == (0, ("target: ours -> java",))
    larger = compare_runs(made_run(), made_run(body_bytes=2048))
    assert (larger.result, larger.exit_code) == ("not comparable", 2)
    assert larger.differences == ("body_bytes: 1024 -> 2048",)
    assert compare_runs(made_run(), made_run(body_bytes=2048), force=True).exit_code == 0


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (made_run(partial=True, status=RunStatus.INCOMPLETE), "is partial"),
        (made_run(status=RunStatus.INCOMPLETE), "is incomplete: "),
        (made_run(status=RunStatus.GENERATOR_LATE), "had a late load generator"),
        (
            attrs.evolve(made_run(), decision=attrs.evolve(made_run().decision, is_late=True)),
            "had a late load generator",
        ),
    ],
    ids=["partial", "a fault was not done", "late generator", "late generator beside another cause"],
)
def test_figures_that_do_not_describe_a_broker_are_not_compared(run: RunResult, why: str) -> None:
    for comparison, name in ((compare_runs(run, made_run()), "A"), (compare_runs(made_run(), run), "B")):
        assert comparison.exit_code == 2
        (obstacle,) = comparison.obstacles
        assert obstacle.startswith(f"run {name} {why}")
    assert compare_runs(made_run(), run, force=True).exit_code == 0


def test_long_runs_are_drawn_in_stretches() -> None:
    assert [list(each) for each in _stretches([1, 2, 3])] == [[1], [2], [3]]
    stretches = _stretches(range(601))
    assert len(stretches) == STRETCHES
    assert [second for stretch in stretches for second in stretch] == list(range(601))
    assert {len(stretch) for stretch in stretches} == {10, 11}


def cut_short(run: RunResult) -> RunResult:
    """An interrupted run: its last second is a fifth of a second long."""
    rows = (row if row.second < 10 else attrs.evolve(row, acked=row.acked // 5) for row in run.rows if row.second <= 10)
    return attrs.evolve(run, partial=True, ended_s=10.2, rows=tuple(rows))


def half_a_second_more(run: RunResult) -> RunResult:
    """A measured part of 2.5 s."""
    rows = (row if row.second < 2 else attrs.evolve(row, acked=row.acked // 2) for row in run.rows if row.second <= 2)
    return attrs.evolve(run, measured_s=2.5, rows=tuple(rows))


@pytest.mark.parametrize("shortened", [cut_short, half_a_second_more])
def test_rates_are_by_the_actual_length(shortened: Callable[[RunResult], RunResult]) -> None:
    whole = made_run()
    short = shortened(whole)
    (rate,) = (each for each in compare_runs(whole, short, force=True).measures if each.name.startswith("acknowledged"))
    assert (rate.before, rate.after) == (PER_SECOND, pytest.approx(PER_SECOND))
    assert rate.low <= 1 <= rate.high
    repeated = compare_repeats([whole], [short], force=True).measures
    (again,) = (each for each in repeated if each.name.startswith("acknowledged"))
    assert (again.before, again.after) == (PER_SECOND, pytest.approx(PER_SECOND))


def test_repeats_compare_the_audits_of_rounds_that_have_two() -> None:
    lost, clean = made_run(lost=3), made_run()
    not_audited = attrs.evolve(clean, audit=None)
    for before, after in (([lost], [not_audited]), ([not_audited], [lost])):
        assert not [each for each in compare_repeats(before, after).measures if each.name == "lost"]
    measures = compare_repeats([clean, clean, lost], [lost, not_audited, not_audited]).measures
    (found,) = (each for each in measures if each.name == "lost")
    assert (found.before, found.after, found.change) == (0, 3, Change.WORSE)


@pytest.mark.parametrize("seconds", [(1, 1), (1, 20), (20, 1)])
def test_a_single_second_shows_nothing_about_chance(seconds: tuple[int, int]) -> None:
    runs = made_run(seed=2), made_run(seed=2, per_second=PER_SECOND // 2, errors=1)
    before, after = (
        attrs.evolve(
            run, workload={}, measured_s=float(length), rows=tuple(row for row in run.rows if row.second < length)
        )
        for run, length in zip(runs, seconds, strict=True)
    )
    compared = compare_runs(before, after)
    assert measured_change(compared, "acknowledged per second") is Change.UNCLEAR
    assert {each.low for each in compared.measures} == {None}
    assert compared.exit_code == after.total("errors")  # counts need no scatter


def test_runs_without_anything_are_the_same() -> None:
    empty = attrs.evolve(made_run(), rows=(IntervalRow(worker=0, second=-1),), audit=None)
    comparison = compare_runs(empty, empty)
    assert ([each.name for each in comparison.measures], comparison.exit_code) == (["failed sends"], 0)


def written(folder: Path, **runs: RunResult) -> None:
    for name, run in runs.items():
        write_run(run, folder / name)


def compare(folder: Path, *arguments: str) -> Result:
    paths = [str(folder / each) if not each.startswith("-") else each for each in arguments]
    return CliRunner().invoke(bench, ["compare", *paths], catch_exceptions=False)


def test_the_command(tmp_path: Path) -> None:
    written(tmp_path, a=made_run(), b=made_run(slower=2.0, seed=2), other=made_run(body_bytes=99, target="java"))
    same = compare(tmp_path, "a", "a")
    assert same.exit_code == 0
    assert same.stdout.endswith("result: same\n")
    assert same.stdout.startswith(f"A: {tmp_path / 'a'}\nB: {tmp_path / 'a'}\n")
    worse = compare(tmp_path, "a", "b")
    assert worse.exit_code == 1
    assert "send p50, ms" in worse.stdout
    assert worse.stdout.endswith("result: worse\n")
    assert compare(tmp_path, "b", "a").exit_code == 0
    assert compare(tmp_path, "a", "b", "--tolerance=9").exit_code == 0
    other = compare(tmp_path, "a", "other")
    assert other.exit_code == 2
    assert "not the same: body_bytes: 1024 -> 99" in other.stdout
    assert "not the same: target: ours -> java" in other.stdout
    assert "--force compares them anyway" in other.stdout
    assert compare(tmp_path, "a", "other", "--force").exit_code == 0


def test_the_command_for_machines(tmp_path: Path) -> None:
    written(tmp_path, a=made_run(), b=made_run(slower=2.0, seed=2))
    done = compare(tmp_path, "a", "b", "--json")
    output = json.loads(done.stdout)
    assert (done.exit_code, output["exit_code"], output["result"]) == (1, 1, "worse")
    first = output["measures"][0]
    assert (first["name"], first["change"]) == ("send p50, ms", "worse")
    assert first["low"] < first["ratio"] < first["high"]
    assert output["obstacles"] == []


def test_no_run_is_no_comparison(tmp_path: Path) -> None:
    written(tmp_path, a=made_run())
    done = compare(tmp_path, "a", "nowhere")
    assert done.exit_code == 2
    assert "holds no run" in done.stderr


def test_a_folder_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    written(tmp_path, a=made_run())
    written(tmp_path / "all", one=made_run())
    # Permissions do not bind every user that runs tests.
    (tmp_path / "all" / "two").mkdir()
    (tmp_path / "all" / "two" / RESULT).symlink_to(RESULT)
    reason = "all/two cannot be read: Too many levels of symbolic links"
    for arguments in (["compare", "a", "all/two"], ["compare", "all", "all"], ["report", "all"]):
        command, *folders = arguments
        done = CliRunner().invoke(bench, [command, *(str(tmp_path / each) for each in folders)], catch_exceptions=False)
        assert done.exit_code == (2 if command == "compare" else 1)
        assert reason in done.stderr


def test_a_target_that_is_none_is_wrong_usage() -> None:
    done = CliRunner().invoke(bench, ["run", "quick", "--target", "foo"], catch_exceptions=False)
    assert (done.exit_code, "must be ours, java, java-5.5.0, or name servers" in done.stderr) == (2, True)
