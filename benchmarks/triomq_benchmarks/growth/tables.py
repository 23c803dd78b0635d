"""The points of growth as a table and for machines."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.figures.machine import machine_now
from triomq_benchmarks.growth.points import Point


def print_growth(points: Sequence[Point], console: Console) -> None:
    """Print one table with a section per term."""
    table = Table(title="A broker with more and more that is idle", title_justify="left")
    table.add_column("what")
    for name in ("how many", "CPU µs per send", "idle CPU ms/s", "memory MiB", "bytes each", "start s"):
        table.add_column(name, justify="right")
    latest = ""
    for point in points:
        if latest and point.term != latest:
            table.add_section()
        latest = point.term
        table.add_row(
            point.term,
            f"{point.count:,}",
            f"{point.send_us:.1f}",
            f"{point.idle_ms:.1f}",
            f"{point.memory_bytes / 2**20:.1f}",
            "" if point.each_bytes is None else f"{point.each_bytes:,.0f}",
            f"{point.start_s:.2f}",
        )
    console.print(table)


def growth_json(points: Sequence[Point], failure: str = "") -> str:
    """The points as JSON, with the reason why there are no more of them; empty if there are all."""
    content = {
        "machine": machine_now(),
        "points": [attrs.asdict(point) for point in points],
        "failure": failure or None,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
