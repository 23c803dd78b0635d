"""The report: everything is on the page, nothing is loaded from other servers, no text of a run is taken for markup,
and a real browser draws it."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from made_runs import SECONDS, made_run

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_files import write_run
from triomq_benchmarks.figures.run_result import FaultInstant, RunResult, RunStatus
from triomq_benchmarks.report.charts import charts, labels
from triomq_benchmarks.report.html import figure, write_report

PLOTS = [
    "latency", "heat", "quantiles", "rates", "throughput", "consumed-latency", "backlog", "replication_lag_bytes", "held_s",
    "readers", "cpu", "memory", "disk",
]  # fmt: skip
PLOTS_OF_TWO = ["latency", "heat-0", "heat-1", *PLOTS[2:]]
HOSTILE = "</script><script>document.title='taken'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


def page_of(folder: Path, *runs: RunResult) -> str:
    write_report(runs, folder / "report.html")
    return (folder / "report.html").read_text("utf-8")


def figures_of(page: str) -> dict[str, Any]:
    """What the page passes to Plotly, by plots."""
    found = re.findall(r'id="plot-([\w-]+)"></div>\s*<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return {key: json.loads(figure) for key, figure in found}


def traces_of(page: str, plot: str) -> dict[str, Any]:
    return {trace["meta"]: trace for trace in figures_of(page)[plot]["data"] if "legendgroup" not in trace}


def heat_of(page: str, second: int, at_ms: float) -> int:
    """How many messages of a second took about so long."""
    (trace,) = figures_of(page)["heat"]["data"]
    column = [line[trace["x"].index(second)] for line in trace["customdata"]]
    level = max(number for number, edge in enumerate(trace["y"]) if edge <= at_ms)
    return column[level] or 0


def without_plotly(page: str) -> str:
    return re.sub(r'<script type="application/gzip" id="plotly">.*?</script>', "", page, flags=re.DOTALL)


def text_of(page: str) -> str:
    """As a reader sees it, without the plots."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def test_everything_is_on_the_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, made_run(lost=3, errors=7, status=RunStatus.AUDIT_FAILED))
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]
    assert list(figures_of(page)) == PLOTS
    text = text_of(page)
    for expected in (
        "quick on ours", "made of chance", "audit failed", "All thresholds held.", "the broker held the generator back",
        "500 acknowledged per second", "10,000 acknowledged", "7 failed", "3 lost", "2026-11-21 11:00:00 UTC",
        "p99_ms < 5000 1990 kept", "8.00 s pause broker-a 10.00 s", "faults found",
        "lost 3 0:17 t broker-a/0 at 17 was <never> consumed", "7 times SendTimeout: a <b>text</b>", "+0.125 ± 0.050 ms",
        "body_bytes 1024", "machine: cpus 2", "version: triomq 0.1.0", "seed 1",
    ):  # fmt: skip
        assert expected in text, expected
    assert re.search(r"intended → acknowledged 10,000 1\.0\d \d\.\d+ 1,80\d 1,9\d\d ~2,0\d\d 2,0\d\d", text)


def test_figures_that_do_not_describe_the_broker_are_grey(tmp_path: Path) -> None:
    page = page_of(tmp_path, made_run(per_second=200))
    # Of 4,000 messages four lie beyond p99.9.
    why = 'title="fewer than 10 of 4,000 messages took longer"'
    assert re.search(rf'<div class="tile +unsupported" {why}><b>~[\d,.]+</b><span>p99.9, ms', page)
    assert re.search(r'<div class="tile +" title=""><b>[\d,.]+</b><span>p99, ms', page)
    assert re.search(rf'<td class="n unsupported" {why}>~', page)


def test_plotly_is_packed_into_the_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, made_run())
    (packed,) = re.findall(r'id="plotly">(.*?)</script>', page, re.DOTALL)
    assert b"plotly.js" in gzip.decompress(base64.b64decode(packed))[:100]
    assert len(page) < 3_000_000
    assert len(without_plotly(page)) < 200_000


def test_a_page_loads_nothing_from_other_servers(tmp_path: Path) -> None:
    page = without_plotly(page_of(tmp_path, made_run(), made_run(target="java")))
    assert not re.search(r"https?:|\bsrc=|\bhref=|url\(|@import|<link|<iframe", page)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|\*", policy)


