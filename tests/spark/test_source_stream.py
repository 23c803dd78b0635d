"""Streaming reads: triggers and their limits, checkpoints, topics that grow, the lag that is reported."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from source_topics import Topics, bodies

import triomq
from pyspark_rocketmq import LagListener, SourceLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LIMIT_S = 240


def write(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Append the rows to Parquet files."""
    stream = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return stream.trigger(**(trigger or {"availableNow": True})).start(str(folder / "rows"))


def run(rows: DataFrame, folder: Path) -> list[Any]:
    """Read what is there now; return what each trigger did."""
    query = write(rows, folder)
    assert query.awaitTermination(LIMIT_S)
    assert query.exception() is None
    return [each for each in query.recentProgress if each.numInputRows]


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    return bodies(spark.read.parquet(str(folder / "rows")))


def wait_for(query: StreamingQuery, rows: int) -> None:
    """Until a query has read so many rows."""
    deadline = time.monotonic() + LIMIT_S
    while sum(each.numInputRows for each in query.recentProgress) < rows:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, [each.numInputRows for each in query.recentProgress]
        time.sleep(0.1)


def test_what_is_there_now_and_after_a_restart_what_came_since(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new(queues=2)
    sent = topics.fill(topic, 50)
    options = {"maxOffsetsPerTrigger": 80, "consumerGroup": "spark-lag"}
    reported: list[SourceLag] = []
    listener = LagListener(reported.append)
    spark.streams.addListener(listener)
    try:
        first = run(topics.stream(spark, topic, **options), tmp_path)
        assert [each.numInputRows for each in first] == [80, 80, 40]
        # The checkpoint's form is the documented one.
        assert json.loads(first[-1].sources[0].endOffset) == {
            topic: {broker: {"0": 50, "1": 50} for broker in ("broker-a", "broker-b")}
        }
        sent += topics.fill(topic, 10, start=50)
        # A start is for queries without a checkpoint.
        second = run(topics.stream(spark, topic, **options, startingOffsets="latest"), tmp_path)
        assert sum(each.numInputRows for each in second) == 40
    finally:
        spark.streams.removeListener(listener)
    assert written(spark, tmp_path) == sorted(sent)
    lags = [lag.messages for lag in reported if lag.input_rows]
    assert lags[:3] == [120, 40, 0]
    with topics.client.pull_consumer("spark-lag") as consumer:
        committed = [consumer.committed(queue) for queue in topics.queues(topic)]
    assert committed == [60] * 4


def test_new_queues_start_at_their_first_message(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(queues=1)
    sent = topics.fill(topic, 5)
    query = write(topics.stream(spark, topic), tmp_path, processingTime="0 seconds")
    try:
        wait_for(query, 10)
        topics.client.admin.create_topic(topic, queues=3)
        deadline = time.monotonic() + LIMIT_S
        while len(topics.client.admin.route(topic).queue_datas or []) < 2 or _queue_count(topics, topic) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with topics.client.producer("new-queues") as producer:
            for broker in ("broker-a", "broker-b"):
                body = f"new in {broker}".encode()
                producer.send(triomq.Message(topic, body), queue=triomq.MessageQueue(topic, broker, 2))
                sent.append(body)
        wait_for(query, 12)
    finally:
        query.stop()
    assert written(spark, tmp_path) == sorted(sent)


def _queue_count(topics: Topics, topic: str) -> int:
    return sum(each.read_queue_nums for each in topics.client.admin.route(topic).queue_datas or [])


def test_a_limit_in_bytes(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(queues=1)
    topics.send(topic, [b"x" * 1000] * 100)
    progress = run(topics.stream(spark, topic, maxBytesPerTrigger=40_000), tmp_path)
    assert len(progress) >= 3
    assert all(each.numInputRows * 1000 <= 40_000 for each in progress)
    assert sum(each.numInputRows for each in progress) == 100


def test_a_topic_created_again_is_data_loss(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(queues=1)
    topics.fill(topic, 5)
    run(topics.stream(spark, topic), tmp_path)
    checkpoint = next((tmp_path / "checkpoint" / "offsets").glob("0"))
    text = checkpoint.read_text()
    # As if the topic had had more messages before it was created again.
    checkpoint.write_text(text.replace('"0":5', '"0":5000').replace('"0": 5', '"0": 5000'))
    query = write(topics.stream(spark, topic), tmp_path)
    with pytest.raises(Exception, match=r"before offset 5000, where the query is.*failOnDataLoss=false"):
        query.awaitTermination(LIMIT_S)
    topics.fill(topic, 3, start=5)
    run(topics.stream(spark, topic, failOnDataLoss=False), tmp_path)


def test_a_stream_takes_no_end(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    with pytest.raises(Exception, match="availableNow"):
        write(topics.stream(spark, topic, endingOffsets="latest"), tmp_path).awaitTermination(LIMIT_S)


def test_a_trigger_waits_for_messages(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(queues=1)
    sent = topics.fill(topic, 20)
    query = write(topics.stream(spark, topic, minOffsetsPerTrigger=50), tmp_path, processingTime="0 seconds")
    try:
        wait_for(query, len(sent))
        # Two queues; the 50th message is the last.
        sent += topics.fill(topic, 5, start=20) + topics.fill(topic, 20, start=25)
        wait_for(query, len(sent))
    finally:
        query.stop()
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [40, 50]
    assert written(spark, tmp_path) == sorted(sent)
