"""One self-contained HTML page about one run, or about several runs side by side: verdicts, plots, tables, configuration.

The page loads nothing from anywhere, so that it can be mailed, archived and opened years later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from .run_charts import MEASURED, Chart, charts, labels
from .run_result import RunResult, WorkerResult

REPORT = "report.html"
_TEMPLATE = "report.html.j2"


class ReportUnavailableError(Exception):
    """What draws reports is not installed; the message says how to get it."""


def write_report(results: Sequence[RunResult], path: Path) -> None:
    """Write the page; it is whole or not there.

    Args:
        results: at least one run.
        path: of the file; its folder exists.

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
    template = environment.from_string(files(__package__).joinpath(_TEMPLATE).read_text("utf-8"))
    page = template.render(
        title=_title(results),
        description=results[0].workload.get("description"),
        plotly_js=Markup(get_plotlyjs()),
        charts=[_drawn(chart, Markup) for chart in charts(results)],
        runs=[_run(label, result, len(results)) for label, result in zip(labels(results), results, strict=True)],
        percentiles=list(_percentiles(results)),
        footer=f"triomq {results[0].versions.get('triomq', '')} · run {', '.join(each.run_id for each in results)}",
    )
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(page, "utf-8")
    os.replace(unfinished, path)


def _title(results: Sequence[RunResult]) -> str:
    names = dict.fromkeys(str(result.workload.get("name", "run")) for result in results)
    return f"{', '.join(names)} on {', '.join(labels(results))}"


def _drawn(chart: Chart, markup: type[Any]) -> Mapping[str, object]:
    html = chart.figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{chart.key}",
        config={"displaylogo": False, "responsive": True},
    )
    return {"key": chart.key, "title": chart.title, "caption": chart.caption, "html": markup(html)}


def _run(label: str, result: RunResult, of: int) -> Mapping[str, object]:
    """What the template shows of one run."""
    return {
        "label": label,
        "suffix": f": {label}" if of > 1 else "",
        "outcome": result.verdict.outcome.value,
        "passed": result.verdict.passed,
        "partial": result.partial,
        "line": f"{result.started_at} · {result.measured_s:g} s · {result.loop} loop · engine {result.engine} · "
        f"{len(result.workers)} load generator{'s' * (len(result.workers) != 1)}",
        "explanation": result.verdict.explanation,
        "notes": result.verdict.notes,
        "tiles": _tiles(result),
        "thresholds": [{**attrs.asdict(each), "measured": figure(each.measured)} for each in result.thresholds],
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


def _tiles(result: RunResult) -> list[Mapping[str, object]]:
    latency = result.quantiles()["intended_to_ack" if result.loop == "open" else "actual_to_ack"]
    acked, errors = result.total("acked"), result.total("errors")
    tiles: list[tuple[str, str, bool]] = [
        ("acknowledged per second", f"{acked / max(result.measured_s, 1e-9):,.0f}", False),
        ("p50, ms", figure(latency.p50_ms), False),
        ("p99, ms", figure(latency.p99_ms), False),
        ("p99.9, ms", figure(latency.p999_ms), False),
        ("max, ms", figure(latency.max_ms), False),
        ("acknowledged", f"{acked:,}", False),
        ("failed", f"{errors:,}", errors > 0),
    ]
    if consumed := result.total("consumed"):
        tiles.append(("consumed", f"{consumed:,}", False))
    if result.audit is not None:
        counts = _counts(result.audit)
        tiles.append(("lost", f"{counts.get('lost', 0):,}", counts.get("lost", 0) > 0))
    return [{"name": name, "value": value, "bad": bad} for name, value, bad in tiles]


def _counts(audit: Mapping[str, object]) -> dict[str, int]:
    counts = audit.get("counts")
    return {str(name): int(count) for name, count in counts.items()} if isinstance(counts, Mapping) else {}


def _audit(audit: Mapping[str, Any] | None) -> Mapping[str, object] | None:
    if audit is None:
        return None
    examples = audit.get("examples", {})
    return {
        "clean": audit.get("clean", False),
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
    texts = [f"{name}: {text}" for name, text in worker.error_examples.items()]
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


def _percentiles(results: Sequence[RunResult]) -> Iterable[Mapping[str, object]]:
    for field, name in MEASURED.items():
        for label, result in zip(labels(results), results, strict=True):
            found = result.quantiles()[field]
            if found.count:
                values = (found.p50_ms, found.p90_ms, found.p99_ms, found.p999_ms, found.p9999_ms, found.max_ms)
                yield {"name": name, "run": label, "figures": [f"{found.count:,}", *map(figure, values)]}


def _configuration(result: RunResult) -> Iterable[tuple[str, object]]:
    for key, value in result.workload.items():
        if value not in (None, "", [], {}):
            yield key, value
    yield "seed", result.seed
    for key, value in result.target_details.items():
        yield f"target: {key}", value
    for key, version in result.versions.items():
        yield f"version: {key}", version
    for key, value in attrs.asdict(result.machine).items():
        yield f"machine: {key}", value


def figure(value: float) -> str:
    """A measured value as people read it: three digits that matter, thousands parted."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
