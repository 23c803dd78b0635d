"""The plots of a report: latency and rates over time, quantile curves, backlog, replication lag, brokers that served the
reads, and resources of the processes.

One run shows several measures in a plot; several runs show the same measure of each, side by side.
Every value is of a whole second, drawn as a step over that second, or of a merged histogram; nothing is smoothed.
Seconds without measurements are gaps.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from triomq_benchmarks.figures.intervals import (
    MONITOR,
    IntervalRow,
    at_percentiles,
    by_second,
    every_second,
    histogram_of,
    recorded,
)
from triomq_benchmarks.figures.resources import GENERATORS, MACHINE, ResourceRow, of_nodes, together
from triomq_benchmarks.figures.run_result import FaultInstant, RunResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

MEASURED = {
    "intended_to_ack": "intended → acknowledged",
    "actual_to_ack": "sent → acknowledged",
    "intended_to_consumed": "intended → consumed",
    "lateness": "generator's own lateness",
}
"""Histograms by their names in a report."""

COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#be123c")
"""Colours of the runs, in order; they repeat after the last."""

_MEASURE_COLOURS = {
    "intended_to_ack": "#2563eb",
    "actual_to_ack": "#0d9488",
    "intended_to_consumed": "#9333ea",
    "lateness": "#94a3b8",
}
_MASTER, _SLAVE = "#60a5fa", "#f59e0b"
_FAULT, _QUIET = "#dc2626", "#64748b"
_OTHERS = {GENERATORS: "#9333ea", MACHINE: "#94a3b8"}
_HEAT_PER_DECADE = 10
_HEAT_COLOURS = [[0, "#bfdbfe"], [0.4, "#3b82f6"], [0.75, "#8b5cf6"], [1, "#f97316"]]
_GREY = "#94a3b8"
PART = "part"
"""The legend group of a trace that continues the previous one, under the same name."""

_POINTS_PER_DECADE = 20
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)

# The dimensions of a mark's text, to place texts that would overlap on separate lines.
_PLOT_PX, _LETTER_PX, _LINE_PX = 1000, 6.4, 15


@attrs.frozen
class Chart:
    """One plot.

    Attributes:
        key: its id in the page.
        title: the shown quantity.
        caption: an explanation for readers.
        figure: Plotly's figure; the plain name of each trace is its `meta`.
    """

    key: str
    title: str
    caption: str
    figure: go.Figure = attrs.field(repr=False)


@attrs.frozen
class _Run:
    """A run, with its seconds added up over workers, and no gaps."""

    label: str
    colour: str
    result: RunResult
    seconds: Sequence[IntervalRow]

    def has(self, counter: str) -> bool:
        """Whether any second has a nonzero value."""
        return any(getattr(row, counter) for row in self.seconds)

    def has_gauge(self, gauge: str) -> bool:
        """Whether it was measured: a backlog that is always 0 is worth showing, unlike back-pressure."""
        return self.has(gauge) or (gauge != "held_s" and any(getattr(row, gauge) is not None for row in self.seconds))

    def values(self, field: str) -> list[tuple[int, Any]]:
        """A counter or a gauge, by second."""
        return [(row.second, getattr(row, field)) for row in self.seconds]


def charts(results: Sequence[RunResult], folders: Sequence[str] = ()) -> list[Chart]:
    """All plots for which these runs have data.

    Args:
        results: at least one run; several are drawn over each other.
        folders: the names of the runs' folders, if they have any.
    """
    runs = [
        _Run(label, COLOURS[number % len(COLOURS)], result, _seconds(result))
        for number, (label, result) in enumerate(zip(labels(results, folders), results, strict=True))
    ]
    heat = [_heat(runs, number) for number, run in enumerate(runs) if run.has(_send_latency(run))]
    made = [_latency(runs), *heat, _quantile_curve(runs), _rates(runs)]
    if any(run.has("sent_bytes") for run in runs):
        made.append(_throughput(runs))
    if any(run.has("intended_to_consumed") for run in runs):
        made.append(_consumed_latency(runs))
    made += [_over_time(runs, *each) for each in _GAUGES if any(run.has_gauge(each[1]) for run in runs)]
    if any(run.has("from_slave") or run.has("from_master") for run in runs):
        made.append(_readers(runs))
    if any(run.result.resources for run in runs):
        made += [_resources(runs, *each) for each in _RESOURCES]
    return made


def line_chart(
    key: str, title: str, caption: str, unit: str, lines: Mapping[str, Sequence[tuple[str, float | None, str]]]
) -> Chart:
    """Values over days: a line with a mark for each run.

    Args:
        key: the plot's id in the page.
        title: the shown quantity.
        caption: an explanation for readers.
        unit: unit of the values.
        lines: by name, the points in order of time: time (ISO 8601), value, text.
    """
    figure = _figure(unit, x_title="")
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        instants, values, texts = zip(*points, strict=True)
        _line(
            figure, instants, values, name, colour, mode="lines+markers", marker={"size": 7, "color": colour},
            text=[_text(text) for text in texts], hovertemplate=f"{_text(name)}<br>%{{text}}<br>%{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(type="date")
    return Chart(key, title, caption, figure)


def _seconds(result: RunResult) -> list[IntervalRow]:
    """The seconds from a load generator's first: the monitor of the brokers starts before there is anything to see."""
    first = min((row.second for row in result.rows if row.worker != MONITOR), default=0)
    return every_second(by_second(row for row in result.rows if row.second >= first))


