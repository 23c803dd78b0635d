"""Rows, tables and JSON from samples of consumers, and their colours."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import attrs
import pytest
from click.testing import CliRunner
from rich.console import Console

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.servers import Kind
from triomq_benchmarks.commands.measurements import consume as consume_command
from triomq_benchmarks.versus_java import consume_speed
from triomq_benchmarks.versus_java.consume_memory import Stalled, stalled_of
from triomq_benchmarks.versus_java.consume_speed import Cell, ConsumePlan, ConsumeSample, figures, rows
from triomq_benchmarks.versus_java.consume_tables import row_json, speed_table, stalled_table

OURS, JAVA = Kind.OURS, Kind.JAVA


def sample(per_s, client_us=5.0, broker_us=2.0):
    return ConsumeSample(
        messages=1000, seconds=1000 / per_s, client_cpu_s=client_us / 1000, broker_cpu_s=broker_us / 1000
    )


def test_figures_are_medians_per_message():
    taken = figures([sample(100, 1, 9), sample(900, 3, 2), sample(300, 50, 1)])
    assert (taken.per_s, taken.client_us, taken.broker_us) == pytest.approx((300, 3, 2))
    assert taken.all_per_s == pytest.approx((100, 900, 300))


def test_our_client_is_compared_to_javas_on_the_same_broker():
    samples = {
        Cell("push", OURS, OURS): [sample(100, 4)],
        Cell("push", OURS, JAVA): [sample(200, 8)],
        Cell("push", JAVA, OURS): [sample(90)],
        Cell("push", JAVA, JAVA): [sample(30)],
    }
    on_ours, on_java = rows(samples)
    assert (on_ours.broker, on_java.broker) == (OURS, JAVA)
    assert on_ours.ratio == pytest.approx(0.5)
    assert on_ours.cpu_ratio == pytest.approx(0.5)
    assert on_java.ratio == pytest.approx(3)


def test_without_java_there_is_half_of_it():
    (row,) = rows({Cell("lite", OURS, OURS): [sample(100)]})
    assert (row.java, row.ratio, row.cpu_ratio) == (None, None, None)
    table = shown(speed_table([row], ConsumePlan()))
    assert "lite pull" in table
    assert "100" in table
    output = row_json(row)
    assert output["java"] is None
    assert output["ratio"] is None


def shown(table):
    out = io.StringIO()
    Console(file=out, width=220, force_terminal=True, color_system="standard").print(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "ours", "java", "green"),
    [
        ("push", (69, 5), (100, 5), 0),
        ("push", (70, 50), (100, 5), 1),
        ("lite", (99, 5), (100, 5), 1),
        ("lite", (100, 5), (100, 5), 2),
        ("lite", (100, 5.1), (100, 5), 1),
    ],
)
def test_goals_are_checked(kind, ours, java, green):
    (row,) = rows({Cell(kind, OURS, OURS): [sample(*ours)], Cell(kind, OURS, JAVA): [sample(*java)]})
    table = shown(speed_table([row], ConsumePlan()))
    assert table.count("\x1b[32m") == green


STALLED = Stalled(
    name="default", messages=1000, held=10, held_bytes=1 << 20, limit_bytes=8 << 20, before_bytes=30 << 20,
    stalled_bytes=31 << 20, peak_bytes=72 << 20,
)  # fmt: skip


def test_the_peak_of_memory_is_measured():
    assert STALLED.allowed_bytes == 72 << 20
    assert STALLED.passed
    over = attrs.evolve(STALLED, peak_bytes=(72 << 20) + 1)
    assert not over.passed
    assert "\x1b[32m" in shown(stalled_table([STALLED]))
    assert "\x1b[1;31m" in shown(stalled_table([over]))


def test_a_limit_counts_for_each_queue():
    answer = {
        "messages": 1, "held": 1, "heldBytes": 1, "queues": 8, "limitBytes": 16, "beforeBytes": 1, "stalledBytes": 1,
        "peakBytes": 1,
    }  # fmt: skip
    assert stalled_of("x", answer).limit_bytes == 128


def run(monkeypatch, *arguments, java=None):
    def find():
        if java is None:
            raise ToolUnavailableError("java is not installed")
        return java

    seen = []

    def measured(plan, found, home, progress):
        seen.append((plan, found))
        progress("round 1 of 1")
        return rows({Cell(kind, OURS, OURS): [sample(100)] for kind in plan.kinds})

    monkeypatch.setattr(consume_command, "find_java", find)
    monkeypatch.setattr(consume_command, "measure_consumers", measured)
    return CliRunner().invoke(bench, ["consume", *arguments], catch_exceptions=False), seen


def test_without_java_our_half_is_measured_and_the_report_shows_it(monkeypatch):
    done, [(plan, java)] = run(monkeypatch, "--quick")
    assert done.exit_code == 0
    assert "java is not installed" in done.stderr
    assert "round 1 of 1" in done.stderr
    assert java is None
    assert (plan.count, plan.rounds, plan.warm_up, plan.kinds) == (100_000, 3, 2, ("push", "lite"))
    assert "Consumers of 100,000 messages" in done.stdout


def test_only_json_is_printed(monkeypatch):
    done, [(plan, java)] = run(
        monkeypatch, "--json", "--kind", "lite", "--count", "5000", "--warm-up", "0", java="java"
    )
    assert (java, plan.kinds, plan.count, plan.warm_up) == ("java", ("lite",), 5000, 0)
    assert done.stderr == ""
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["kind"], row["goal"], row["cpu_goal"]) == ("lite", 1.0, 1.0)


def test_memory_over_the_limit_is_a_failure(monkeypatch):
    over = attrs.evolve(STALLED, peak_bytes=1 << 30)
    monkeypatch.setattr(consume_command, "measure_stalled", lambda *_: [STALLED, over])
    done = CliRunner().invoke(bench, ["consume", "--stalled", "--json"])
    assert done.exit_code == 1
    assert [each["passed"] for each in json.loads(done.stdout)["stalled"]] == [True, False]


def test_bodies_that_were_not_read_are_no_sample(tmp_path):
    class Cheat:
        name = "cheat"

        def call(self, command, limit_s):
            return {"messages": 10, "bytes": 10 * 1024 - 1, "seconds": 1.0, "cpuSeconds": 1.0}

    on = SimpleNamespace(namesrv=SimpleNamespace(address=""), broker=SimpleNamespace(cpu_s=lambda: 0.0))
    with pytest.raises(consume_speed.DriverError, match="1024 each"):
        consume_speed._sample(Cheat(), on, "push", "g", ConsumePlan())
