"""The rates of the hot path as a table and for machines."""

from __future__ import annotations

import attrs
import msgspec
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.figures.machine import machine_now
from triomq_benchmarks.hotpath.rates import Rate


def print_rates(rates: list[Rate], console: Console) -> None:
    """Print the table of the hot path."""
    table = Table(title="Hot path, per second and core", title_justify="left")
    table.add_column("what")
    for name in ("body", "per second", "µs each"):
        table.add_column(name, justify="right")
    for rate in rates:
        table.add_row(rate.name, f"{rate.body_bytes:,}", f"{rate.per_s:,.0f}", f"{1e6 / rate.per_s:.2f}")
    console.print(table)


def rates_json(rates: list[Rate]) -> str:
    """The rates as JSON."""
    content = {"machine": machine_now(), "rates": [attrs.asdict(rate) for rate in rates]}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
