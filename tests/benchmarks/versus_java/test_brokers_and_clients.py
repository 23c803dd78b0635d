"""Rows from samples: medians, ratios, and their comparison with goals."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from rich.console import Console

from triomq_benchmarks.drivers.driver_processes import Sample
from triomq_benchmarks.versus_java import brokers_and_clients
from triomq_benchmarks.versus_java import tables as report
from triomq_benchmarks.versus_java.brokers_and_clients import Comparison, Plan, Row, Single, compare_brokers, figures


def sample(per_s: float, *, broker_us: float = 10, client_us: float = 20) -> Sample:
    return Sample(
        messages=1000,
        seconds=1000 / per_s,
        failures=0,
        p50_us=5,
        p99_us=9,
        broker_cpu_s=broker_us / 1000,
        client_cpu_s=client_us / 1000,
    )


def test_figures_are_medians_seen_from_one_end() -> None:
    samples = [sample(100), sample(900), sample(300, broker_us=12)]
    assert figures(samples, "broker").per_s == pytest.approx(300)
    assert figures(samples, "broker").cpu_us == pytest.approx(10)
    assert figures(samples, "broker").other_cpu_us == pytest.approx(20)
    assert figures(samples, "sdk").cpu_us == pytest.approx(20)


@pytest.fixture
def comparison() -> Comparison:
    row = Row(
        side="broker",
        scenario="1 x 1",
        body_bytes=128,
        load="raw",
        ours=figures([sample(3000, broker_us=5)], "broker"),
        java=figures([sample(1000, broker_us=20)], "broker"),
        goal=1.4,
        cpu_goal=0.5,
    )
    return Comparison((row,), (Single("start to first answer", "s", 0.3, 3.0, 0.1),))


def test_ratios(comparison: Comparison) -> None:
    assert comparison.rows[0].ratio == pytest.approx(3)
    assert comparison.rows[0].cpu_ratio == pytest.approx(0.25)
    assert comparison.singles[0].ratio == pytest.approx(0.1)


def test_the_table_shows_ratios_beside_goals(comparison: Comparison) -> None:
    console = Console(width=240, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    report.print_comparison(comparison, console)
    console.file.close()
    text = console.export_text()
    assert "3.00x (>= 1.4)" in text
    assert "0.25x (<= 0.5)" in text
    assert "0.10x (<= 0.1)" in text


def test_json_is_for_machines(comparison: Comparison) -> None:
    output = json.loads(report.comparison_json(comparison))
    assert output["rows"][0]["ratio"] == 3.0
    assert output["rows"][0]["java"]["per_s"] == pytest.approx(1000)
    assert output["machine"]["cpus"] >= 1
    assert output["failure"] is None


@pytest.mark.parametrize("keep", [False, True])
def test_the_stores_of_a_body_size_are_deleted_before_the_next_one(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: bool
) -> None:
    opened: list[Path] = []

    class Broker:
        kind = "ours"

        def __init__(self, _kind: object, home: Path, java: object = None) -> None:
            assert all(each.exists() == keep for each in opened if each.parent != home.parent)
            opened.append(home)
            home.mkdir(parents=True)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_error: object) -> None: ...

    load = SimpleNamespace(name="raw", run=lambda *_args: None)
    monkeypatch.setattr(brokers_and_clients, "open_single_broker", Broker)
    monkeypatch.setattr(brokers_and_clients, "java_driver", lambda *_args: nullcontext())
    monkeypatch.setattr(brokers_and_clients, "Load", lambda *_args: load)
    monkeypatch.setattr(brokers_and_clients, "_broker_row", lambda *_args: comparison.rows[0])
    plan = Plan(bodies=(128, 1024), loads=("raw",), broker_scenarios=("1 x 1",), keep_stores=keep)
    assert len(list(compare_brokers(plan, None, tmp_path, lambda _text: None))) == 2
    assert len(opened) == 4
    assert all(each.exists() == keep for each in opened)
