"""The comparison itself, end to end, as short as it can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.clusters.java import QUICK_JVM


@pytest.fixture(autouse=True)
def quick_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure of this test is looked at, so the JVMs need not become fast."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(QUICK_JVM))


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    short = [
        "--body",
        "100",
        "--rounds",
        "1",
        "--seconds",
        "0.2",  # a load that sends nothing in that time, on a loaded machine, runs longer
        "--warm-up",
        "0.05",
        "--home",
        str(tmp_path),
        "--json",
    ]
    done = CliRunner().invoke(bench, ["versus-java", *short, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)  # type: ignore[no-any-return]


def test_brokers_under_every_load(java: Any, tmp_path: Path) -> None:
    output = run(tmp_path, "--side", "broker", "--scenario", "1 x 64", "--scenario", "drain")
    assert {(row["scenario"], row["load"]) for row in output["rows"]} == {
        (scenario, load) for scenario in ("1 x 64", "drain") for load in ("raw", "java-client", "triomq")
    }
    for row in output["rows"]:
        assert row["ours"]["per_s"] > 0
        assert row["java"]["per_s"] > 0
        assert row["ratio"] == round(row["ours"]["per_s"] / row["java"]["per_s"], 3)
        assert row["goal"] == {"raw": 2.0, "java-client": 1.2, "triomq": None}[row["load"]]


def test_our_client_compared_to_the_java_client(java: Any, tmp_path: Path) -> None:
    output = run(tmp_path, "--side", "sdk", "--scenario", "64 in flight")
    [row] = [row for row in output["rows"] if row["load"] == "triomq : java-client"]
    assert (row["goal"], row["cpu_goal"]) == (2.2, 0.3)
    assert row["ours"]["cpu_us"] > 0
    assert row["java"]["cpu_us"] > 0
