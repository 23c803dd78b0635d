"""Small runs end to end: prepared frames, the SDK's driver, the command line, on real processes of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.codecs import WORKS, material
from triomq_benchmarks.load import Load, LoadError, sdk_driver
from triomq_benchmarks.pipeline import AnswerError, pull_all, send_all, send_frames
from triomq_benchmarks.scenarios import Scenario
from triomq_benchmarks.targets import Target

SMALL = [
    Scenario("sync", in_flight=4),
    Scenario("links", links=2, in_flight=2),
    Scenario("async", in_flight=16, mode="async"),
    Scenario("batch", batch=8),
]


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    with sdk_driver(tmp_path_factory.mktemp("sdk")) as driver:
        yield Load("triomq", "triomq", driver)


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_the_sdk_drives_a_broker(ours: Target, sdk: Load, scenario: Scenario) -> None:
    taken = sdk.run(ours, scenario, 200, 0.3)
    assert taken.messages > 0
    assert taken.failures == 0
    assert 0.01 < taken.seconds < 10
    assert 0 < taken.p50_us <= taken.p99_us
    assert taken.client_cpu_s > 0


def test_the_sdk_drains_what_it_sent(ours: Target, sdk: Load) -> None:
    sent = sdk.run(ours, Scenario("fill", in_flight=16), 333, 0.3)
    pulled = sdk.run(ours, Scenario("drain", op="drain"), 333, 20)
    assert pulled.messages == sent.messages


def test_prepared_frames_are_stored_and_pulled(ours: Target) -> None:
    address = ours.broker.address
    sent = send_all(address, send_frames("prepared", 100, 500), 64)
    assert (sent.messages, sent.requests) == (500, 500)
    batched = send_all(address, send_frames("prepared", 100, 20, batch=8), 4, batch=8)
    assert batched.messages == 160
    assert pull_all(address, "prepared").messages == 660


def test_failures_are_not_counted_as_speed(ours: Target, sdk: Load) -> None:
    frames = send_frames("n@me", 100, 3)
    with pytest.raises(AnswerError, match="not a success"):
        send_all(ours.broker.address, frames, 1)
    with pytest.raises(LoadError, match="0 messages"):
        sdk.run(ours, Scenario("too late"), 200, 0.0)


@pytest.mark.parametrize("name", WORKS)
def test_works_say_how_much_they_did(name: str) -> None:
    assert WORKS[name](material(128)) in {32, 256}


def test_hotpath_command() -> None:
    done = CliRunner().invoke(
        bench, ["hotpath", "--body", "64", "--count", "1000", "--seconds", "0.03", "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    rates = {one["name"]: one["per_s"] for one in json.loads(done.output)["rates"]}
    assert {"send requests parsed", "sends stored, 64 in flight", "messages pulled"} <= set(rates)
    assert min(rates.values()) > 100


def test_versus_java_refuses_unknown_scenarios(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["versus-java", "--scenario", "1 x 65", "--home", str(tmp_path)])
    assert done.exit_code == 2
    assert "1 x 65; known:" in done.output
