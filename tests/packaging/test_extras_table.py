"""The program that installs the wheel per extra, as far as this environment shows it without installing anything."""

from __future__ import annotations

import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import extras_table
import pytest
from extras_table import FACES, ROOT, Face, Installed, face_of, table

OF_DEVELOPERS = {"all", "test", "dev", "docs"}
"""Extras that nobody installs for a face."""


def test_every_extra_has_its_faces() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    assert set(FACES) - {""} == extras - OF_DEVELOPERS
    for module in (module for modules in FACES.values() for module in modules):
        assert find_spec(module) is not None, module


@pytest.mark.parametrize(
    ("module", "extra", "needless"), [("json", "", []), ("pytest", "", ["pytest"]), ("pytest", "testing", [])]
)
def test_what_a_face_imports_without_need(
    module: str, extra: str, needless: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras_table, "RUNS", 1)
    face = face_of(Path(sys.executable), module, extra)
    assert [name for name in face.needless if name == module] == needless
    assert face.cpu_ms > 0


def test_the_table() -> None:
    faces = [Face("triomq", 224.4, []), Face("triomq.aio", 240.0, ["tornado"])]
    assert table([Installed("", 10, 7_900_000, faces), Installed("compression", 12, 37_900_000, [])]).splitlines()[
        2:
    ] == [
        "| none | 10 | 7.9 | `triomq` 224, `triomq.aio` 240 | tornado |",
        "| compression | 12 | 37.9 |  |  |",
    ]
