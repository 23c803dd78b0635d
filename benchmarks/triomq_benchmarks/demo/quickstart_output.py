"""The quickstart's output: a progress bar on a terminal, a table at the end, or one JSON object for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from triomq_benchmarks.demo.quickstart_figures import Progress as Report
from triomq_benchmarks.demo.quickstart_figures import QuickstartFigures
from triomq_benchmarks.figures.latency import summarise


@contextmanager
def progress_on(stream: TextIO, *, shown: bool) -> Iterator[Report]:
    """A function that shows progress; it draws only on a terminal."""
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


def as_dict(figures: QuickstartFigures) -> dict[str, object]:
    """All figures with their units in their names."""
    latency = summarise(figures.send_latency_ns)
    comparison = figures.comparison
    assert comparison is not None
    return {
        "data": figures.data,
        "rows": figures.rows,
        "body_bytes": figures.body_bytes,
        "acknowledged": comparison.acknowledged,
        "send_failures": figures.send_failures,
        "first_send_failure": figures.first_send_failure or None,
        "sends_per_s": round(figures.rows / figures.send_s) if figures.send_s else None,
        "send_p50_ms": round(latency.p50_us / 1000, 3),
        "send_p99_ms": round(latency.p99_us / 1000, 3),
        "catch_up_s": round(figures.catch_up_s, 3),
        "replicated_bytes": figures.replicated_bytes,
        "pulled": figures.pulled,
        "pulls": figures.pulls,
        "pulls_per_s": round(figures.pulls / figures.pull_s) if figures.pull_s else None,
        "messages_pulled_per_s": round(figures.pulled / figures.pull_s) if figures.pull_s else None,
        "served_by": sorted(figures.served_by),
        "cluster_ready_s": round(figures.cluster_ready_s, 3),
        "kill_to_first_message_s": round(figures.first_message_s, 4),
        "total_s": round(figures.total_s, 2),
        "missing": comparison.missing,
        "differing": comparison.differing,
        "repeated": comparison.repeated,
        "unknown": comparison.unknown,
        "clean": figures.clean,
    }


def as_object(figures: QuickstartFigures) -> str:
    """One JSON object."""
    return json.dumps(as_dict(figures))


def table_of(figures: QuickstartFigures) -> None:
    """Print the table and the comparison."""
    shown = as_dict(figures)
    table = Table(title=f"triomq quickstart: {figures.data}", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, text in (
        ("rows sent and acknowledged", f"{figures.rows:,} / {shown['acknowledged']:,}"),
        ("body bytes", f"{figures.body_bytes:,}"),
        ("sends per second", f"{shown['sends_per_s']:,}"),
        ("send latency p50 / p99", f"{shown['send_p50_ms']} ms / {shown['send_p99_ms']} ms"),
        ("replicated log bytes", f"{figures.replicated_bytes:,}"),
        ("slave complete after the last send", f"{figures.catch_up_s:.3f} s"),
        ("cluster ready to serve", f"{figures.cluster_ready_s:.3f} s"),
        ("master killed to first message", f"{figures.first_message_s * 1000:.1f} ms"),
        ("pulls per second", f"{shown['pulls_per_s']:,}"),
        ("messages pulled per second", f"{shown['messages_pulled_per_s']:,}"),
        ("lost / differing / twice / unknown", " / ".join(str(shown[key]) for key in ("missing", "differing", "repeated", "unknown"))),
        ("whole run", f"{figures.total_s:.1f} s"),
    ):  # fmt: skip
        table.add_row(name, text)
    console = Console()
    console.print(table)
    if figures.clean:
        console.print("Every message came back from the slave, once and as it was sent.", style="green")
    else:
        console.print("NOT every message came back once and as it was sent.", style="bold red")
    if figures.send_failures:
        first = f"{figures.send_failures:,} sends failed, the first: {figures.first_send_failure}"
        console.print(Text(first, style="bold red"))
