"""The hot path measured in this process, as short as it can be."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.hotpath.codecs import WORKS, material
from triomq_benchmarks.hotpath.rates import Rate
from triomq_benchmarks.hotpath.tables import rates_json


@pytest.mark.parametrize("name", WORKS)
def test_works_return_how_much_they_did(name: str) -> None:
    assert WORKS[name](material(128)) in {32, 256}


def test_rates_for_machines() -> None:
    output = json.loads(rates_json([Rate("frames", 10, 5.0)]))
    assert output["rates"] == [{"name": "frames", "body_bytes": 10, "per_s": 5.0}]
    assert output["machine"]["cpus"] >= 1


def test_hotpath_command() -> None:
    done = CliRunner().invoke(
        bench, ["hotpath", "--body", "64", "--count", "1000", "--seconds", "0.03", "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    rates = {one["name"]: one["per_s"] for one in json.loads(done.output)["rates"]}
    assert {"send requests parsed", "sends stored, 64 in flight", "messages pulled"} <= set(rates)
    assert min(rates.values()) > 0
