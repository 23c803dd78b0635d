"""Compiled modules are used only if they were made of their present sources, which a number in each states."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyspark_rocketmq.rows import compiled as rows
from triomq._producer import compiled as producer
from triomq_protocol.twins import choose_twins
from triomq_server import compiled as server

SOURCES = [
    (Path(package.__file__).with_name(f"{name}.pyx"), version)
    for package in (producer, rows, server)
    for name, version in package.VERSIONS.items()
]


@pytest.mark.parametrize(("source", "version"), SOURCES, ids=lambda value: getattr(value, "stem", ""))
def test_a_changed_source_has_another_version(source: Path, version: int) -> None:
    lines = source.read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("VERSION = "))
    included = [line.split('"')[1] for line in lines if line.startswith("include ")]
    text += "".join(source.with_name(name).read_text() for name in included)
    stated = [line for line in lines if line.startswith("VERSION = ")]
    assert zlib.crc32(text.encode()) == version, f"{source} has changed: state this number there and in __init__.py"
    assert stated == [f"VERSION = {version}"]


def _missing() -> dict[str, object]:
    raise ImportError


@pytest.mark.parametrize(
    ("module", "environ", "built", "used", "state"),
    [
        (SimpleNamespace(VERSION=1), {}, True, True, "used"),
        (SimpleNamespace(VERSION=1), {"TRIOMQ_PURE": "0"}, True, True, "used"),
        (SimpleNamespace(VERSION=1), {"TRIOMQ_PURE": "1"}, True, False, "unwanted"),
        (SimpleNamespace(VERSION=2), {}, False, False, "stale"),
        (SimpleNamespace(), {"TRIOMQ_PURE": "1"}, False, False, "stale"),
        (None, {}, False, False, "missing"),
    ],
)
def test_which_twin_is_used(module: object, environ: dict[str, str], built: bool, used: bool, state: str) -> None:
    twins = choose_twins((lambda: {"sends": module}) if module else _missing, {"sends": 1}, environ)
    assert twins[1:4] == (built, used, state)
    assert twins.pure is (environ.get("TRIOMQ_PURE") == "1")
    assert ("sends: compiled from an older source" in twins.fault) is (state == "stale")
    assert ("pip install -e ." in twins.fault) is (state == "stale")
