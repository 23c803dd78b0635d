"""The speed and memory of consumers as tables and as values for JSON, with their goals."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from rich.table import Table
from rich.text import Text

from triomq_benchmarks.clusters.servers import Kind
from triomq_benchmarks.report.goals import ratio_text
from triomq_benchmarks.versus_java.consume_memory import Stalled
from triomq_benchmarks.versus_java.consume_speed import CPU_GOALS, GOALS, ConsumePlan, ConsumeRow

MIB = 1 << 20


def row_json(row: ConsumeRow) -> dict[str, object]:
    """A row for JSON, ratios and goals included."""

    def rounded(ratio: float | None) -> float | None:
        return None if ratio is None else round(ratio, 3)

    return {
        **attrs.asdict(row),
        "ratio": rounded(row.ratio),
        "cpu_ratio": rounded(row.cpu_ratio),
        "goal": GOALS[row.kind],
        "cpu_goal": CPU_GOALS[row.kind],
    }


def speed_table(rows: Sequence[ConsumeRow], plan: ConsumePlan) -> Table:
    """The table of speeds: one row per kind of consumer and broker."""
    title = f"Consumers of {plan.count:,} messages of {plan.body_bytes:,} B, bodies read; medians of {plan.rounds}; CPU in µs per message"
    table = Table(title=title, title_justify="left")
    for name in ("consumer", "broker"):
        table.add_column(name)
    for name in (
        "ours/s", "Java/s", "ratio (goal)", "our CPU", "Java's CPU", "CPU ratio (goal)", "broker's CPU: ours", "Java",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        java = row.java
        table.add_row(
            "lite pull" if row.kind == "lite" else row.kind,
            "ours" if row.broker is Kind.OURS else "Java's",
            f"{row.ours.per_s:,.0f}",
            f"{java.per_s:,.0f}" if java is not None else "-",
            ratio_text(row.ratio, GOALS[row.kind]),
            f"{row.ours.client_us:.2f}",
            f"{java.client_us:.2f}" if java is not None else "-",
            ratio_text(row.cpu_ratio, CPU_GOALS[row.kind], at_most=True),
            f"{row.ours.broker_us:.2f}",
            f"{java.broker_us:.2f}" if java is not None else "-",
        )
    return table


def stalled_table(found: Sequence[Stalled]) -> Table:
    """The table of memory: one row per limits, in MiB."""
    table = Table(title="Resident memory of a push consumer whose handlers are held, MiB", title_justify="left")
    table.add_column("limits")
    for name in ("messages", "held", "counted", "limit", "before", "stalled", "peak", "allowed"):
        table.add_column(name, justify="right")
    for each in found:
        bytes_of = (each.held_bytes, each.limit_bytes, each.before_bytes, each.stalled_bytes)
        table.add_row(
            each.name,
            f"{each.messages:,}",
            f"{each.held:,}",
            *(f"{value / MIB:,.0f}" for value in bytes_of),
            Text(f"{each.peak_bytes / MIB:,.0f}", style="green" if each.passed else "bold red"),
            f"{each.allowed_bytes / MIB:,.0f}",
        )
    return table
