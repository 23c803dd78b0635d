"""Options of `triomq bench run` that are refused before anything starts, with the exit code of wrong usage."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner

from triomq_benchmarks.commands.measurements import hotpath
from triomq_benchmarks.commands.runs import compare, run


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--workers", "2"), "the engine local is one load generator; for several take --engine processes"),
        (("--engine", "processes", "--workers", "9"), "9 workers for 2 producers and 2 consumers"),
        (("--engine", "spark", "--workers", "9", "--master", "local[9]"), "9 workers for 2 producers and 2 consumers"),
        (("--engine", "spark", "--workers", "9"), "local[2] runs 2 tasks at once, and 9 load generators must run"),
        (("--engine", "spark", "--master", "nonsense"), "'nonsense' is not a Spark master"),
        (("--master", "local[3]"), "--master has no effect without --engine spark"),
        (("--spark-conf", "a=b"), "--spark-conf has no effect without --engine spark"),
        (("--engine", "processes", "--py-files", "a.zip"), "--py-files has no effect without --engine spark"),
        (("--keep-classes",), "--keep-classes has no effect without --engine spark"),
        (("--max-p99", "5"), "--max-p99 has no effect without --find-max-rate"),
        (
            ("--find-max-rate", "--set", "arrivals=step", "--set", 'steps=["9/s for 1 s"]'),
            "needs a rate that stays the same, and arrivals are a step",
        ),
        (("--set", "duration=12 h", "--set", "drain=300 h"), "a run takes at most 1,000,000 s"),
        (("--find-max-rate", "--set", "arrivals=ramp", "--set", "rate_to=9/s"), "and arrivals are a ramp"),
    ],
)
def test_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], text: str) -> None:
    def start(*_: object) -> NoReturn:
        raise AssertionError("it has started")

    monkeypatch.setattr(run, "Session", start)
    done = CliRunner().invoke(run.run, ["quick", *given, "--out", str(tmp_path)])
    assert done.exit_code == 2, done.exception
    assert text in done.stderr


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (run.run, ("quick", "--find-max-rate", "--max-p99", "nan")),
        (compare.compare, ("before", "after", "--tolerance", "nan")),
        (compare.compare, ("before", "after", "--find", "NaN")),
        (hotpath.hotpath, ("--seconds", "nan")),
        (hotpath.hotpath, ("--seconds", "0")),
    ],
)
def test_limits_are_numbers(command: click.Command, given: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command, given)
    assert done.exit_code == 2
    assert f"Invalid value for '{given[-2]}'" in done.stderr


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("runs.run", ("quick", "--out", "")),
        ("runs.engines", ("--out", "")),
        ("runs.compare", ("ours", "ours", "--repeat", "1", "--out", "")),
        ("runs.compare", (".", "")),
        ("runs.compare", ("", ".")),
        ("runs.report", ("",)),
        ("runs.report", (".", "--out", "")),
        ("runs.history", ("",)),
        ("runs.history", (".", "--out", "")),
        ("runs.audit", ("",)),
        ("measurements.consume", ("--home", "")),
        ("measurements.growth", ("--home", "")),
        ("measurements.ha", ("--home", "")),
        ("measurements.versus_java", ("--home", "")),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, given: tuple[str, ...]
) -> None:
    def start(*_: object) -> NoReturn:
        raise AssertionError("it has started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trio.run", start)
    module = importlib.import_module(f"triomq_benchmarks.commands.{name}")
    done = CliRunner().invoke(getattr(module, name.split(".")[1]), given)
    assert done.exit_code == 2, done.output
    assert "empty; for the current folder write `.`" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["measurements.spark_read", "flights_pipeline"])
@pytest.mark.parametrize("master", ["nonsense", "local[0]"])
def test_what_is_no_master_of_spark_starts_nothing(monkeypatch: pytest.MonkeyPatch, name: str, master: str) -> None:
    def start(*_: object) -> NoReturn:
        raise AssertionError("it has started")

    pytest.importorskip("pyspark")
    module = importlib.import_module(f"triomq_benchmarks.commands.{name}")
    monkeypatch.setattr(module, "measure", start)
    done = CliRunner().invoke(getattr(module, name.rpartition(".")[2]), ["--master", master])
    assert done.exit_code == 2, done.exception
    assert "Invalid value for --master" in done.stderr
    assert master in done.stderr