def labels(results: Sequence[RunResult], folders: Sequence[str] = ()) -> list[str]:
    """A short, unique name for each run: its target, and as much of folder, workload, engine and number as needed."""
    names = [result.target for result in results]
    if len(set(names)) < len(names) and len(set(folders)) == len(names):
        return [f"{folder}: {name}" for folder, name in zip(folders, names, strict=True)]
    for also in ([str(result.workload.get("name", "")) for result in results], [result.engine for result in results]):
        if len(set(names)) < len(names) and len(set(also)) > 1:
            names = [f"{name} ({more})" for name, more in zip(names, also, strict=True)]
    return [f"{name} #{number}" if names.count(name) > 1 else name for number, name in enumerate(names, 1)]


def _figure(y_title: str, *, log_y: bool = False, x_title: str = "seconds of the measured part") -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    grid = {
        "gridcolor": "#e2e8f0",
        "zeroline": False,
        "linecolor": "#94a3b8",
        "ticks": "outside",
        "tickcolor": "#cbd5e1",
    }
    # The page has its own legend: Plotly's covers the plot as soon as it has more than one line.
    figure.update_layout(
        template="none",
        font={"family": "Inter, system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": "#334155"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 72, "r": 40, "t": 14, "b": 52},
        height=320,
        hovermode="x unified",
        showlegend=False,
        modebar={"orientation": "v", "bgcolor": "rgba(0,0,0,0)"},
        xaxis={**grid, "title": {"text": x_title, "standoff": 8}},
        yaxis={**grid, "title": {"text": y_title, "standoff": 10}, "rangemode": "tozero"},
    )
    if log_y:
        figure.update_yaxes(type="log", dtick=1, minor={"showgrid": True, "gridcolor": "#f1f5f9", "dtick": "D2"})
    return figure


def _line(figure: go.Figure, x: Sequence[Any], y: Sequence[Any], name: str, colour: str, **style: Any) -> None:
    import plotly.graph_objects as go

    fields = {"mode": "lines", "line": {"color": colour, "width": 2, **style.pop("line", {})}, **style}
    figure.add_trace(go.Scatter(x=list(x), y=list(y), name=_text(name), meta=name, **fields))


def _steps(
    figure: go.Figure, values: Sequence[tuple[int, Any]], name: str, colour: str, line: dict[str, Any] | None = None, **style: Any
) -> None:  # fmt: skip
    """Draw values of whole seconds; None is a gap."""
    x: list[int] = []
    y: list[Any] = []
    for number, (second, value) in enumerate(values):
        x.append(second)
        y.append(value)
        if value is not None and (number + 1 == len(values) or values[number + 1][1] is None):
            # The last second before a gap is as long as any other.
            x.append(second + 1)
            y.append(value)
    _line(figure, x, y, name, colour, line={"shape": "hv", **(line or {})}, **style)


def _text(plain: str) -> str:
    """For Plotly, which takes some HTML in its texts: a name out of a file must not become a link."""
    return html.escape(plain, quote=False)


