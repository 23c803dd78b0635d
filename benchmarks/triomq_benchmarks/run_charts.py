"""The plots of a report: latency and rates over time, quantile curves, backlog, replication lag, and who served the reads.

One run shows several measures in a plot; several runs show the same measure of each, so that like stands beside like.
Every value is of a whole second or of a merged histogram; nothing is smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .intervals import IntervalRow, by_second, histogram_of
from .run_result import RunResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

MEASURED = {
    "intended_to_ack": "intended → acknowledged",
    "actual_to_ack": "sent → acknowledged",
    "intended_to_consumed": "intended → consumed",
    "lateness": "generator's own lateness",
}
"""Histograms by what they are called in a report."""

_COLOURS = {
    "intended_to_ack": "#2563eb",
    "actual_to_ack": "#0d9488",
    "intended_to_consumed": "#9333ea",
    "lateness": "#94a3b8",
}
_RUN_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#be123c")
_FAULT = "#dc2626"
_POINTS_PER_DECADE = 20
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


@attrs.frozen
class Chart:
    """One plot.

    Attributes:
        key: its id in the page.
        title: what it shows.
        caption: how to read it.
        figure: Plotly's.
    """

    key: str
    title: str
    caption: str
    figure: go.Figure = attrs.field(repr=False)


@attrs.frozen
class _Run:
    """A run, its seconds added up over workers."""

    label: str
    colour: str
    result: RunResult
    seconds: Sequence[IntervalRow]

    def has(self, counter: str) -> bool:
        """Whether a value of the seconds is ever anything but nothing."""
        return any(getattr(row, counter) for row in self.seconds)


def charts(results: Sequence[RunResult]) -> list[Chart]:
    """All plots that these runs have something to show in.

    Args:
        results: at least one; of several, the plots lay the runs over each other.
    """
    runs = [
        _Run(label, _RUN_COLOURS[number % len(_RUN_COLOURS)], result, by_second(result.rows))
        for number, (label, result) in enumerate(zip(labels(results), results, strict=True))
    ]
    made = [
        _latency(runs),
        _quantile_curve(runs),
        _rates(runs),
        *(_over_time(runs, *each) for each in _GAUGES if any(run.has(each[1]) for run in runs)),
    ]
    if any(run.has("from_slave") or run.has("from_master") for run in runs):
        made.append(_readers(runs))
    return made


def labels(results: Sequence[RunResult]) -> list[str]:
    """A short name for each run, no two alike."""
    names = [result.target for result in results]
    if len(set(names)) < len(names):
        names = [f"{name} ({result.engine})" for name, result in zip(names, results, strict=True)]
    return [f"{name} #{number}" if names.count(name) > 1 else name for number, name in enumerate(names, 1)]


def _figure(y_title: str, *, log_y: bool = False, x_title: str = "seconds since the measured part began") -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    grid = {
        "gridcolor": "#e2e8f0",
        "zeroline": False,
        "linecolor": "#94a3b8",
        "ticks": "outside",
        "tickcolor": "#cbd5e1",
    }
    figure.update_layout(
        template="none",
        font={"family": "Inter, system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": "#334155"},
        margin={"l": 68, "r": 24, "t": 36, "b": 52},
        height=340,
        hovermode="x unified",
        legend={"orientation": "h", "y": 1.14, "x": 0},
        xaxis={**grid, "title": {"text": x_title}},
        yaxis={**grid, "title": {"text": y_title}, "rangemode": "tozero"},
    )
    if log_y:
        figure.update_yaxes(type="log", dtick=1, minor={"showgrid": True, "gridcolor": "#f1f5f9", "dtick": "D2"})
    return figure


def _line(figure: go.Figure, x: Sequence[float], y: Sequence[Any], name: str, colour: str, **style: Any) -> None:
    import plotly.graph_objects as go

    fields = {"mode": "lines", "line": {"color": colour, "width": 2, **style.pop("line", {})}, **style}
    figure.add_trace(go.Scatter(x=list(x), y=list(y), name=name, **fields))


def _mark(figure: go.Figure, runs: Sequence[_Run]) -> go.Figure:
    """The warm-up in grey, faults as red lines, as areas where they lasted."""
    first = min((row.second for run in runs for row in run.seconds), default=0)
    if first < 0:
        figure.add_vrect(
            x0=first, x1=0, fillcolor="#94a3b8", opacity=0.12, line_width=0, annotation_text="warm-up",
            annotation_position="top left", annotation_font={"size": 11, "color": "#64748b"},
        )  # fmt: skip
    several = len(runs) > 1
    for run in runs:
        for fault in run.result.faults:
            colour = run.colour if several else _FAULT
            text = f"{fault.what} {fault.node}" + (f" ({run.label})" if several else "")
            if fault.until is not None and fault.until > fault.second:
                figure.add_vrect(x0=fault.second, x1=fault.until, fillcolor=colour, opacity=0.08, line_width=0)
            figure.add_vline(
                x=fault.second, line={"color": colour, "width": 1.5, "dash": "dash"}, annotation_text=text,
                annotation_position="top right", annotation_font={"size": 11, "color": colour},
            )  # fmt: skip
    return figure


def _per_second(run: _Run, histogram: str, percentile: float) -> list[float | None]:
    found: list[float | None] = []
    for row in run.seconds:
        values = histogram_of([row], histogram, warm_up=True)
        found.append(values.get_value_at_percentile(percentile) / 1000 if values.get_total_count() else None)
    return found


def _latency(runs: Sequence[_Run]) -> Chart:
    figure = _figure("milliseconds", log_y=True)
    if len(runs) == 1:
        run = runs[0]
        x = [row.second for row in run.seconds]
        for percentile, name, colour in ((100, "max", "#f59e0b"), (99, "p99", "#2563eb"), (50, "p50", "#0d9488")):
            _line(figure, x, _per_second(run, "intended_to_ack", percentile), name, colour)
    for run in runs if len(runs) > 1 else ():
        x = [row.second for row in run.seconds]
        _line(figure, x, _per_second(run, "intended_to_ack", 99), f"{run.label} p99", run.colour)
        _line(figure, x, _per_second(run, "intended_to_ack", 50), f"{run.label} p50", run.colour, line={"dash": "dot"})
    how = "open loop: counted from the instant at which a message was meant to be sent"
    if all(run.result.loop == "closed" for run in runs):
        how = "closed loop: a stalled broker also stalls the load, so stalls are under-represented here"
    return Chart("latency", "Send latency over time", f"Each second's percentiles; {how}.", _mark(figure, runs))


def _curve(run: _Run, field: str) -> tuple[list[float], list[float]] | None:
    histogram = histogram_of(run.result.rows, field)
    count = histogram.get_total_count()
    if not count:
        return None
    decades = math.log10(count)
    exponents = [step / _POINTS_PER_DECADE for step in range(int(decades * _POINTS_PER_DECADE) + 1)] + [decades]
    tails = [10**exponent for exponent in exponents]
    return tails, [histogram.get_value_at_percentile(100 - 100 / tail) / 1000 for tail in tails]


def _quantile_curve(runs: Sequence[_Run]) -> Chart:
    figure = _figure("milliseconds", log_y=True, x_title="percentile")
    longest = 1.0
    for run in runs:
        for field in MEASURED if len(runs) == 1 else ("intended_to_ack", "intended_to_consumed"):
            curve = _curve(run, field)
            if curve is None:
                continue
            longest = max(longest, curve[0][-1])
            name, colour, line = MEASURED[field], _COLOURS[field], {}
            if len(runs) > 1:
                name, colour = f"{run.label}: {name}", run.colour
                line = {} if field == "intended_to_ack" else {"dash": "dot"}
            texts = [f"p{100 - 100 / tail:.6g}" for tail in curve[0]]
            _line(figure, *curve, name, colour, line=line, text=texts, hovertemplate="%{text}: %{y:.3g} ms")
    shown = [tick for tick in _TICKS if 100 / (100 - tick) <= longest * 1.01]
    figure.update_xaxes(
        type="log", tickvals=[100 / (100 - tick) for tick in shown], ticktext=[f"{tick:g} %" for tick in shown]
    )
    figure.update_layout(hovermode="closest")
    caption = "All of the measured part; the further right, the rarer. Merged histograms, no averages of percentiles."
    return Chart("quantiles", "Quantile curve", caption, figure)


def _rates(runs: Sequence[_Run]) -> Chart:
    figure = _figure("messages per second")
    shown: tuple[tuple[str, str, str, str], ...] = (
        ("sent", "sent", "#94a3b8", "dot"), ("acked", "acknowledged", "#2563eb", "solid"),
        ("consumed", "consumed", "#9333ea", "solid"), ("errors", "failed", _FAULT, "solid"),
    )  # fmt: skip
    for run in runs:
        x = [row.second for row in run.seconds]
        for counter, name, colour, dash in shown:
            if len(runs) > 1:
                colour, dash = run.colour, "dot" if counter == "consumed" else "solid"
                if counter in {"sent", "errors"}:
                    continue
            if counter != "errors" or run.has(counter):
                label = f"{run.label}: {name}" if len(runs) > 1 else name
                _line(figure, x, [getattr(row, counter) for row in run.seconds], label, colour, line={"dash": dash})
    return Chart("rates", "Rates", "Messages per second of all workers together.", _mark(figure, runs))


_Scale = Callable[[Any], Any]
_GAUGES: tuple[tuple[str, str, str, str, _Scale], ...] = (
    ("Backlog", "backlog", "messages", "Between the consumers' places and the ends of their queues.", int),
    (
        "Replication lag",
        "replication_lag_bytes",
        "MiB",
        "By how much the slowest slave's log is behind its master's.",
        lambda value: value / (1 << 20),
    ),
    ("Back-pressure", "held_s", "seconds per second", "Time in which producers had to wait for answers before they could send.", float),
)  # fmt: skip


def _over_time(runs: Sequence[_Run], title: str, field: str, unit: str, caption: str, scale: _Scale) -> Chart:
    figure = _figure(unit)
    for run in runs:
        values = [(row.second, getattr(row, field)) for row in run.seconds]
        told = [(second, scale(value)) for second, value in values if value is not None]
        style = {"fill": "tozeroy", "fillcolor": "rgba(37, 99, 235, 0.10)"} if len(runs) == 1 else {}
        _line(figure, [each[0] for each in told], [each[1] for each in told], run.label, run.colour, **style)
    figure.update_layout(showlegend=len(runs) > 1)
    return Chart(field, title, caption, _mark(figure, runs))


def _readers(runs: Sequence[_Run]) -> Chart:
    figure = _figure("messages per second")
    for run in runs:
        x = [row.second for row in run.seconds]
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        for field, name, colour in (
            ("from_master", "from the master", "#2563eb"),
            ("from_slave", "from a slave", "#f59e0b"),
        ):
            several = len(runs) > 1
            style: dict[str, Any] = {"line": {"dash": "dot" if field == "from_slave" else "solid"}}
            if not several:
                style = {"stackgroup": "readers", "line": {"width": 0.5}, "fillcolor": colour}
            values = [getattr(row, field) for row in run.seconds]
            _line(figure, x, values, prefix + name, run.colour if several else colour, **style)
    caption = (
        "Which broker answered the pulls: a reader too far behind is sent to a slave, and back once it has caught up."
    )
    return Chart("readers", "Who served the reads", caption, _mark(figure, runs))
