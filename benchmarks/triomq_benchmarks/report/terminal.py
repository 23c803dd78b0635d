"""The end of a run on the command line: one table, targets side by side, the status of each; or one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from triomq_benchmarks.figures.intervals import HISTOGRAMS, Quantiles
from triomq_benchmarks.figures.run_files import as_dict
from triomq_benchmarks.figures.run_result import RunResult

TITLES = {
    "intended_to_ack": "intended → acknowledged",
    "actual_to_ack": "sent → acknowledged",
    "lateness": "lateness of the generator",
    "intended_to_consumed": "intended → consumed",
}


UNSUPPORTED = "~ says nothing about the broker: too few messages lie beyond it, or the load generator itself was late"


def as_object(results: Sequence[RunResult], folders: Sequence[Path], *, passed: bool) -> dict[str, Any]:
    """All runs, with the figures by second left to the files; and whether everything passed."""
    return {
        "runs": [{**as_dict(each), "folder": str(folder)} for each, folder in zip(results, folders, strict=True)],
        "passed": passed,
    }


def print_summary(results: Sequence[RunResult], folders: Sequence[Path], console: Console) -> None:
    """Print the table, and whether each run passed."""
    first = results[0]
    loop = "open loop" if first.loop == "open" else "CLOSED loop"
    table = Table(title=escape(f"{first.workload['name']}, {loop}, {first.engine}"), title_justify="left")
    table.add_column("")
    for each in results:
        table.add_column(escape(each.target) + (" (partial)" if each.partial else ""), justify="right")
    for title, cells in _counts(results):
        table.add_row(title, *cells)
    table.add_section()
    quantiles = [each.quantiles() for each in results]
    is_marked = False
    for name in HISTOGRAMS:
        unsupported = [each.unsupported(name) for each in results]
        is_marked = is_marked or any(unsupported)
        for short, field in (
            (f"{TITLES[name]}, ms: p50", "p50_ms"), ("    p99", "p99_ms"), ("    p99.9", "p999_ms"),
            ("    p99.99", "p9999_ms"), ("    max", "max_ms"),
        ):  # fmt: skip
            figures = [
                _figure(each[name], field, supported=field not in why)
                for each, why in zip(quantiles, unsupported, strict=True)
            ]
            table.add_row(short, *figures)
    console.print(table)
    if is_marked:
        console.print(Text(UNSUPPORTED, style="dim"))
    for each, folder in zip(results, folders, strict=True):
        _print_decision(each, folder, console)


def _counts(results: Sequence[RunResult]) -> list[tuple[str, list[str]]]:
    def counted(*names: str) -> list[str]:
        sums = [[sum(getattr(row, name) for row in each.rows) for name in names] for each in results]
        return [" / ".join(f"{total:,}" for total in each) for each in sums]

    def per_second(name: str) -> list[str]:
        return [f"{each.per_second(name):,.0f}" for each in results]

    rows = [
        ("sent / acknowledged / failed, with warm-up", counted("sent", "acked", "errors")),
        ("acknowledged per second", per_second("acked")),
        ("consumed per second", per_second("consumed")),
    ]
    if any(each.total("from_slave") for each in results):
        rows.append(("served by masters / by slaves", counted("from_master", "from_slave")))
    drained = ["-" if each.drained_s is None else f"{each.drained_s:.2f} s" for each in results]
    rows.append(("consumers had all, after the last send", drained))
    return rows


def _figure(quantiles: Quantiles, field: str, *, supported: bool) -> Text:
    if not quantiles.count:
        return Text("-")
    text = f"{getattr(quantiles, field):,.2f}"
    return Text(text) if supported else Text(f"~{text}", style="dim")


def _errors_by_kind(result: RunResult) -> Counter[str]:
    found: Counter[str] = Counter()
    for worker in result.workers:
        found.update(worker.error_counts)
    return found


def _audit_word(audit: Mapping[str, Any]) -> str:
    """What an audit found; one that could not see everything, and found nothing else, has not found a defect."""
    if audit.get("clean"):
        return "clean"
    if any(audit.get("counts", {}).values()):
        return "NOT clean, see audit.json"
    return f"incomplete, no defects found: {'; '.join(audit.get('notes', ()))}"


def _print_decision(result: RunResult, folder: Path, console: Console) -> None:
    decision = result.decision
    style = "green" if decision.passed else "bold red"
    console.print(Text(f"{result.target}: {decision.status.upper()}: {decision.explanation}", style=style))
    for note in decision.notes:
        console.print(Text(f"  {note}"))
    for fault in result.faults:
        until = "" if fault.until is None else f" until {fault.until:.2f} s"
        console.print(Text(f"  {fault.what} ({fault.node}) at {fault.second:.2f} s{until}"))
    for kind, count in _errors_by_kind(result).items():
        console.print(Text(f"  failed with {kind}: {count:,}"))
    for threshold in result.thresholds:
        console.print(
            Text(f"  {'kept  ' if threshold.passed else 'MISSED'} {threshold.text}: {threshold.measured_text}")
        )
    if result.audit is not None:
        console.print(Text(f"  audit: {_audit_word(result.audit)}"))
    console.print(Text(f"  files: {folder}", style="dim"), soft_wrap=True)