@attrs.frozen
class _Mark:
    x: float
    until: float | None
    text: str
    colour: str
    opacity: float
    dash: str | None = "dash"


def _marks(runs: Sequence[_Run]) -> list[_Mark]:
    first = min((run.seconds[0].second for run in runs if run.seconds), default=0)
    last = max((run.seconds[-1].second + 1 for run in runs if run.seconds), default=0)
    measured_s = max(run.result.measured_s for run in runs)
    marks = []
    if first < 0:
        marks.append(_Mark(first, 0, "warm-up", _QUIET, 0.10, dash=None))
    if last > measured_s:
        marks.append(_Mark(measured_s, last, "drain", _QUIET, 0.10, dash=None))
    several = len(runs) > 1
    for run in runs:
        for fault in run.result.faults:
            text = f"{run.label}: {_said(fault)}" if several else _said(fault)
            marks.append(_Mark(fault.second, fault.until, text, run.colour if several else _FAULT, 0.08))
    return marks


def _said(fault: FaultInstant) -> str:
    """The text of a fault, with the node if the workload named only its role."""
    return fault.what if fault.node in fault.what else f"{fault.what} ({fault.node})"


def _mark(figure: go.Figure, runs: Sequence[_Run]) -> go.Figure:
    """Draw warm-up and drain in grey, faults as lines or, if they lasted, as areas; no text covers another text or the
    plot."""
    marks = _marks(runs)
    seconds = [row.second for run in runs for row in run.seconds]
    low, high = min([0, *seconds]), max([1, *(second + 1 for second in seconds)])
    per_px = (high - low) / _PLOT_PX
    ends: list[float] = []
    # Added together: Plotly checks the whole layout again for each shape that is added singly.
    shapes: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    whole_height = {"xref": "x", "y0": 0, "y1": 1, "yref": "y domain"}
    for mark in sorted(marks, key=lambda mark: mark.x):
        if mark.until is not None and mark.until > mark.x:
            area = {"fillcolor": mark.colour, "opacity": mark.opacity, "line": {"width": 0}, "layer": "below"}
            shapes.append({"type": "rect", "x0": mark.x, "x1": mark.until, **whole_height, **area})
        if mark.dash is not None:
            line_style = {"color": mark.colour, "width": 1.5, "dash": mark.dash}
            shapes.append({"type": "line", "x0": mark.x, "x1": mark.x, **whole_height, "line": line_style})
        width = len(mark.text) * _LETTER_PX * per_px
        leftwards = mark.x + width > high
        begin = mark.x - width if leftwards else mark.x
        line = next((number for number, end in enumerate(ends) if begin > end), len(ends))
        ends[line : line + 1] = [begin + width]
        annotations.append(
            {
                "x": mark.x,
                "y": 1,
                "yref": "paper",
                "xanchor": "right" if leftwards else "left",
                "yanchor": "bottom",
                "yshift": 2 + line * _LINE_PX,
                "showarrow": False,
                "text": _text(mark.text),
                "font": {"size": 11, "color": mark.colour},
            }
        )
    figure.update_layout(
        shapes=shapes,
        annotations=annotations,
        margin={"t": 14 + len(ends) * _LINE_PX},
        height=306 + len(ends) * _LINE_PX,
        xaxis={"range": [low, high]},
    )
    return figure


def _latencies(run: _Run, histogram: str, percentiles: Sequence[float]) -> list[list[tuple[int, float | None]]]:
    """Each second's percentiles in milliseconds, for ascending percentiles; each histogram is unpacked once."""
    found: list[list[tuple[int, float | None]]] = [[] for _ in percentiles]
    for row in run.seconds:
        values = histogram_of([row], histogram, warm_up=True)
        measured: list[int] | list[None] = at_percentiles(values, percentiles) or [None] * len(percentiles)
        for series, microseconds in zip(found, measured, strict=True):
            series.append((row.second, None if microseconds is None else microseconds / 1000))
    return found


