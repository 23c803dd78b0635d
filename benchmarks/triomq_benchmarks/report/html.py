"""One self-contained HTML page about one run, or about several runs side by side: statuses, plots, tables,
configuration.

The page loads no external resources, so that it can be mailed, archived and opened years later.
"""

from __future__ import annotations

import base64
import functools
import gzip
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import attrs

from triomq_benchmarks.figures.intervals import Quantiles
from triomq_benchmarks.figures.run_result import RunResult, WorkerResult
from triomq_benchmarks.figures.whole_files import whole_file
from triomq_benchmarks.report.charts import COLOURS, MEASURED, PART, Chart, charts, labels

REPORT = "report.html"
_TEMPLATE = "report.html.j2"


class ReportUnavailableError(Exception):
    """Reports cannot be drawn because a package is missing; the message explains how to install it."""


def write_report(results: Sequence[RunResult], path: Path, folders: Sequence[str] = ()) -> None:
    """Write the page, completely or not at all.

    Args:
        results: at least one run.
        path: the file; its folder exists.
        folders: the name of each run's folder, to distinguish runs on one target.

    Raises:
        ReportUnavailableError: Plotly or Jinja is missing.
        OSError: the file cannot be written.
    """
    try:
        from jinja2 import Environment
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportUnavailableError(
            f"no report without {error.name}: pip install 'triomq[bench]', then `triomq bench report {path.parent}`"
        ) from None
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    folder = files(__package__)
    template = environment.from_string(folder.joinpath(_TEMPLATE).read_text("utf-8"))
    runs = [
        _run(label, COLOURS[number % len(COLOURS)], result, len(results))
        for number, (label, result) in enumerate(zip(labels(results, folders), results, strict=True))
    ]
    page = template.render(
        style=Markup(folder.joinpath("page.css").read_text("utf-8")),
        script=Markup(folder.joinpath("page.js").read_text("utf-8")),
        title=_title(results),
        descriptions=dict.fromkeys(str(text) for each in results if (text := each.workload.get("description"))),
        plotly_js=Markup(packed(get_plotlyjs())),
        charts=[drawn(chart, Markup) for chart in charts(results, folders)],
        runs=runs,
        tile_names=list(dict.fromkeys(tile["name"] for run in runs for tile in run["tiles"])),
        percentiles=list(_percentiles(results, folders)),
        footer=f"triomq {results[0].versions.get('triomq', '')} · run {', '.join(each.run_id for each in results)}",
    )
    with whole_file(path) as unfinished:
        unfinished.write_text(page, "utf-8", "backslashreplace")  # names of folders may not be UTF-8


