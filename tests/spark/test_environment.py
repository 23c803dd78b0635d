"""One session for all tests, and the end of a JVM: that may have written an archive of its classes, or was not asked
for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from triomq_benchmarks.spark.class_archive import ClassArchive
from triomq_benchmarks.spark.environment import end_java, java_end


def test_one_session(spark: Any) -> None:
    assert spark.range(10).count() == 10


class Gateway:
    """Py4J's, with a JVM that ends at the end of its input."""

    def __init__(self, command: str) -> None:
        self.proc = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE)

    def shutdown(self) -> None:
        """Nothing is connected."""


@pytest.mark.parametrize(
    ("command", "in_order", "kept"),
    [
        ("cat; echo classes > '{part}'", True, True),
        ("cat; echo cla > '{part}'; exit 1", True, False),
        ("cat; echo cla > '{part}'; sleep 600", False, False),
        ("cat", True, False),
    ],
)
def test_what_a_jvm_has_written_is_kept_only_if_it_ended_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, in_order: bool, kept: bool
) -> None:
    archive = ClassArchive(tmp_path / "classes.jsa", tmp_path / "classes.1")
    from pyspark import SparkContext

    gateway: Any = Gateway(command.format(part=archive.part))
    for name, value in (("_gateway", gateway), ("_jvm", None)):
        monkeypatch.setattr(SparkContext, name, value)
    end_java(archive, in_order=in_order)
    assert gateway.proc.poll() is not None
    assert archive.path.exists() is kept
    assert list(tmp_path.iterdir()) == ([archive.path] if kept else [])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat", None),
        ("exit 52", r"ran out of memory; .*SPARK_DRIVER_MEMORY"),
        ("exit 1", "ended with status 1$"),
        ("kill -9 $$", "ended by signal 9$"),
    ],
)
def test_why_a_jvm_has_ended(monkeypatch: pytest.MonkeyPatch, command: str, said: str | None) -> None:
    from pyspark import SparkContext

    gateway: Any = Gateway(command)
    for name, value in (("_gateway", gateway), ("_active_spark_context", None)):
        monkeypatch.setattr(SparkContext, name, value)
    if said is None:
        assert java_end() is None
    else:
        gateway.proc.wait()
        assert re.search(said, java_end() or "")
    gateway.proc.stdin.close()
    gateway.proc.wait()
