"""The end of a run on the command line."""

from __future__ import annotations

import io
from pathlib import Path

import attrs
import pytest
from made_runs import made_run
from rich.console import Console

from triomq_benchmarks.audit.checks import Defect, Findings
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.report.terminal import UNSUPPORTED, print_summary


def summary_of(run: RunResult) -> list[str]:
    out = io.StringIO()
    print_summary([run], [Path("folder")], Console(file=out, width=160))
    return out.getvalue().splitlines()


def test_figures_that_do_not_describe_the_broker_are_marked() -> None:
    lines = summary_of(made_run(per_second=200))
    first = next(number for number, line in enumerate(lines) if "intended → acknowledged, ms: p50" in line)
    marked = ["~" in line for line in lines[first : first + 5]]
    assert marked == [False, False, True, True, False]
    assert UNSUPPORTED in lines
    assert UNSUPPORTED not in summary_of(attrs.evolve(made_run(), rows=()))


def test_rates_of_a_run_that_was_cut_short_are_those_of_its_seconds() -> None:
    run = made_run(partial=True)
    half = attrs.evolve(run, rows=tuple(row for row in run.rows if row.second < 5))
    (line,) = [line for line in summary_of(half) if "acknowledged per second" in line]
    assert line.split()[-2] == "500"


def test_brackets_in_names_are_no_markup() -> None:
    run = made_run()
    named = attrs.evolve(run, workload={**run.workload, "name": "reads[/2]"}, target="[bold]ours[/x]")
    lines = summary_of(named)
    assert lines[0].startswith("reads[/2], ")
    assert any("[bold]ours[/x]" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        (Findings(), "clean"),
        (Findings(counts=dict.fromkeys(Defect, 0) | {Defect.LOST: 2}, notes=("x",)), "NOT clean, see audit.json"),
        (Findings(notes=("the ledger has no end", "one more")), "incomplete, no defects found: the ledger has no end; one more"),
    ],
)  # fmt: skip
def test_an_audit_that_could_not_see_everything_has_found_nothing(findings: Findings, line: str) -> None:
    assert f"  audit: {line}" in summary_of(attrs.evolve(made_run(), audit=findings.as_dict()))
