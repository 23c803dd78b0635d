"""The measurements for people (a table with ratios and goals) and for machines (JSON)."""

from __future__ import annotations

import attrs
import msgspec
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.figures.machine import machine_now
from triomq_benchmarks.report.goals import ratio_text
from triomq_benchmarks.versus_java.brokers_and_clients import Comparison, Figures, Row, Single


def _figures(figures: Figures) -> tuple[str, str, str]:
    return (
        f"{figures.per_s:,.0f}",
        f"{figures.cpu_us:.1f} + {figures.other_cpu_us:.1f}",
        f"{figures.p50_us:,.0f} / {figures.p99_us:,.0f}",
    )


def _rows_table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("scenario", "body", "driven by"):
        table.add_column(name)
    for name in (
        "ours/s", "theirs/s", "ratio (goal)", "ours CPU µs", "theirs CPU µs", "CPU ratio (goal)", "ours p50/p99 µs",
        "theirs p50/p99 µs",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        ours, java = _figures(row.ours), _figures(row.java)
        table.add_row(
            row.scenario, f"{row.body_bytes:,}", row.load, ours[0], java[0], ratio_text(row.ratio, row.goal),
            ours[1], java[1], ratio_text(row.cpu_ratio, row.cpu_goal, at_most=True), ours[2], java[2],
        )  # fmt: skip
    return table


def _singles_table(singles: tuple[Single, ...]) -> Table:
    table = Table(title="Broker: start and memory, medians", title_justify="left")
    table.add_column("figure")
    for name in ("ours", "Java", "ratio (goal)"):
        table.add_column(name, justify="right")
    for one in singles:
        ratio = ratio_text(one.ratio, one.goal, at_most=True)
        table.add_row(one.name, f"{one.ours:.2f} {one.unit}", f"{one.java:.2f} {one.unit}", ratio)
    return table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the tables of a comparison."""
    if comparison.singles:
        console.print(_singles_table(comparison.singles))
    titles = {
        "broker": "Broker: ours and the real 4.9.7 under the same client, medians (CPU per message: broker + client)",
        "sdk": "Client: our SDK and others on the real broker, medians (CPU per message: client + broker)",
    }
    for side, title in titles.items():
        rows = [row for row in comparison.rows if row.side == side]
        if rows:
            console.print(_rows_table(title, rows))


def comparison_json(comparison: Comparison) -> str:
    """The comparison as JSON, ratios included."""
    rows = [
        {**attrs.asdict(row), "ratio": round(row.ratio, 3), "cpu_ratio": round(row.cpu_ratio, 3)}
        for row in comparison.rows
    ]
    singles = [{**attrs.asdict(one), "ratio": round(one.ratio, 3)} for one in comparison.singles]
    return _json({"machine": machine_now(), "singles": singles, "rows": rows, "failure": comparison.failure or None})


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