def hostile_run() -> RunResult:
    run = made_run(errors=1, lost=1)
    assert run.audit is not None
    examples = {"lost": [{"message": HOSTILE, "place": HOSTILE, "detail": HOSTILE}]}
    return attrs.evolve(
        run,
        run_id=HOSTILE,
        engine=HOSTILE,
        target=HOSTILE,
        target_details={HOSTILE: HOSTILE},
        workload={"name": HOSTILE, "description": HOSTILE},
        versions={"triomq": HOSTILE},
        faults=(FaultInstant(what=HOSTILE, node=HOSTILE, second=8.0),),
        decision=attrs.evolve(run.decision, explanation=HOSTILE, notes=(HOSTILE,)),
        thresholds=(attrs.evolve(run.thresholds[0], text=HOSTILE),),
        workers=tuple(attrs.evolve(each, host=HOSTILE, failure=HOSTILE, error_examples={HOSTILE: HOSTILE}) for each in run.workers),
        audit={**run.audit, "examples": examples, "notes": [HOSTILE]},
    )  # fmt: skip


@pytest.mark.parametrize("beside", [(), (made_run(),)], ids=["alone", "beside another"])
def test_no_text_of_a_run_is_markup(tmp_path: Path, beside: Sequence[RunResult]) -> None:
    page = without_plotly(page_of(tmp_path, hostile_run(), *beside))
    harmless = without_plotly(page_of(tmp_path, made_run(errors=1, lost=1), *beside))
    assert page.count("&lt;/script&gt;") > 20
    for element in ("<script", "</script", "<img"):
        assert page.count(element) == harmless.count(element)
    # Plotly takes some HTML in its texts, links among it.
    for plot in figures_of(page).values():
        for trace in plot["data"]:
            assert "<" not in trace.get("name", "")
        for annotation in plot["layout"].get("annotations", ()):
            assert "<" not in annotation["text"]


def test_a_partial_run_is_reported_as_partial(tmp_path: Path) -> None:
    run = made_run(partial=True, status=RunStatus.INCOMPLETE)
    half = attrs.evolve(run, rows=tuple(row for row in run.rows if row.second < 5), audit=None)
    text = text_of(page_of(tmp_path, half))
    assert "ours incomplete partial" in text
    assert " UTC · 5 of 20 s · " in text
    # Of the seconds there are, not of those that were intended.
    assert "500 acknowledged per second" in text
    assert "lost" not in text


def test_an_empty_run_is_drawn_too(tmp_path: Path) -> None:
    nothing = attrs.evolve(
        made_run(), rows=(), resources=(), workers=(), faults=(), thresholds=(), audit=None, partial=True
    )
    page = page_of(tmp_path, nothing)
    assert list(figures_of(page)) == ["latency", "quantiles", "rates"]
    assert "Nothing was measured." in text_of(page)
    assert "- p99, ms" in text_of(page)


def test_several_runs_are_shown_side_by_side(tmp_path: Path) -> None:
    page = page_of(tmp_path, made_run(), made_run(target="java", slower=2.0, seed=2), made_run(target="a:1", seed=3))
    assert list(figures_of(page)) == ["latency", "heat-0", "heat-1", "heat-2", *PLOTS[2:]]
    assert list(traces_of(page, "latency")) == [
        f"{run}: {part}" for run in ("ours", "java", "a:1") for part in ("p99", "p50")
    ]
    assert list(traces_of(page, "backlog")) == ["ours", "java", "a:1"]
    text = text_of(page)
    assert "quick on ours, java, a:1" in text
    assert re.search(r"Side by side .* ours 500 1\.0\d 1,8.* java 500 2\.0\d 1,8.* a:1 500 1\.0\d", text)
    assert re.search(
        r"intended → acknowledged ours 10,000 .* java 10,000 .* a:1 10,000 .* sent → acknowledged ours", text
    )
    marks = [each["text"] for each in figures_of(page)["latency"]["layout"]["annotations"]]
    assert sorted(marks) == ["a:1: pause (broker-a)", "java: pause (broker-a)", "ours: pause (broker-a)", "warm-up"]


def test_a_clean_audit_takes_one_line(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, made_run()))
    assert "Audit clean 10,000 acknowledged messages joined with 10,000 consumptions. Each consumed once" in text
    assert "duplicated" not in text


