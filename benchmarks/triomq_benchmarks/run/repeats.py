"""Runs two sides in turns, A/B/B/A, each run in a separate child process.

A side may be another target, or another version of this package with the same command line. Existing runs are kept, so
that more rounds can be added later; one that was interrupted is made again.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import attrs
import trio

from triomq_benchmarks.figures.run_files import RunUnreadableError, is_run, read_run, run_folders
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.figures.turns import turns
from triomq_benchmarks.report.progress import Say
from triomq_benchmarks.run.targets import check_choice

SIDES = ("a", "b")
STOP_LIMIT_S = 15.0


class RepeatError(Exception):
    """A run of a side could not be made; the message quotes its output."""


@attrs.frozen
class SideChoice:
    """One side as given on the command line: `TARGET` or `TARGET@PYTHON`.

    Attributes:
        target: as for `triomq bench run --target`.
        python: the interpreter of the environment with the measured triomq.
    """

    target: str
    python: str

    @classmethod
    def parse(cls, text: str) -> SideChoice:
        """Parse it. Raises TargetError if it is not a target."""
        target, _, python = text.partition("@")
        check_choice(target)
        return cls(target, python or sys.executable)


@attrs.frozen(kw_only=True)
class RepeatPlan:
    """The runs to make.

    Attributes:
        sides: A and B.
        workload: name or file.
        changes: `KEY=VALUE` settings.
        folder: folder of the runs, below `a` and `b`.
        seed: seed of the first round; each round uses the next, for both sides, unless a side's run of it exists.
        audit: whether each message is recorded.
        environment: the environment of the runs, which may hold the secret of an account.
    """

    sides: tuple[SideChoice, SideChoice]
    workload: str
    changes: Sequence[str]
    folder: Path
    seed: int
    audit: bool
    environment: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ), repr=False)

    def run_folder(self, side: int, number: int) -> Path:
        """The folder of one run."""
        return self.folder / SIDES[side] / f"{number + 1:03d}"

    def command(self, side: int, number: int) -> list[str]:
        """The command that makes one run; it has the seed of the other side's run of the same round."""
        choice, other = self.sides[side], self.run_folder(1 - side, number)
        seed = read_run(other).seed if is_run(other) else self.seed + number
        changes = [part for change in self.changes for part in ("--set", change)]
        return [
            choice.python, "-m", "triomq_benchmarks", "run", self.workload, *changes, "--target", choice.target,
            "--seed", str(seed), "--audit" if self.audit else "--no-audit", "--json",
            "--out", str(self.run_folder(side, number)),
        ]  # fmt: skip


async def run_rounds(
    plan: RepeatPlan, rounds: int, news: Say, run: Callable[[Sequence[str]], Awaitable[None]] | None = None
) -> None:
    """Make the missing runs of `rounds` rounds, and those that are partial.

    Args:
        plan: the runs.
        rounds: total number of rounds.
        news: takes a line before each run.
        run: an asynchronous function that runs a command; default: as a child process.

    Raises:
        RepeatError: a run could not be made.
        RunUnreadableError: an existing run cannot be read.
    """
    for number, side in turns(range(len(SIDES)), rounds):
        folder = plan.run_folder(side, number)
        if is_run(folder):
            if not read_run(folder).partial:
                continue
            news(f"{folder} is of an interrupted run, which is made again")
            _remove(folder)
        news(f"round {number + 1} of {rounds}: {SIDES[side].upper()}, {plan.sides[side].target}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RepeatError(f"{folder.parent} cannot be made: {error.strerror}; give another --out") from error
        command = plan.command(side, number)
        await (run or functools.partial(_child, plan.environment))(command)
        if not is_run(folder):
            raise RepeatError(f"{' '.join(command)} left no result in {folder}")


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise RepeatError(f"{folder} cannot be removed: {error.strerror or error}; give another --out") from error


async def _child(environment: Mapping[str, str], command: Sequence[str]) -> None:
    """Run it to its end; a run that did not pass still has a result. Cancelling ends it in order."""
    # A separate session: a terminal's Ctrl-C is for this process, which then ends its child.
    try:
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise RepeatError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    assert process.stderr is not None
    said = bytearray()
    try:
        async for data in process.stderr:
            said = (said + data)[-4000:]
        code = await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            for end in (process.terminate, process.kill):
                if process.poll() is None:
                    end()
                    with trio.move_on_after(STOP_LIMIT_S):
                        await process.wait()
            await process.stderr.aclose()
    if code not in (0, 1) or (code == 1 and said.lower().startswith(b"error: ")):
        raise RepeatError(f"{' '.join(command)} ended with exit code {code}: {said.decode(errors='replace').strip()}")


def runs_below(folder: Path) -> dict[str, RunResult]:
    """The runs below a side's folder, by name. Raises RunUnreadableError if there are none, or one cannot be read."""
    found = {each.name: read_run(each) for each in run_folders(folder)}
    if not found:
        raise RunUnreadableError(f"{folder} holds no runs in folders of their own")
    return found


def paired(before: Mapping[str, RunResult], after: Mapping[str, RunResult]) -> tuple[list[RunResult], list[RunResult]]:
    """The runs of both sides with the same names, which were made in the same rounds."""
    names = sorted(before.keys() & after.keys())
    return [before[name] for name in names], [after[name] for name in names]
