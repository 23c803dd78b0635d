"""What the cluster's answers mean, and how far a query is behind."""

from __future__ import annotations

import json
import logging
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from fake_cluster import FakeCluster

from pyspark_rocketmq.clients import Session
from pyspark_rocketmq.errors import DataLoss, nearest
from pyspark_rocketmq.offsets import QueueId, tree_of
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.read.bounds import existing_starts, kept_starts, plan_batch
from pyspark_rocketmq.read.cluster_view import data_topics
from pyspark_rocketmq.read.lag import lag_of
from pyspark_rocketmq.read.planning import Bounds, QueueRange
from pyspark_rocketmq.read.stream_reader import reachable

A, B = QueueId("T", "broker-a", 0), QueueId("T", "broker-a", 1)


def test_topics_without_data_never_match_a_pattern() -> None:
    topics = [
        "orders", "orders_eu", "%RETRY%orders", "%DLQ%orders", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_SYNC_BROKER_MEMBER_a",
        "SCHEDULE_TOPIC_XXXX", "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "broker-a",
        "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    ]  # fmt: skip
    assert data_topics(topics, ["broker-a", "DefaultCluster"], ".*") == ["orders", "orders_eu"]
    assert data_topics(topics, [], "orders") == ["orders"], "the whole name has to match"


def test_a_start_that_is_gone() -> None:
    bounds = {A: Bounds(10, 50), B: Bounds(0, 50)}
    with pytest.raises(DataLoss, match="offsets 3 to 10 of queue 0"):
        kept_starts({A: 3, B: 3}, bounds, {A: 50, B: 50}, fail=True)
    assert kept_starts({A: 3, B: 3}, bounds, {A: 50, B: 50}, fail=False) == {A: 10, B: 3}
    assert kept_starts({A: 3}, bounds, {A: 3}, fail=True) == {A: 3}, "nothing was to be read there"


def test_a_start_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    bounds = {A: Bounds(0, 50), B: Bounds(0, 50)}
    with pytest.raises(
        DataLoss, match=r"startingOffsets asks for queue 0 .* from 51, and it ends at 50; start earlier"
    ):
        existing_starts({A: 51, B: 3}, bounds, fail=True)
    assert existing_starts({A: 50, B: 3}, bounds, fail=True) == {A: 50, B: 3}
    with caplog.at_level(logging.WARNING):
        assert existing_starts({A: 51, B: 3}, bounds, fail=False) == {A: 50, B: 3}
    assert "ends at 50; starting at its end" in caplog.text
    # A slave that is behind says nothing about the end.
    assert existing_starts({A: 51}, {A: Bounds(0, 50, is_sure=False)}, fail=True) == {A: 51}


async def planned(**options: str) -> list[QueueRange]:
    cluster = FakeCluster(random.Random(0))
    cluster.add_queue(A, 50)
    session = Session(SimpleNamespace(admin=cluster), None, cluster)  # type: ignore[arg-type]
    return await plan_batch(session, read_options({"namesrv": "n:1", **options}, streaming=False))


async def test_a_batch_that_can_have_no_rows_says_so(caplog: pytest.LogCaptureFixture) -> None:
    beyond = json.dumps(tree_of({A: 99}))
    with pytest.raises(DataLoss, match="from 99, and it ends at 50"):
        await planned(topic="T", startingOffsets=beyond)
    with caplog.at_level(logging.WARNING):
        assert await planned(topic="T", startingOffsets=beyond, failOnDataLoss="false") == []
        assert "starting at its end" in caplog.text
        assert await planned(topic="T", startingOffsets="latest", endingOffsets=json.dumps(tree_of({A: 7}))) == []
        assert "start after their end: queue 0 of topic T at broker-a from 50 to 7" in caplog.text
        assert await planned(subscribePattern="Tx.*") == []
        assert "subscribePattern 'Tx.*' matches no topic of n:1" in caplog.text
        caplog.clear()
        assert await planned(subscribePattern="T.*") == [QueueRange(A, 0, 50)]
        assert caplog.text == ""


def test_ends_of_a_trigger(caplog: pytest.LogCaptureFixture) -> None:
    bounds = {A: Bounds(0, 50), B: Bounds(0, 7)}
    assert reachable({A: 20}, bounds, None, fail=True) == {A: 50, B: 7}
    assert reachable({A: 20}, bounds, {A: 30}, fail=True) == {A: 30, B: 0}, "what is new since then has to wait"
    assert reachable({A: 60}, bounds, {A: 30}, fail=False)[A] == 50
    # A slave that is behind says nothing about the end.
    assert reachable({A: 60}, {A: Bounds(0, 50, is_sure=False)}, None, fail=True) == {A: 60}
    with pytest.raises(DataLoss, match="ends at 50, before offset 60"):
        reachable({A: 60}, bounds, None, fail=True)
    with caplog.at_level(logging.WARNING):
        assert reachable({A: 60}, bounds, None, fail=False)[A] == 50
    assert "going on at its end" in caplog.text


def test_lag() -> None:
    reached, latest = json.dumps(tree_of({A: 40})), json.dumps(tree_of({A: 50, B: 7}))
    assert lag_of(reached, latest) == {A: 10, B: 7}
    assert lag_of(latest, latest) == {}
    for other in (None, "", "5", "[1]", '{"topic": {"0": 5}}', "x"):
        assert lag_of(other, latest) is None


def test_nearest_names() -> None:
    assert nearest("namesvr", ["namesrv", "topic"]) == "; did you mean namesrv?"
    assert nearest("quite other", ["namesrv", "topic"]) == ""