def test_plots_without_anything_to_show_are_left_out_a_backlog_of_zero_is_shown(tmp_path: Path) -> None:
    run = made_run()
    quiet = attrs.evolve(
        run,
        rows=tuple(
            attrs.evolve(row, held_s=0.0, replication_lag_bytes=None, backlog=None if row.backlog is None else 0,
                         from_slave=0, from_master=row.from_master + row.from_slave)
            for row in run.rows
        ),
    )  # fmt: skip
    page = page_of(tmp_path, quiet)
    shown = figures_of(page)
    assert [key for key in PLOTS if key not in shown] == ["replication_lag_bytes", "held_s"]
    assert list(traces_of(page, "readers")) == ["a master", "a slave"]
    page = page_of(tmp_path, quiet, attrs.evolve(quiet, target="java"))
    assert list(traces_of(page, "readers")) == ["ours: a master", "java: a master"]


def test_labels_distinguish_runs() -> None:
    run = made_run()
    assert labels([run, made_run(target="java")]) == ["ours", "java"]
    assert labels([run, attrs.evolve(run, engine="local")]) == ["ours (processes 2)", "ours (local)"]
    assert labels([run, attrs.evolve(run, workload={"name": "failover"})]) == ["ours (quick)", "ours (failover)"]
    assert labels([run, run, made_run(target="java")]) == ["ours #1", "ours #2", "java"]
    assert labels([run, run], ["before", "after"]) == ["before: ours", "after: ours"]
    assert labels([run, made_run(target="java")], ["before", "after"]) == ["ours", "java"]


def test_values_of_the_plots(tmp_path: Path) -> None:
    page = page_of(tmp_path, made_run(errors=7))
    latency = traces_of(page, "latency")
    assert list(latency) == ["max", "p99", "p50", "p99 of the generator's own lateness"]
    assert latency["max"]["x"] == list(range(-3, SECONDS + 1))
    by_second = dict(zip(latency["max"]["x"], latency["max"]["y"], strict=True))
    assert by_second[8] == pytest.approx(2000, rel=0.01)
    assert by_second[9] == pytest.approx(1000, rel=0.01)
    assert by_second[10] < 20
    rates = traces_of(page, "rates")
    assert set(rates["acknowledged"]["y"]) == {500}
    assert (rates["failed"]["x"], rates["failed"]["y"], rates["failed"]["mode"]) == ([9.5], [7], "markers")
    readers = traces_of(page, "readers")
    slave = dict(zip(readers["a slave"]["x"], readers["a slave"]["y"], strict=True))
    assert [second for second, value in slave.items() if value] == [10, 11, 12, 13]
    lag = traces_of(page, "replication_lag_bytes")["ours"]
    assert dict(zip(lag["x"], lag["y"], strict=True))[8] > 3 * 1024
    curve = traces_of(page, "quantiles")["intended → acknowledged"]
    assert (curve["x"][0], curve["x"][-1]) == (1, pytest.approx(1000))
    # Beyond the 99.9th percentile lie fewer than ten of the 10,000 messages.
    grey = [trace for trace in figures_of(page)["quantiles"]["data"] if trace.get("legendgroup") == "part"]
    assert [trace["meta"] for trace in grey] == list(traces_of(page, "quantiles"))
    assert (grey[0]["x"][0], grey[0]["x"][-1]) == (pytest.approx(1000), pytest.approx(10_000))
    assert {trace["line"]["color"] for trace in grey} == {"#94a3b8"}
    assert 'data-traces="[0, 1]"' in page
    assert curve["text"][0] == "p0"
    assert (curve["text"][-1], grey[0]["text"][-1]) == ("p99.9", "p99.99")
    assert curve["y"] == sorted(curve["y"])
    assert grey[0]["y"][-1] == pytest.approx(2001, rel=0.01)
    # Half of a second's messages around a millisecond, none of the pause's, which ends in seconds.
    assert heat_of(page, 5, 1.0) > 50
    assert heat_of(page, 8, 1.0) == 0
    assert heat_of(page, 8, 1_500) > 50
    sent = traces_of(page, "throughput")["sent"]
    assert set(sent["y"]) == {500 * 1024 / 1e6}
    assert list(traces_of(page, "cpu")) == ["broker-a", "load generators", "machine"]
    assert list(traces_of(page, "memory")) == ["broker-a", "load generators"]
    cpu = traces_of(page, "cpu")["broker-a"]
    values = dict(zip(cpu["x"], cpu["y"], strict=True))
    # The pause's seconds are not sampled here: a gap, no line over it.
    assert (values[7], values[8], values[9], values[10]) == (0.5, None, None, 0.5)
    axis = figures_of(page)["quantiles"]["layout"]["xaxis"]
    assert (axis["type"], axis["ticktext"]) == ("log", ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"])
    assert [math.log10(value) for value in axis["tickvals"]] == pytest.approx([0, math.log10(2), 1, 2, 3, 4])


def test_silence_is_a_zero_for_rates_and_a_gap_for_latencies(tmp_path: Path) -> None:
    run = made_run()
    page = page_of(tmp_path, attrs.evolve(run, rows=tuple(row for row in run.rows if row.second not in {12, 13})))
    acked = traces_of(page, "rates")["acknowledged"]
    assert [y for x, y in zip(acked["x"], acked["y"], strict=True) if x in {12, 13}] == [0, 0]
    p50 = traces_of(page, "latency")["p50"]
    assert [y is None for x, y in zip(p50["x"], p50["y"], strict=True) if 11 <= x <= 14] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert p50["x"][15:17] == [12, 12]  # the step of second 11 has its whole length
    lag = traces_of(page, "replication_lag_bytes")["ours"]
    assert None in lag["y"]
    assert "fill" not in lag  # it would bridge the gap


def test_faults_warm_up_and_drain_are_marked() -> None:
    run = made_run()
    faults = (
        FaultInstant(what="kill master", node="broker-a", second=10.0),
        FaultInstant(what="pause broker-b", node="broker-b", second=10.2, until=12.0),
        FaultInstant(what="restart slave", node="broker-a-s", second=19.5, until=19.9),
    )
    rows = (*run.rows, IntervalRow(worker=0, second=SECONDS, consumed=5), IntervalRow(worker=-1, second=-4, backlog=0))
    for chart in charts([attrs.evolve(run, faults=faults, rows=rows)]):
        if chart.key == "quantiles":
            continue
        notes = {each.text: each for each in chart.figure.layout.annotations}
        assert set(notes) == {
            "warm-up",
            "drain",
            "kill master (broker-a)",
            "pause broker-b",
            "restart slave (broker-a-s)",
        }
        # Texts that would meet lie on lines of their own; one at the edge goes to the left.
        assert notes["kill master (broker-a)"].yshift < notes["pause broker-b"].yshift
        assert notes["restart slave (broker-a-s)"].xanchor == "right"
        lines = [each.x0 for each in chart.figure.layout.shapes if each.type == "line"]
        assert lines == [10.0, 10.2, 19.5]
        areas = {(each.x0, each.x1) for each in chart.figure.layout.shapes if each.type == "rect"}
        assert areas == {(-3, 0), (20, 21), (10.2, 12.0), (19.5, 19.9)}
        assert chart.figure.layout.xaxis.range == (-3, 21)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.1234, "0.123"), (1.0, "1"), (42.55, "42.5"), (123.4, "123"), (1990.0, "1,990"), (1e6, "1,000,000"), (math.inf, "inf")],
)  # fmt: skip
def test_figures_have_the_digits_that_matter(value: float, shown: str) -> None:
    assert figure(value) == shown


