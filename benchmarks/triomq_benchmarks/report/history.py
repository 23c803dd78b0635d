"""One self-contained HTML page over many runs, in order of time: each workload and target as a line of runs.

Like a report it loads no external resources. It shows medians, tails, rates, resources of servers, and every run's status
with its commit, so that the run in which something changed can be found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from triomq_benchmarks.figures.resources import of_nodes, together, use_of
from triomq_benchmarks.figures.run_result import RunResult
from triomq_benchmarks.figures.whole_files import whole_file
from triomq_benchmarks.report.charts import COLOURS, Chart, line_chart
from triomq_benchmarks.report.html import ReportUnavailableError, drawn, figure, packed

HISTORY = "history.html"
_TEMPLATE = "history.html.j2"
_FIELDS = {"p50, ms": "p50_ms", "p99, ms": "p99_ms", "p99.9, ms": "p999_ms"}


@attrs.frozen
class _Entry:
    """A run, with its computed figures."""

    name: str
    result: RunResult
    figures: Mapping[str, float | None]

    @property
    def series(self) -> str:
        return f"{self.result.workload.get('name', 'run')} on {self.result.target}"


def write_history(runs: Mapping[str, RunResult], path: Path) -> None:
    """Write the page, completely or not at all.

    Args:
        runs: at least one run, by the names of their folders.
        path: the file; its folder exists.

    Raises:
        ReportUnavailableError: Plotly or Jinja is missing.
        OSError: the file cannot be written.
    """
    try:
        from jinja2 import Environment
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportUnavailableError(f"no page without {error.name}: pip install 'triomq[bench]'") from None
    entries = [
        _Entry(name, run, _figures(run)) for name, run in sorted(runs.items(), key=lambda each: each[1].started_at)
    ]
    series: defaultdict[str, list[_Entry]] = defaultdict(list)
    for entry in entries:
        series[entry.series].append(entry)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    folder = files(__package__)
    page = environment.from_string(folder.joinpath(_TEMPLATE).read_text("utf-8")).render(
        style=Markup(folder.joinpath("page.css").read_text("utf-8")),
        script=Markup(folder.joinpath("page.js").read_text("utf-8")),
        plotly_js=Markup(packed(get_plotlyjs())),
        title=f"{len(entries)} run{'s' * (len(entries) != 1)}, {_day(entries[0])} to {_day(entries[-1])}",
        charts=[drawn(chart, Markup) for chart in _charts(series)],
        columns=list(_FIELDS),
        rows=[_row(entry, list(series).index(entry.series)) for entry in reversed(entries)],
    )
    with whole_file(path) as unfinished:
        unfinished.write_text(page, "utf-8", "backslashreplace")  # names of folders may not be UTF-8


def _day(entry: _Entry) -> str:
    return entry.result.started_at[:10]


def _figures(run: RunResult) -> dict[str, float | None]:
    measured = "intended_to_ack" if run.loop == "open" else "actual_to_ack"
    quantiles, unsupported = run.quantiles()[measured], run.unsupported(measured)
    found: dict[str, float | None] = {
        name: getattr(quantiles, field) if quantiles.count and field not in unsupported else None
        for name, field in _FIELDS.items()
    }
    found["rate"] = run.per_second("acked") if run.elapsed_s else None
    used = use_of(together(of_nodes(run.resources), ""), run.measured_s)
    found["cpu"] = None if used is None else used.cpu_cores
    found["memory"] = None if used is None else used.memory_bytes / (1 << 20)
    return found


_CHARTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("p50", "p50, ms", "Median send latency", "milliseconds", "Of the measured part; from the intended instant in an open loop."),
    ("p99", "p99, ms", "p99 of send latency", "milliseconds", "A gap where a run's figure says nothing about the broker."),
    ("rate", "rate", "Rate", "messages per second", "Acknowledged within the measured part."),
    ("cpu", "cpu", "CPU of servers", "cores", "The median of the seconds, of all brokers and name servers."),
    ("memory", "memory", "Memory of servers", "MiB", "The highest of the seconds, of all brokers and name servers."),
)  # fmt: skip


def _charts(series: Mapping[str, Sequence[_Entry]]) -> list[Chart]:
    made = []
    for key, field, title, unit, caption in _CHARTS:
        if not any(entry.figures[field] is not None for entries in series.values() for entry in entries):
            continue
        lines = {name: [_point(entry, field) for entry in entries] for name, entries in series.items()}
        made.append(line_chart(key, title, caption, unit, lines))
    return made


def _point(entry: _Entry, field: str) -> tuple[str, float | None, str]:
    commit = entry.result.versions.get("commit", "")[:9]
    return entry.result.started_at[:19], entry.figures[field], f"{entry.name} {commit}"


def _row(entry: _Entry, number: int) -> Mapping[str, Any]:
    run = entry.result
    shown: Callable[[float | None], str] = lambda value: "-" if value is None else figure(value)  # noqa: E731
    return {
        "instant": f"{run.started_at[:19].replace('T', ' ')} UTC",
        "name": entry.name,
        "series": entry.series,
        "colour": COLOURS[number % len(COLOURS)],
        "status": run.decision.status.value,
        "passed": run.decision.passed,
        "explanation": run.decision.explanation,
        "figures": [shown(entry.figures[name]) for name in _FIELDS],
        "rate": shown(entry.figures["rate"]),
        "errors": f"{run.total('errors'):,}",
        "cpu": shown(entry.figures["cpu"]),
        "commit": run.versions.get("commit", "")[:9],
        "version": run.versions.get("triomq", ""),
    }