def _latency_over_time(figure: go.Figure, runs: Sequence[_Run], field: str) -> None:
    if len(runs) == 1:
        p50, p99, longest = _latencies(runs[0], field, (50, 99, 100))
        lines = ((longest, "max", "#f59e0b"), (p99, "p99", "#2563eb"), (p50, "p50", "#0d9488"))
        for series, name, colour in lines:
            _steps(figure, series, name, colour)
        return
    for run in runs:
        p50, p99 = _latencies(run, field, (50, 99))
        _steps(figure, p99, f"{run.label}: p99", run.colour)
        _steps(figure, p50, f"{run.label}: p50", run.colour, {"dash": "dot"})


def _latency(runs: Sequence[_Run]) -> Chart:
    figure = _figure("milliseconds", log_y=True)
    how = "open loop: counted from the instant at which a message was meant to be sent"
    field = "intended_to_ack"
    if all(run.result.loop == "closed" for run in runs):
        how = "closed loop: a stalled broker also stalls the load, so stalls are under-represented here"
        field = "actual_to_ack"
    _latency_over_time(figure, runs, field)
    if len(runs) == 1 and runs[0].has("lateness"):
        (series,) = _latencies(runs[0], "lateness", (99,))
        _steps(figure, series, "p99 of the generator's own lateness", "#94a3b8", {"dash": "dot", "width": 1.5})
    return Chart("latency", "Send latency over time", f"Each second's percentiles; {how}.", _mark(figure, runs))


def _send_latency(run: _Run) -> str:
    return "actual_to_ack" if run.result.loop == "closed" else "intended_to_ack"


def _heat(runs: Sequence[_Run], number: int) -> Chart:
    """The number of messages of each second by duration: this shows what percentiles hide, such as two humps."""
    import plotly.graph_objects as go

    run = runs[number]
    field = _send_latency(run)
    cells: dict[int, dict[int, int]] = {}
    for row in run.seconds:
        column = cells.setdefault(row.second, {})
        for value, count in recorded(histogram_of([row], field, warm_up=True)):
            level = math.floor(math.log10(max(value, 1) / 1000) * _HEAT_PER_DECADE)
            column[level] = column.get(level, 0) + count
    levels = sorted({level for column in cells.values() for level in column})
    shown = range(levels[0], levels[-1] + 1) if levels else range(0)
    seconds = list(cells)
    counts = [[cells[second].get(level) for second in seconds] for level in shown]
    edges = [10 ** (level / _HEAT_PER_DECADE) for level in [*shown, *(each + 1 for each in shown[-1:])]]
    most = max((count for line in counts for count in line if count), default=1)
    figure = _figure("milliseconds", log_y=True)
    figure.add_trace(
        go.Heatmap(
            x=[*seconds, *(second + 1 for second in seconds[-1:])],
            y=edges,
            z=[[None if count is None else math.log10(count) for count in line] for line in counts],
            customdata=counts,
            zmin=0,
            zmax=max(1.0, math.log10(most)),
            colorscale=_HEAT_COLOURS,
            hoverongaps=False,
            hovertemplate="second %{x:.0f}, %{y:.3g} ms: %{customdata} messages<extra></extra>",
            showscale=False,
        )
    )  # fmt: skip
    figure.update_layout(hovermode="closest")
    several = len(runs) > 1
    key, title = (
        (f"heat-{number}", f"Heat map of send latency: {run.label}")
        if several
        else ("heat", "Heat map of send latency")
    )
    caption = (
        "How many messages of each second took how long, counted on a logarithmic scale from pale blue, one, to orange, "
        f"{most:,}. A failed send took its timeout."
    )
    return Chart(key, title, caption, _mark(figure, runs[number : number + 1] if several else runs))


def _throughput(runs: Sequence[_Run]) -> Chart:
    figure = _figure("MB per second")
    for run in runs:
        for field, name, colour in (("sent_bytes", "sent", "#2563eb"), ("consumed_bytes", "consumed", "#9333ea")):
            if not run.has(field):
                continue
            values = [(second, value / 1e6) for second, value in run.values(field)]
            if len(runs) > 1:
                style = {"dash": "dot"} if field == "consumed_bytes" else {}
                _steps(figure, values, f"{run.label}: {name}", run.colour, style)
            else:
                _steps(figure, values, name, colour)
    return Chart(
        "throughput", "Throughput", "Bodies of messages, in millions of bytes per second.", _mark(figure, runs)
    )