# --- the command
# -------------------------------------------------------------------------------------------------------


def report(*arguments: str | Path) -> Any:
    return CliRunner().invoke(bench, ["report", *map(str, arguments)], catch_exceptions=False)


def test_the_command_draws_stored_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(made_run(), tmp_path / "both" / "ours")
    write_run(made_run(target="java", seed=2), tmp_path / "both" / "java")
    one = report("both/ours")
    assert (one.exit_code, one.stdout) == (0, "both/ours/report.html\n")
    assert "quick on ours" in text_of((tmp_path / "both/ours/report.html").read_text())
    assert report("both").stdout == "both/report.html\n"
    assert "quick on java, ours" in text_of((tmp_path / "both/report.html").read_text())
    assert report("both/ours", "both/java").stdout == "report.html\n"
    assert "quick on ours, java" in text_of((tmp_path / "report.html").read_text())
    assert report("both/ours", "--out", "page.html").stdout == "page.html\n"


def test_runs_on_one_target_are_called_by_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("before", "after", "other/after"):
        write_run(made_run(seed=len(folder)), tmp_path / folder)
    report("before", "after")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"Side by side .* before: ours 500 .* after: ours 500 ", text_of(page))
    assert "before: ours: p99" in traces_of(page, "latency")
    report("after", "other/after")
    assert re.search(
        r"Side by side .* after: ours 500 .* other/after: ours 500 ", text_of((tmp_path / "report.html").read_text())
    )


def test_the_command_takes_the_newer_audit(tmp_path: Path) -> None:
    write_run(made_run(), tmp_path)
    audit = {**(made_run(lost=2).audit or {}), "acknowledged": 9999}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    assert report(tmp_path).exit_code == 0
    assert "9,999 acknowledged messages" in text_of((tmp_path / "report.html").read_text())
    (tmp_path / "audit.json").write_text("{")
    damaged = report(tmp_path)
    assert damaged.exit_code == 1
    assert "audit.json is damaged" in damaged.stderr


