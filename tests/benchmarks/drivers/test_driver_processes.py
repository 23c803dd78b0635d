"""Small loads end to end: prepared frames and the SDK's driver, on real processes of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.drivers.driver_processes import Load, LoadError, sdk_driver
from triomq_benchmarks.drivers.prepared_frames import AnswerError, pull_all, send_all, send_frames
from triomq_benchmarks.drivers.scenarios import Scenario

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
def test_the_sdk_drives_a_broker(ours: SingleBroker, sdk: Load, scenario: Scenario) -> None:
    taken = sdk.run(ours, scenario, 200, 0.3)
    assert taken.messages > 0
    assert taken.failures == 0
    assert taken.seconds > 0.01
    assert 0 < taken.p50_us <= taken.p99_us
    assert taken.client_cpu_s > 0


def test_the_sdk_drains_what_it_sent(ours: SingleBroker, sdk: Load) -> None:
    sent = sdk.run(ours, Scenario("fill", in_flight=16), 333, 0.3)
    pulled = sdk.run(ours, Scenario("drain", op="drain"), 333, 20)
    assert pulled.messages == sent.messages


def test_prepared_frames_are_stored_and_pulled(ours: SingleBroker) -> None:
    address = ours.broker.address
    sent = send_all(address, send_frames("prepared", 100, 500), 64)
    assert (sent.messages, sent.requests) == (500, 500)
    batched = send_all(address, send_frames("prepared", 100, 20, batch=8), 4, batch=8)
    assert batched.messages == 160
    assert pull_all(address, "prepared").messages == 660


def test_failures_are_not_counted_as_speed(ours: SingleBroker, sdk: Load) -> None:
    frames = send_frames("n@me", 100, 3)
    with pytest.raises(AnswerError, match="not a success"):
        send_all(ours.broker.address, frames, 1)
    with pytest.raises(LoadError, match="0 messages"):
        sdk.run(ours, Scenario("too late"), 200, 0.0)


def test_a_sample_without_a_message_is_made_longer(ours: SingleBroker, sdk: Load) -> None:
    assert sdk.run(ours, Scenario("soon enough"), 200, 1e-6).messages > 0
