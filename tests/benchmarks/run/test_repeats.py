"""Two sides in turns: the order of runs, the kept ones, and the comparison's result."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result
from made_runs import made_run

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.figures.run_files import write_run
from triomq_benchmarks.figures.run_result import RunResult, RunStatus
from triomq_benchmarks.report.repeated_comparison import PRIMARY, RepeatedComparison, compare_repeats
from triomq_benchmarks.report.run_comparison import Change
from triomq_benchmarks.run.repeats import RepeatError, RepeatPlan, SideChoice, paired, run_rounds, runs_below
from triomq_benchmarks.run.targets import TargetError


def plan_in(folder: Path, **others: object) -> RepeatPlan:
    given: dict[str, object] = {
        "sides": (SideChoice.parse("ours"), SideChoice.parse("java@/other/python")),
        "workload": "quick", "changes": ["rate=9/s"], "folder": folder, "seed": 40, "audit": False, **others,
    }  # fmt: skip
    return RepeatPlan(**given)  # type: ignore[arg-type]


def test_sides() -> None:
    assert SideChoice.parse("ours") == SideChoice("ours", sys.executable)
    assert SideChoice.parse("1.2.3.4:9876@py") == SideChoice("1.2.3.4:9876", "py")
    with pytest.raises(TargetError, match="must be ours, java"):
        SideChoice.parse("nothing")


async def test_sides_take_turns_and_what_is_there_is_kept(tmp_path: Path) -> None:
    plan, made, said = plan_in(tmp_path), list[Sequence[str]](), list[str]()

    async def run(command: Sequence[str]) -> None:
        made.append(command)
        write_run(made_run(seed=int(command[command.index("--seed") + 1])), Path(command[-1]))

    await run_rounds(plan, 2, said.append, run)
    assert [Path(command[-1]).relative_to(tmp_path).as_posix() for command in made] == [
        "a/001",
        "b/001",
        "b/002",
        "a/002",
    ]
    first, second = made[:2]
    assert first[:5] == [sys.executable, "-m", "triomq_benchmarks", "run", "quick"]
    assert second[0] == "/other/python"
    # Both sides of a round have the same seed.
    assert [command[command.index("--seed") + 1] for command in made] == ["40", "40", "41", "41"]
    assert {"--no-audit", "rate=9/s"} <= set(first)
    assert said[1] == "round 1 of 2: B, java"
    await run_rounds(plan, 3, said.append, run)
    assert [Path(command[-1]).name for command in made[4:]] == ["003", "003"]
    before, after = paired(runs_below(tmp_path / "a"), {"002": made_run(), "007": made_run()})
    assert (len(before), len(after)) == (1, 1)


async def test_an_interrupted_run_is_made_again(tmp_path: Path) -> None:
    plan, made, said = plan_in(tmp_path), list[Sequence[str]](), list[str]()

    async def run(command: Sequence[str]) -> None:
        made.append(command)
        write_run(made_run(seed=int(command[command.index("--seed") + 1])), Path(command[-1]))

    write_run(made_run(partial=True), tmp_path / "a" / "001")
    (tmp_path / "a" / "001" / "report.html").touch()
    write_run(made_run(seed=7), tmp_path / "b" / "001")
    write_run(made_run(seed=8), tmp_path / "a" / "002")
    await run_rounds(plan, 2, said.append, run)
    assert [Path(command[-1]).relative_to(tmp_path).as_posix() for command in made] == ["a/001", "b/002"]
    assert said[0] == f"{tmp_path / 'a' / '001'} is of an interrupted run, which is made again"
    assert not (tmp_path / "a" / "001" / "report.html").exists()
    # Both sides of a round have the same seed, also when a comparison is continued with another.
    assert [run.seed for side in "ab" for run in runs_below(tmp_path / side).values()] == [7, 8, 7, 8]


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/nowhere/python", "/nowhere/python cannot be run: No such file"),
        ("false", "left no result in"),
        ("cat", "ended with exit code|left no result"),
    ],
)
async def test_a_run_that_cannot_be_made_is_an_error(python: str, says: str, tmp_path: Path) -> None:
    choice = SideChoice("ours", python)
    with pytest.raises(RepeatError, match=says):
        await run_rounds(plan_in(tmp_path, sides=(choice, choice)), 1, lambda _text: None)


@pytest.mark.parametrize("word", ["Error", "error"])
async def test_the_output_of_a_failed_run_is_quoted(word: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{word}: no name server at 1.2.3.4' >&2\nexit 1\n")
    python.chmod(0o700)
    choice = SideChoice("ours", str(python))
    with pytest.raises(RepeatError, match=f"ended with exit code 1: {word}: no name server at 1.2.3.4"):
        await run_rounds(plan_in(tmp_path, sides=(choice, choice)), 1, lambda _text: None)


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RepeatError, match=r"file/a cannot be made: Not a directory; give another --out"):
        await run_rounds(plan_in(tmp_path / "file"), 1, lambda _text: None)


def scattered(count: int, *, slower: float = 1.0, seed: int = 1, **others: object) -> list[RunResult]:
    """Runs whose sends take a few percent more or less."""
    chance = random.Random(seed)
    return [
        made_run(slower=slower * chance.lognormvariate(0, 0.03), seed=seed * 1000 + number, per_second=60, **others)  # type: ignore[arg-type]
        for number in range(count)
    ]


def change_of(comparison: RepeatedComparison, name: str = PRIMARY) -> Change:
    return next(each.change for each in comparison.measures if each.name == name)


def test_a_slower_side_is_worse() -> None:
    before, after = scattered(12), scattered(12, slower=1.2, seed=2)
    comparison = compare_repeats(before, after)
    assert (comparison.result, comparison.exit_code, comparison.rounds) == ("worse", 1, 12)
    assert change_of(comparison) is Change.WORSE
    assert compare_repeats(after, before).result == "better"
    assert compare_repeats(before, after, tolerance=0.5).exit_code == 0
    few = compare_repeats(before[:5], after[:5])
    assert (few.result, few.exit_code, few.rounds_needed) == ("unclear", 0, 10)


def test_the_same_is_the_same() -> None:
    comparison = compare_repeats(scattered(20), scattered(20, seed=2), wanted=0.15)
    assert (comparison.result, comparison.exit_code) == ("same", 0)
    assert comparison.rounds_needed <= 20
    assert {"CPU of servers, cores", "acknowledged per second", "failed sends", "lost"} < {
        each.name for each in comparison.measures
    }


def test_a_lost_message_is_not_attributed_to_chance() -> None:
    before = scattered(3)
    comparison = compare_repeats(before, [*scattered(2, seed=2), made_run(lost=1, per_second=60)])
    assert (comparison.exit_code, change_of(comparison, "lost")) == (1, Change.WORSE)


def test_rounds_without_information_are_left_out() -> None:
    before, after = scattered(3), scattered(2, seed=2)
    late = made_run(status=RunStatus.GENERATOR_LATE, per_second=60)
    comparison = compare_repeats(before, [*after, late])
    assert (comparison.rounds, comparison.obstacles) == (2, ())
    assert comparison.left_out[0].startswith("round 3: B had a late load generator")
    assert compare_repeats(before, [*after, late], force=True).rounds == 3
    assert compare_repeats([late], [late]).exit_code == 2
    other = compare_repeats(before, scattered(3, body_bytes=99))
    assert (other.exit_code, other.differences) == (2, ("body_bytes: 1024 -> 99",))


def test_what_the_sides_ran_on_is_recorded() -> None:
    nodes = {"nodes": {"broker-a": {"role": "master", "version": "V4_9_7"}, "namesrv-0": {"role": "namesrv"}}}
    runs = [attrs.evolve(run, target_details=nodes) for run in scattered(2)]
    side, _ = compare_repeats(runs, runs).sides
    assert (side.target, side.load_average, side.servers_cpu_cores, side.generators_cpu_cores) == (
        "ours",
        0.5,
        0.5,
        0.25,
    )
    assert side.versions == {"triomq": "0.1.0", "python": "3.11", "server broker-a": "V4_9_7"}
    bare = attrs.evolve(runs[0], resources=(), surroundings={}, target_details={})
    assert compare_repeats([bare], [bare]).sides[0].servers_cpu_cores is None


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(bench, ["compare", *arguments], catch_exceptions=False)


def test_the_command_compares_folders_of_runs(tmp_path: Path) -> None:
    for side, runs in (("a", scattered(12)), ("b", scattered(12, slower=1.2, seed=2))):
        for number, run in enumerate(runs):
            write_run(run, tmp_path / side / f"{number:03d}")
    done = compare(str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.exit_code == 1
    assert "12 rounds, A and B in each" in done.stdout
    assert "load average" in done.stdout
    assert "a difference of 5 % of the median is found with" in done.stdout
    assert done.stdout.endswith("result: worse\n")
    found = json.loads(compare(str(tmp_path / "a"), str(tmp_path / "b"), "--json").stdout)
    assert (found["result"], found["exit_code"], found["rounds"]) == ("worse", 1, 12)
    assert found["measures"][0]["difference"]["is_real"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ours", "foo", "--repeat", "1"], "must be ours, java"),
        (["ours", "ours", "--repeat", "0"], "0 rounds are none"),
        (["ours", "ours", "--repeat", "some"], "neither a number nor `enough`"),
        (["ours", "ours", "--repeat", "1", "--workload", "quik"], "did you mean quick?"),
        (["ours", "ours", "--repeat", "1", "--set", "rat=1"], "did you mean rate?"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    done = compare(*arguments)
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr
