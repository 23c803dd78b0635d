"""The requests of each scenario stay within bounds."""

from __future__ import annotations

import pytest

from triomq_benchmarks.drivers.scenarios import (
    BODY_BYTES,
    BROKER,
    BYTES_LIMIT,
    COUNT_LIMIT,
    SDK,
    Scenario,
    broker_goal,
)


@pytest.mark.parametrize("scenario", [*BROKER, *SDK], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("body_bytes", BODY_BYTES)
def test_every_scenario_is_bounded(scenario: Scenario, body_bytes: int) -> None:
    count = scenario.count(body_bytes)
    assert 0 < count <= COUNT_LIMIT
    assert count * body_bytes <= BYTES_LIMIT
    assert count >= scenario.links * scenario.in_flight * scenario.batch


def test_the_goals_are_those_that_were_set() -> None:
    assert {one.name: one.goal for one in BROKER} == {
        "1 x 1": 1.7,
        "1 x 64": 2.0,
        "8 x 32": 2.0,
        "64 x 1": 1.3,
        "batch 32": 1.5,
        "batch 32 x 8": None,
        "async 256": None,
        "drain": 2.0,
    }
    assert {one.name: one.goal for one in SDK} == {"1 in flight": 1.2, "64 in flight": 2.2, "256 in flight": 2.0}


@pytest.mark.parametrize(("load", "goal"), [("raw", 1.7), ("java-client", 1.2), ("triomq", None)])
def test_goals_depend_on_the_load(load: str, goal: float | None) -> None:
    known = {one.name: one for one in BROKER}
    assert broker_goal(known["1 x 1"], load) == goal
    assert broker_goal(known["async 256"], load) is None


def test_a_command_carries_the_whole_workload() -> None:
    command = Scenario("x", links=3, in_flight=5, mode="async", batch=7).command(100, 2.5)
    assert command == {
        "op": "send",
        "links": 3,
        "inFlight": 5,
        "mode": "async",
        "batch": 7,
        "bodyBytes": 100,
        "count": BYTES_LIMIT // 356,
        "maxSeconds": 2.5,
    }
