"""client-go and ali-ons as released: what they send to our broker the Java client reads back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.drivers.driver_processes import go_driver, node_driver

BODY_BYTES = 300
COUNT = 200


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("driver", [go_driver, node_driver], ids=["client-go", "ali-ons"])
def test_sends_to_our_broker(driver: Any, mode: str, ours: Any, java_client: Any, topic: str, tmp_path: Path) -> None:
    servers = ours.namesrv.address
    java_client.admin(servers, "updateTopic", "-b", ours.broker.address, "-t", topic, "-r", "4", "-w", "4")
    # These clients do not wait for a route.
    java_client.eventually(
        lambda: java_client.admin(servers, "topicRoute", "-t", topic), lambda text: '"writeQueueNums":4' in text
    )
    try:
        with driver(tmp_path) as client:
            answer = client.call(
                {
                    "op": "send",
                    "nameServers": servers,
                    "topic": topic,
                    "links": 1,
                    "inFlight": 8,
                    "mode": mode,
                    "batch": 1,
                    "bodyBytes": BODY_BYTES,
                    "count": COUNT,
                    "maxSeconds": 60,
                    "sendFirst": True,
                },
                120,
            )
    except ToolUnavailableError as error:
        pytest.skip(str(error))
    assert (answer["messages"], answer["failures"]) == (COUNT, 0), answer
    body = bytes(ord("a") + at % 26 for at in range(BODY_BYTES))
    count = COUNT + 1 if driver is go_driver else COUNT  # it sends one that it does not count
    seen = java_client.pull_all(servers, topic, count)
    assert len(seen) == count
    assert {(one.body, one.tags) for one in seen} == {(body, "bench")}
    assert len({(one.queue_id, one.queue_offset) for one in seen}) == count