_Used = Callable[[ResourceRow], float]
_RESOURCES: tuple[tuple[str, str, str, str, _Used], ...] = (
    ("cpu", "CPU", "cores", "CPU seconds per second; the machine's own line holds everything that ran on it.",
     lambda row: row.cpu_cores),
    ("memory", "Memory", "MiB", "Resident memory of the processes.", lambda row: row.memory_bytes / (1 << 20)),
    ("disk", "Disk writes", "MB per second", "What the processes wrote to disks.", lambda row: row.written_bytes / 1e6),
)  # fmt: skip


def _resources(runs: Sequence[_Run], key: str, title: str, unit: str, caption: str, used: _Used) -> Chart:
    figure = _figure(unit)
    for run in runs:
        first = run.seconds[0].second if run.seconds else 0
        rows = [row for row in run.result.resources if row.second >= first]
        groups = {who: [row for row in rows if row.who == who] for who in dict.fromkeys(row.who for row in rows)}
        if key != "cpu":
            # For the machine, only CPU use is measured in the same way.
            groups.pop(MACHINE, None)
        if len(runs) > 1:
            groups = {"brokers and name servers": together(of_nodes(rows), ""), GENERATORS: groups.get(GENERATORS, [])}
        colours = dict(zip((who for who in groups if who not in _OTHERS), COLOURS * len(groups), strict=False))
        for who, several in groups.items():
            if not several:
                continue
            values = _without_gaps([(row.second, used(row)) for row in several])
            if len(runs) > 1:
                _steps(figure, values, f"{run.label}: {who}", run.colour, {"dash": "dot"} if who == GENERATORS else {})
            else:
                _steps(figure, values, who, _OTHERS.get(who) or colours[who])
    return Chart(key, title, caption, _mark(figure, runs))


def _without_gaps(values: Sequence[tuple[int, float]]) -> list[tuple[int, float | None]]:
    """Insert None for each second without a value: a line must not continue across it."""
    known = dict(values)
    return [(second, known.get(second)) for second in range(values[0][0], values[-1][0] + 1)]


def _consumed_latency(runs: Sequence[_Run]) -> Chart:
    figure = _figure("milliseconds", log_y=True)
    _latency_over_time(figure, runs, "intended_to_consumed")
    caption = "From the instant at which a message was meant to be sent until a consumer had it, by that instant."
    return Chart("consumed-latency", "Latency until consumed, over time", caption, _mark(figure, runs))


def _curve(run: _Run, field: str) -> tuple[list[float], list[float]] | None:
    """Values of 1/(1 - percentile), and the latencies there in milliseconds; None if nothing was recorded."""
    histogram = histogram_of(run.result.rows, field)
    count = histogram.get_total_count()
    if not count:
        return None
    decades = math.log10(count)
    exponents = [step / _POINTS_PER_DECADE for step in range(int(decades * _POINTS_PER_DECADE) + 1)]
    if exponents[-1] < decades:
        exponents.append(decades)
    tails = [10**exponent for exponent in exponents]
    return tails, [each / 1000 for each in at_percentiles(histogram, [100 - 100 / tail for tail in tails])]


def _quantile_curve(runs: Sequence[_Run]) -> Chart:
    figure = _figure("milliseconds", log_y=True, x_title="percentile")
    longest = 1.0
    for run in runs:
        for field in MEASURED if len(runs) == 1 else ("intended_to_ack", "intended_to_consumed"):
            curve = _curve(run, field)
            if curve is None:
                continue
            longest = max(longest, curve[0][-1])
            name, colour, line = MEASURED[field], _MEASURE_COLOURS[field], {}
            if len(runs) > 1:
                name, colour = f"{run.label}: {name}", run.colour
                line = {} if field == "intended_to_ack" else {"dash": "dot"}
            texts = [f"p{100 - 100 / tail:.6g}" for tail in curve[0]]
            template = f"{_text(name)}<br>%{{text}}: %{{y:.3g}} ms<extra></extra>"
            # In colour up to the point from which the figures are unsupported, and in grey from there.
            limit = 1 / run.result.supported_share(field)
            end = sum(tail <= limit * 1.0001 for tail in curve[0])
            tails, times = curve
            _line(figure, tails[:end], times[:end], name, colour, line=line, text=texts[:end], hovertemplate=template)
            if end < len(tails):
                rest = slice(max(0, end - 1), None)
                about = template.replace("<extra>", "<br>says nothing about the broker<extra>")
                style = {"line": {**line, "color": _GREY, "width": 1.2}, "text": texts[rest], "hovertemplate": about}
                _line(figure, tails[rest], times[rest], name, _GREY, legendgroup=PART, **style)
    shown = [tick for tick in _TICKS if 100 / (100 - tick) <= longest * 1.01]
    figure.update_xaxes(
        type="log",
        tickangle=0,
        tickvals=[100 / (100 - tick) for tick in shown],
        ticktext=[f"{tick:g} %" for tick in shown],
    )
    figure.update_layout(hovermode="closest")
    caption = (
        "All of the measured part; the further right, the rarer. Merged histograms, no averages of percentiles. Thin and "
        "grey: too few messages lie beyond, or the load generator itself was late."
    )
    return Chart("quantiles", "Quantile curve", caption, figure)


