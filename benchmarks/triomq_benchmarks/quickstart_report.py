"""How the quickstart looks: a progress bar on a terminal, a table at the end, or one JSON object for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from triomq_benchmarks.latency import summarise
from triomq_benchmarks.outcome import Outcome
from triomq_benchmarks.outcome import Progress as Report


@contextmanager
def progress_on(stream: TextIO, *, shown: bool) -> Iterator[Report]:
    """A function to tell of progress; it draws only on a terminal."""
    if not (shown and stream.isatty()):
        yield lambda _what, _done, _total: None
        return
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream)) as bars:
        tasks: dict[str, object] = {}

        def report(what: str, done: int, total: int | None) -> None:
            task = tasks.get(what)
            if task is None:
                task = tasks[what] = bars.add_task(what, total=total)
            bars.update(task, completed=done, total=total)  # type: ignore[arg-type]

        yield report


def figures(outcome: Outcome) -> dict[str, object]:
    """All figures with their units in their names."""
    latency = summarise(outcome.send_latency_ns)
    verdict = outcome.verdict
    assert verdict is not None
    return {
        "data": outcome.data,
        "rows": outcome.rows,
        "body_bytes": outcome.body_bytes,
        "acknowledged": verdict.acknowledged,
        "send_failures": outcome.send_failures,
        "sends_per_s": round(outcome.rows / outcome.send_s) if outcome.send_s else None,
        "send_p50_ms": round(latency.p50_us / 1000, 3),
        "send_p99_ms": round(latency.p99_us / 1000, 3),
        "catch_up_s": round(outcome.catch_up_s, 3),
        "replicated_bytes": outcome.replicated_bytes,
        "pulled": outcome.pulled,
        "pulls": outcome.pulls,
        "pulls_per_s": round(outcome.pulls / outcome.pull_s) if outcome.pull_s else None,
        "messages_pulled_per_s": round(outcome.pulled / outcome.pull_s) if outcome.pull_s else None,
        "served_by": sorted(outcome.served_by),
        "cluster_ready_s": round(outcome.cluster_ready_s, 3),
        "kill_to_first_message_s": round(outcome.first_message_s, 4),
        "total_s": round(outcome.total_s, 2),
        "missing": verdict.missing,
        "differing": verdict.differing,
        "repeated": verdict.repeated,
        "unknown": verdict.unknown,
        "clean": outcome.clean,
    }


def as_object(outcome: Outcome) -> str:
    """One JSON object."""
    return json.dumps(figures(outcome))


def table_of(outcome: Outcome) -> None:
    """Print the table and the verdict."""
    shown = figures(outcome)
    table = Table(title=f"triomq quickstart: {outcome.data}", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, text in (
        ("rows sent and acknowledged", f"{outcome.rows:,} / {shown['acknowledged']:,}"),
        ("body bytes", f"{outcome.body_bytes:,}"),
        ("sends per second", f"{shown['sends_per_s']:,}"),
        ("send latency p50 / p99", f"{shown['send_p50_ms']} ms / {shown['send_p99_ms']} ms"),
        ("replicated log bytes", f"{outcome.replicated_bytes:,}"),
        ("slave complete after the last send", f"{outcome.catch_up_s:.3f} s"),
        ("cluster ready to serve", f"{outcome.cluster_ready_s:.3f} s"),
        ("master killed to first message", f"{outcome.first_message_s * 1000:.1f} ms"),
        ("pulls per second", f"{shown['pulls_per_s']:,}"),
        ("messages pulled per second", f"{shown['messages_pulled_per_s']:,}"),
        ("lost / differing / twice / unknown", " / ".join(str(shown[key]) for key in ("missing", "differing", "repeated", "unknown"))),
        ("whole run", f"{outcome.total_s:.1f} s"),
    ):  # fmt: skip
        table.add_row(name, text)
    console = Console()
    console.print(table)
    if outcome.clean:
        console.print("Every message came back from the slave, once and as it was sent.", style="green")
    else:
        console.print("NOT every message came back once and as it was sent.", style="bold red")