@pytest.mark.parametrize(
    ("prepare", "arguments", "why"),
    [
        (lambda _folder: None, ("nowhere",), "nowhere holds no run"),
        (lambda folder: write_run(made_run(), folder), (".", "--out", "no/such/folder.html"), "cannot be written: No such file"),
    ],
    ids=["no run", "no folder"],
)  # fmt: skip
def test_the_command_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path], None], arguments: Sequence[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    done = report(*arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert why in done.stderr


@pytest.mark.parametrize("missing", ["plotly", "jinja2"])
def test_without_the_packages_the_error_names_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    write_run(made_run(), tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    done = report(tmp_path)
    assert done.exit_code == 1
    assert f"no report without {missing}" in done.stderr
    assert "pip install 'triomq[bench]'" in done.stderr
    assert f"triomq bench report {tmp_path}" in done.stderr
    assert not (tmp_path / "report.html").exists()


# --- a real browser
# ----------------------------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1600",
)  # fmt: skip
BROWSER_LIMIT_S = 240


def elements(browser: str, url: str, profile: Path, *, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Let a browser run a page's scripts, and print the elements that there are then."""
    own = f"--user-data-dir={profile}"
    command = [browser, *FLAGS, own, "--virtual-time-budget=30000", "--dump-dom", url]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that works; the environment variable TRIOMQ_BROWSER names another one than those that are usual."""
    names = (os.environ["TRIOMQ_BROWSER"],) if "TRIOMQ_BROWSER" in os.environ else BROWSERS
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on the path (Debian: apt install chromium)")
    try:
        tried = elements(found, "data:text/html,<p>works", tmp_path_factory.mktemp("profile"), limit_s=60)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{found} says nothing for a minute")
    if tried.returncode or "works" not in tried.stdout:
        pytest.skip(f"{found} does not run here: {tried.stderr.strip()[-200:]}")
    return found


def drawn(browser: str, page: Path, profile: Path) -> str:
    """The page's elements once its scripts have run."""
    done = elements(browser, page.as_uri(), profile, limit_s=BROWSER_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plots_of(dom: str) -> dict[str, str]:
    """What is drawn in each plot, by plots."""
    parts = re.split(r'<section class="card chart" id="([\w-]+)">', dom)
    return {key: part.partition("</section>")[0] for key, part in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.slow
def test_a_browser_draws_every_plot(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report([made_run(lost=3, errors=7)], page)
    dom = drawn(browser, page, tmp_path / "profile")
    assert 'data-drawn="yes"' in dom
    assert re.search(r'<p class="warning" id="failure" hidden=""></p>', dom)
    plots = plots_of(dom)
    assert list(plots) == PLOTS
    for key, plot in plots.items():
        assert plot.count('class="main-svg"') >= 1, key
        lines = re.findall(r'<path class="js-line" d="([^"]{20,})"', plot)
        areas = re.findall(r'<path class="js-fill" d="([^"]{20,})"', plot)
        expected = {
            "latency": 4,
            "quantiles": 8,
            "rates": 3,
            "throughput": 2,
            "heat": 0,
            "cpu": 4,
            "memory": 3,
            "disk": 3,
            "consumed-latency": 3,
            "readers": 2,
        }.get(key, 1)
        assert len(areas if key == "readers" else lines) == expected, key
        texts = [
            html.unescape(each)
            for each in re.findall(r"<tspan[^>]*>([^<]*)</tspan>|<text[^>]*>([^<]+)</text>", plot)
            for each in each
        ]
        assert ("pause (broker-a)" in texts) == (key != "quantiles"), key
        assert ("99.9 %" in texts) == (key == "quantiles"), key


@pytest.mark.slow
def test_a_browser_shows_texts_as_text_and_sends_no_other_requests(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report([hostile_run(), made_run()], page)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        # Even a page that wants something from outside does not get it.
        asks = f'<img src="http://127.0.0.1:{listener.getsockname()[1]}/x"></main>'
        page.write_text(page.read_text("utf-8").replace("</main>", asks), "utf-8")
        dom = drawn(browser, page, tmp_path / "profile")
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert 'data-drawn="yes"' in dom
    assert "<title>taken" not in dom
    assert not re.search(r"<(a|img)\b[^>]*127\.0\.0\.1:9/", dom)
    assert list(plots_of(dom)) == PLOTS_OF_TWO