def _rates(runs: Sequence[_Run]) -> Chart:
    figure = _figure("messages per second")
    for run in runs:
        if len(runs) > 1:
            _steps(figure, run.values("acked"), f"{run.label}: acknowledged", run.colour)
            _steps(figure, run.values("consumed"), f"{run.label}: consumed", run.colour, {"dash": "dot"})
        else:
            _steps(figure, run.values("sent"), "sent", "#94a3b8", {"width": 4})
            _steps(figure, run.values("acked"), "acknowledged", "#2563eb")
            if run.has("consumed"):
                _steps(figure, run.values("consumed"), "consumed", "#9333ea")
        failed = [(row.second + 0.5, row.errors) for row in run.seconds if row.errors]
        if failed:
            # A few among thousands would only make the axis thicker.
            colour, name = (run.colour, f"{run.label}: failed") if len(runs) > 1 else (_FAULT, "failed")
            style: dict[str, Any] = {"mode": "markers", "marker": {"symbol": "x", "size": 9, "color": colour}}
            _line(figure, [x for x, _ in failed], [y for _, y in failed], name, colour, **style)
    return Chart("rates", "Rates", "Messages per second of all workers together.", _mark(figure, runs))


_Scale = Callable[[Any], Any]
_GAUGES: tuple[tuple[str, str, str, str, _Scale], ...] = (
    ("Backlog", "backlog", "messages", "Between the consumers' places and the ends of their queues.", int),
    (
        "Replication lag",
        "replication_lag_bytes",
        "KiB",
        "By how much the slowest slave's log is behind its master's, at one look per second; a gap where none answered.",
        lambda value: value / 1024,
    ),
    (
        "Back-pressure",
        "held_s",
        "seconds per second",
        "Time in which producers had to wait for answers, or for a connection, before they could send; summed over producers.",
        float,
    ),
)


def _over_time(runs: Sequence[_Run], title: str, field: str, unit: str, caption: str, scale: _Scale) -> Chart:
    figure = _figure(unit)
    for run in runs:
        values = [(second, None if value is None else scale(value)) for second, value in run.values(field)]
        style: dict[str, Any] = {}
        if len(runs) == 1 and all(value is not None for _, value in values):
            # Plotly would fill a gap from one end to the other.
            style = {"fill": "tozeroy", "fillcolor": "rgba(37, 99, 235, 0.12)"}
        _steps(figure, values, run.label, run.colour, **style)
    return Chart(field, title, caption, _mark(figure, runs))


def _readers(runs: Sequence[_Run]) -> Chart:
    figure = _figure("messages per second")
    for run in runs:
        for field, name, colour in (("from_master", "a master", _MASTER), ("from_slave", "a slave", _SLAVE)):
            if len(runs) > 1 and not any(each.has(field) for each in runs):
                continue
            if len(runs) > 1:
                line = {"dash": "dot" if field == "from_slave" else "solid"}
                _steps(figure, run.values(field), f"{run.label}: {name}", run.colour, line)
            else:
                style: dict[str, Any] = {"stackgroup": "readers", "fillcolor": colour}
                _steps(figure, run.values(field), name, colour, {"width": 0}, **style)
    caption = (
        "Which broker answered the pulls: a reader too far behind goes to a slave, and back once it has caught up."
    )
    return Chart("readers", "Who served the reads", caption, _mark(figure, runs))
