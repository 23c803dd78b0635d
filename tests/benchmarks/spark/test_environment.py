"""Errors for a missing Java or pyspark, and the variables that are set; none of it needs Spark."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.figures.machine import machine_now
from triomq_benchmarks.generator.engine import EngineError
from triomq_benchmarks.spark.engine import PATIENCE_S, QUIET_MAX_S, QUIET_S, SlotsRule, open_spark_engine
from triomq_benchmarks.spark.environment import (
    check_reachable,
    check_spark,
    find_java,
    java_version,
    local_slots,
    prepare_environment,
    quiet_interrupts,
    session_settings,
    spark_looks_for_sources,
)


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" x', 21),
        ("", None),
    ],
)
def test_versions_are_read(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "21.0.2")
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"}) == str(java)


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_402"])
def test_an_old_java_is_named_with_its_cure(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path, version)
    with pytest.raises(ToolUnavailableError, match=rf"needs Java 17 or newer, and {tmp_path}/bin/java is .*openjdk-17"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_missing_java_names_how_to_install_it() -> None:
    with pytest.raises(ToolUnavailableError, match=r"no java in PATH.*openjdk-17-jre-headless"):
        find_java({"PATH": "/nowhere"})


def test_a_java_home_without_java_is_distinguished() -> None:
    with pytest.raises(ToolUnavailableError, match="JAVA_HOME points to /nowhere/bin/java, which does not run"):
        find_java({"JAVA_HOME": "/nowhere"})


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(
        ToolUnavailableError, match=r"package pyspark: pip install 'triomq\[spark\]', with Python 3.11 to 3.14$"
    ):
        check_spark()


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("spark://h:7077", None),
    ],
)
def test_slots_of_masters(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


def test_processors_that_this_process_may_not_use_are_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM does not count them either."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert local_slots("local[*]") == 1
    assert machine_now()["cpus"] == 1


@pytest.mark.parametrize("master", ["local(2)", "locals", "127.0.0.1:7077", ""])
def test_a_master_that_is_none_is_refused(master: str) -> None:
    with pytest.raises(ValueError, match="is not a Spark master; known are"):
        local_slots(master)


def test_a_master_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match=r"local\[0\] runs no task; give local\[1\] or more"):
        local_slots("local[0]")


def test_variables_set_by_the_user_are_kept() -> None:
    environment = {"PYSPARK_PYTHON": "/opt/python"}
    prepare_environment("local[2]", environment)
    environment.pop("PYTHONPATH", None)
    assert environment == {
        "PYSPARK_PYTHON": "/opt/python", "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("home", "looks"), [("/opt/spark-4.3_a~b", True), ("/home/a user/pyspark", False), ("/home/jörg/pyspark", False)]
)
def test_where_spark_looks_for_sources(home: str, looks: bool) -> None:
    assert spark_looks_for_sources(Path(home)) is looks


def test_only_loopback_is_bound_to_loopback(tmp_path: Path) -> None:
    far: dict[str, str] = {}
    prepare_environment("spark://far.example:7077", far)
    assert "SPARK_LOCAL_IP" not in far
    assert "spark.driver.host" not in session_settings("spark://far.example:7077", tmp_path, "ERROR")
    assert session_settings("spark://127.0.0.1:1", tmp_path, "ERROR")["spark.driver.host"] == "127.0.0.1"


async def refusal(master: str, workers: int | None) -> str:
    said: list[str] = []
    try:
        async with open_spark_engine(master, workers=workers, say=said.append):
            pass
    except EngineError as error:
        assert said == [], "nothing was started"
        return str(error)
    return "nothing"


async def test_too_few_slots_are_noticed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert await refusal("local[2]", 3) == (
        "local[2] runs 2 tasks at once, and 3 load generators must run together: use local[3], or ask for --workers 2"
    )


async def test_a_master_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    text = await refusal("spark://127.0.0.1:1", None)
    assert text.startswith("no Spark master answers at spark://127.0.0.1:1: ")
    assert text.endswith("`triomq bench spark-cluster` starts one on this machine")


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "spark://127.0.0.1:99999", "spark://a..b:7077"])
def test_masters_that_do_not_answer(master: str) -> None:
    with pytest.raises(
        ToolUnavailableError, match=f"no Spark master answers at {master}: .* starts one on this machine"
    ):
        check_reachable(master)


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://127.0.0.1:1,127.0.0.1:2"])
def test_masters_that_are_not_asked(master: str) -> None:
    check_reachable(master)


@pytest.mark.parametrize(("name", "numbers"), [("read", (1000, 1, 1, 1)), ("flights_pipeline", (100, 10))])
def test_a_measurement_needs_its_master_first(
    monkeypatch: pytest.MonkeyPatch, name: str, numbers: tuple[int, ...]
) -> None:
    pytest.importorskip("pyspark")
    module = importlib.import_module(f"triomq_benchmarks.spark.{name}")

    def start(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it has started")

    monkeypatch.setattr(module, "check_spark", lambda: None)
    monkeypatch.setattr(module, "open_cluster", start)
    with pytest.raises(ToolUnavailableError, match="no Spark master answers"):
        module.measure(*numbers, "spark://127.0.0.1:1", print)


def begun_at(
    looks: list[tuple[float, int]], workers: int | None, most: int | None, *, is_cluster: bool = True
) -> float | None:
    """The instant at which a run begins, given how many slots there were when."""
    rule = SlotsRule(0.0, workers, most, is_cluster=is_cluster)
    return next((now for now, slots in looks if rule.is_enough(slots, now)), None)


def looks(*changes: tuple[float, int], until: float = 60.0) -> list[tuple[float, int]]:
    """A look each tenth of a second."""
    times = [number / 10 for number in range(int(until * 10))]
    return [(now, max([slots for at, slots in changes if at <= now], default=0)) for now in times]


@pytest.mark.parametrize(
    ("found", "workers", "most", "begin"),
    [
        (looks((3, 1), (4, 2)), 2, None, 4),
        (looks((3, 1)), 2, None, None),
        # No more than there is work for.
        (looks((3, 1), (4, 2), (5, 3)), None, 2, 4),
        (looks((3, 8)), None, 2, 3),
        # As many as there are: on a slow machine the second one may come long after the first.
        (looks((3, 1)), None, 2, 6),
        (looks((15, 1), (25, 2)), None, 2, 25),
        (looks((15, 1), (25, 2)), None, None, 40),
        (looks((0.5, 1)), None, None, 0.5 + QUIET_S),
        (looks((30, 1)), None, None, 30 + QUIET_MAX_S),
        (looks(), None, 2, None),
    ],
)
def test_how_many_slots_are_waited_for(
    found: list[tuple[float, int]], workers: int | None, most: int | None, begin: float | None
) -> None:
    assert begun_at(found, workers, most) == (None if begin is None else pytest.approx(begin, abs=0.11))


def test_threads_are_all_there_at_once() -> None:
    assert begun_at([(0.0, 1)], None, 2, is_cluster=False) == 0.0
    assert begun_at([(0.0, 1)], 2, None, is_cluster=False) is None


@pytest.mark.parametrize(
    ("found", "workers", "end"),
    [
        (looks((3, 1), (4, 2)), 9, 4 + PATIENCE_S),
        (looks((3, 1), (25, 2)), 9, 25 + PATIENCE_S),
        (looks((3, 9)), 9, None),
        (looks((3, 1)), None, None),
        (looks(), 9, None),
    ],
)
def test_when_too_few_slots_are_all_there_are(
    found: list[tuple[float, int]], workers: int | None, end: float | None
) -> None:
    rule = SlotsRule(0.0, workers, None, is_cluster=True)
    given_up = next((now for now, slots in found if not rule.is_enough(slots, now) and rule.is_hopeless(now)), None)
    assert given_up == (None if end is None else pytest.approx(end, abs=0.11))


def test_an_interrupted_call_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def log(error: BaseException) -> None:
        try:
            raise error
        except BaseException:
            logging.exception("while sending command")  # noqa: LOG015 - as py4j does

    with quiet_interrupts():
        log(KeyboardInterrupt())
        log(OSError())
    log(KeyboardInterrupt())
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [OSError, KeyboardInterrupt]
