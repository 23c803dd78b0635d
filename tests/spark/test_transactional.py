"""Transactional streams: nothing before the commit, everything once after it, also when Spark runs a trigger again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from source_topics import Topics, bodies

import triomq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 240


def test_a_trigger_that_is_run_again_is_not_delivered_again(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.new(), topics.new()
    topics.client.admin.create_topic("decisions", queues=1, brokers=["broker-a"])
    sent = topics.fill(source, 20)
    checkpoint = tmp_path / "checkpoint"
    options = topics.options(
        target, checkpointLocation=checkpoint, transactional=True, transactionTopic="decisions", producerGroup="once"
    )

    def run() -> None:
        stream = topics.stream(spark, source, maxOffsetsPerTrigger=50).select("body").writeStream.format("rocketmq")
        query = stream.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        assert query.exception() is None

    run()
    assert bodies(topics.read(spark, target)) == sorted(sent)
    # Spark has not noted the end of the last trigger: its driver was killed in between.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    sent += topics.fill(source, 5, start=20)
    # Another program writes to the topic of decisions.
    name = json.loads((checkpoint / "metadata").read_text())["id"]
    for body in ("{}", "[" * 50_000, json.dumps({"query": name}), json.dumps({"query": name, "batch": "9"})):
        topics.client.producer("other").send(triomq.Message("decisions", body.encode(), keys=name))
    run()
    assert bodies(topics.read(spark, target)) == sorted(sent)
    # A checkpoint that is an old copy would send what was delivered: it is refused.
    shutil.rmtree(checkpoint / "commits")
    shutil.rmtree(checkpoint / "offsets")
    with pytest.raises(Exception, match=r"trigger 0 of query .* comes after trigger"):
        run()
    assert bodies(topics.read(spark, target)) == sorted(sent)


def test_what_a_transaction_does_not_take(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source, target = topics.new(), topics.new()
    rows = topics.stream(spark, source).selectExpr("body", "tags as sharding_key").writeStream.format("rocketmq")
    with pytest.raises(Exception, match="transactional=true takes no column sharding_key"):
        rows.options(
            **topics.options(target, transactional=True, checkpointLocation=tmp_path / "a")
        ).start().awaitTermination(LIMIT_S)
    batch = spark.createDataFrame([("x",)], "body string").write.format("rocketmq")
    with pytest.raises(Exception, match="transactional=true is for streams"):
        batch.options(**topics.options(target, transactional=True)).mode("append").save()