@functools.lru_cache(maxsize=1)
def packed(script: str) -> str:
    """Base64 of gzip: the page is 2 MB instead of 5, and the browser unpacks it at once."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


def _title(results: Sequence[RunResult]) -> str:
    names = dict.fromkeys(str(result.workload.get("name", "run")) for result in results)
    return f"{', '.join(names)} on {', '.join(dict.fromkeys(result.target for result in results))}"


def drawn(chart: Chart, markup: type[Any]) -> Mapping[str, object]:
    """The values for a template that shows a plot."""
    traces = [trace for trace in chart.figure.data if trace.type == "scatter"]
    legend = [
        {
            "traces": [
                number,
                *takewhile(lambda next_one: traces[next_one].legendgroup == PART, range(number + 1, len(traces))),
            ],
            "name": trace.meta,
            "colour": trace.fillcolor if trace.stackgroup else trace.marker.color or trace.line.color,
            "dash": {"dash": "6 4", "dot": "2 3"}.get(trace.line.dash, ""),
            "kind": "mark" if trace.mode == "markers" else "area" if trace.stackgroup else "line",
        }
        for number, trace in enumerate(traces)
        if trace.legendgroup != PART
    ]
    # No text of a run may end the script element. Plotly ensures that too, but does not promise it.
    figure = markup(chart.figure.to_json().replace("<", "\\u003c"))
    return {"key": chart.key, "title": chart.title, "caption": chart.caption, "legend": legend, "figure": figure}


def _run(label: str, colour: str, result: RunResult, of: int) -> dict[str, Any]:
    """The values for a template that shows one run."""
    return {
        "label": label,
        "colour": colour,
        "suffix": f": {label}" if of > 1 else "",
        "status": result.decision.status.value,
        "passed": result.decision.passed,
        "partial": result.partial,
        "line": f"{_instant(result.started_at)} · {_length(result)} · {result.loop} loop · engine {result.engine} · "
        f"{len(result.workers)} load generator{'s' * (len(result.workers) != 1)}",
        "explanation": result.decision.explanation[:1].upper() + result.decision.explanation[1:],
        "notes": result.decision.notes,
        "tiles": _tiles(result),
        "thresholds": [{**attrs.asdict(each), "measured": each.measured_text} for each in result.thresholds],
        "faults": [
            {
                "second": f"{each.second:.2f} s",
                "what": each.what,
                "node": each.node,
                "until": "" if each.until is None else f"{each.until:.2f} s",
            }
            for each in result.faults
        ],
        "audit": _audit(result.audit),
        "workers": [_worker(each) for each in result.workers],
        "configuration": list(_configuration(result)),
    }


def _length(result: RunResult) -> str:
    return f"{result.elapsed_s:g} of {result.measured_s:g} s" if result.partial else f"{result.measured_s:g} s"


def _instant(iso: str) -> str:
    """Format to the second; results have ISO 8601 in UTC."""
    return f"{iso[:19].replace('T', ' ')} UTC"


_TILE_FIELDS = {"p50, ms": "p50_ms", "p99, ms": "p99_ms", "p99.9, ms": "p999_ms", "max, ms": "max_ms"}
_COLUMNS = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "p9999_ms", "max_ms")


def _tiles(result: RunResult) -> list[Mapping[str, object]]:
    measured = "intended_to_ack" if result.loop == "open" else "actual_to_ack"
    latency, why = result.quantiles()[measured], result.unsupported(measured)
    acked, errors = result.total("acked"), result.total("errors")
    tiles: list[tuple[str, str, bool]] = [
        ("acknowledged per second", f"{result.per_second('acked'):,.0f}", False),
        *((name, _value(latency, field, why), False) for name, field in _TILE_FIELDS.items()),
        ("acknowledged", f"{acked:,}", False),
        ("failed", f"{errors:,}", errors > 0),
    ]
    if consumed := result.total("consumed"):
        tiles.append(("consumed", f"{consumed:,}", False))
    if result.audit is not None:
        lost = _counts(result.audit).get("lost", 0)
        tiles.append(("lost", f"{lost:,}", lost > 0))
    return [
        {"name": name, "value": value, "bad": bad, "why": why.get(_TILE_FIELDS.get(name, ""), "")}
        for name, value, bad in tiles
    ]


def _value(quantiles: Quantiles, field: str, unsupported: Mapping[str, str]) -> str:
    """A percentile as text. Missing values are not shown as fast; values that are not about the broker have a mark."""
    return "~" * (field in unsupported) + figure(getattr(quantiles, field)) if quantiles.count else "-"


def _counts(audit: Mapping[str, object]) -> dict[str, int]:
    counts = audit.get("counts")
    return {str(name): int(count) for name, count in counts.items()} if isinstance(counts, Mapping) else {}


def _audit(audit: Mapping[str, Any] | None) -> Mapping[str, object] | None:
    if audit is None:
        return None
    examples = audit.get("examples", {})
    return {
        "clean": audit.get("clean", False),
        "word": "clean" if audit.get("clean") else "incomplete" if not any(_counts(audit).values()) else "faults found",
        "line": f"{audit.get('acknowledged', 0):,} acknowledged messages joined with {audit.get('consumed', 0):,} consumptions.",
        "faults": [
            {
                "name": name,
                "count": count,
                "examples": [
                    f"{one.get('message', '')} {one.get('place', '')} {one.get('detail', '')}" for one in examples.get(name, ())
                ],
            }
            for name, count in _counts(audit).items()
        ],
        "notes": audit.get("notes", ()),
    }  # fmt: skip


def _worker(worker: WorkerResult) -> Mapping[str, object]:
    clock = "same clock"
    if worker.clock_offset_ms is not None:
        clock = f"{worker.clock_offset_ms:+.3f} ± {worker.clock_error_ms or 0:.3f} ms"
    times = {name: f"{count:,} times " for name, count in worker.error_counts.items()}
    texts = [f"{times.get(name, '')}{name}: {text}" for name, text in worker.error_examples.items()]
    return {
        "worker": worker.worker,
        "where": f"{worker.host}, process {worker.pid}",
        "sent": f"{worker.sent:,}",
        "acked": f"{worker.acked:,}",
        "errors": f"{worker.errors:,}",
        "unsent": f"{worker.unsent:,}",
        "consumed": f"{worker.consumed:,}",
        "clock": clock,
        "texts": [*([worker.failure] if worker.failure else []), *texts],
    }


def _percentiles(results: Sequence[RunResult], folders: Sequence[str]) -> Iterable[Mapping[str, object]]:
    quantiles = [result.quantiles() for result in results]
    for field, name in MEASURED.items():
        first = True
        for number, (label, of_run) in enumerate(zip(labels(results, folders), quantiles, strict=True)):
            found = of_run[field]
            if found.count:
                why = results[number].unsupported(field)
                figures = [{"text": f"{found.count:,}", "why": ""}]
                figures += [{"text": _value(found, each, why), "why": why.get(each, "")} for each in _COLUMNS]
                colour = COLOURS[number % len(COLOURS)]
                yield {"name": name, "first": first, "run": label, "colour": colour, "figures": figures}
                first = False


def _configuration(result: RunResult) -> Iterable[tuple[str, object]]:
    for key, value in result.workload.items():
        if value not in (None, "", [], {}):
            yield key, value
    yield "seed", result.seed
    for key, value in result.target_details.items():
        yield f"target: {key}", value
    for key, value in result.surroundings.items():
        yield f"machine, {key}", value
    for key, version in result.versions.items():
        yield f"version: {key}", version
    for key, value in attrs.asdict(result.machine).items():
        yield f"machine: {key}", value


def figure(value: float) -> str:
    """A measured value for people: three significant digits, with thousands separators."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
