"""The archive of Spark's classes that a JVM uses or writes, and the use of a written one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import attrs
import pytest

from triomq_benchmarks.spark.class_archive import ClassArchive, find_class_archive
from triomq_benchmarks.spark.environment import session_settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark, and a temporary directory of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "java").write_text("")
    return tmp_path


def found(home: Path) -> ClassArchive:
    return find_class_archive(str(home / "java"), home / "spark")


def test_the_first_jvm_writes_and_the_next_one_uses(home: Path) -> None:
    first = found(home)
    assert first.part is not None
    assert first.option == f'"-XX:ArchiveClassesAtExit={first.part}"'
    assert not first.take_written(), "the JVM has written nothing"
    first.part.write_text("classes")
    assert first.take_written()
    assert not first.part.exists()
    second = found(home)
    assert (second.path, second.part) == (first.path, None)
    assert second.option == f'"-XX:SharedArchiveFile={first.path}"'
    assert not second.take_written()
    second.drop_written()
    assert second.path.read_text() == "classes"


@pytest.mark.parametrize("renewed", ["java", "spark/jars"])
def test_another_java_or_spark_has_another_archive(home: Path, renewed: str) -> None:
    before = found(home)
    os.utime(home / renewed, (1, 1))
    assert found(home).path != before.path


def test_only_short_lived_drivers_have_one(home: Path) -> None:
    archive = found(home)

    def options(short_lived: bool) -> str:
        settings = session_settings("local[2]", home, "OFF", short_lived=short_lived, archive=archive)
        assert "ArchiveClasses" not in settings.get("spark.executor.extraJavaOptions", "")
        return settings["spark.driver.extraJavaOptions"]

    assert archive.option in options(short_lived=True)
    assert archive.option not in options(short_lived=False)


def test_executors_of_this_machine_use_what_is_written(home: Path) -> None:
    archive = found(home)
    written = attrs.evolve(archive, part=None)

    def options(master: str) -> str:
        settings = session_settings(master, home, "OFF", short_lived=True, archive=written)
        return settings.get("spark.executor.extraJavaOptions", "")

    assert written.option in options("spark://127.0.0.1:7077")
    assert options("spark://10.0.0.1:7077") == ""
