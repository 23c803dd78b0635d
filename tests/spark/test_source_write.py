"""Writes: every row once acknowledged, its columns as they were, a key to drop repeats by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from source_topics import Topics, bodies

from pyspark_rocketmq.rows.row_keys import ROW_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 240


def test_all_columns_there_and_back(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    rows = spark.createDataFrame(
        [(f"body {n}", topic, f"t{n % 3}", f"key-{n}", f"shard-{n % 5}", {"n": str(n)}) for n in range(500)],
        "body string, topic string, tags string, keys string, sharding_key string, properties map<string, string>",
    )
    rows.write.format("rocketmq").options(**topics.options(batchSize=17)).mode("append").save()
    back = {bytes(row.body).decode(): row for row in topics.read(spark, topic).collect()}
    assert len(back) == 500
    places: dict[str, set[tuple[str, int]]] = {}
    for n in range(500):
        row = back[f"body {n}"]
        assert (row.tags, row["keys"], row.properties["n"]) == (f"t{n % 3}", f"key-{n}", str(n))
        places.setdefault(f"shard-{n % 5}", set()).add((row.broker_name, row.queue_id))
    assert all(len(each) == 1 for each in places.values()), "a sharding key has one queue"
    assert len({row.properties[ROW_KEY] for row in back.values()}) == 500


def test_requests_keep_to_the_longest_body(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    rows = spark.range(800).selectExpr("repeat(cast(id + 1000 as string), 50) as body")
    options = topics.options(topic, **{"rocketmq.max_body_bytes": 20_000})
    rows.write.format("rocketmq").options(**options).mode("append").save()
    assert bodies(topics.read(spark, topic)) == sorted(str(n + 1000).encode() * 50 for n in range(800))


def test_what_was_read_can_be_written_as_it_is(spark: SparkSession, topics: Topics) -> None:
    source, target = topics.new(), topics.new()
    sent = topics.fill(source, 20)
    rows = topics.read(spark, source).select("body", "tags", "keys", "properties")
    topics.wait_for_slaves(source)
    rows.write.format("rocketmq").options(**topics.options(target, acks="replicated")).mode("append").save()
    assert bodies(topics.read(spark, target, readPreference="slave")) == sorted(sent)


def test_a_streaming_write_gives_a_repeated_trigger_the_same_keys(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.new(), topics.new()
    sent = topics.fill(source, 20)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = topics.stream(spark, source).select("body").writeStream.format("rocketmq")
        query = (
            stream.options(**topics.options(target, checkpointLocation=checkpoint)).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(LIMIT_S)
        assert query.exception() is None

    run()
    assert bodies(topics.read(spark, target)) == sorted(sent)
    # As if the driver had died after the write and before it could note that down.
    for note in (checkpoint / "commits").iterdir():
        note.unlink()
    run()
    rows = topics.read(spark, target).collect()
    assert len(rows) == 2 * len(sent), "at least once"
    assert len({row.properties[ROW_KEY] for row in rows}) == len(sent), "and a reader can drop the repeats"


def test_a_named_write_of_a_repeated_trigger_has_the_same_keys(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.new(), topics.new()
    sent = topics.fill(source, 20)
    failures = [OSError("after the write")]

    def put(rows: DataFrame, trigger: int) -> None:
        options = topics.options(target, writeName=f"{target}/{trigger}")
        rows.select("body").write.format("rocketmq").options(**options).mode("append").save()
        if failures:
            raise failures.pop()

    for fails in (True, False):
        stream = topics.stream(spark, source).writeStream.foreachBatch(put)
        query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        if fails:
            with pytest.raises(Exception, match="after the write"):
                query.awaitTermination(LIMIT_S)
        else:
            assert query.awaitTermination(LIMIT_S)
    rows = topics.read(spark, target).collect()
    assert len(rows) == 2 * len(sent)
    assert len({row.properties[ROW_KEY] for row in rows}) == len(sent)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("'x' as value", {}, "have no column body, only value"),
        ("'x' as body, 1 as key", {}, r"takes no column 'key'; did you mean keys\?"),
        ("1 as body", {}, "body is int, and must be binary or string"),
        ("'x' as body", {"acks": "all"}, "acks is 'all'.*it may be stored, replicated"),
        ("'x' as body", {"batchsizes": "1"}, r"did you mean batchSize\?"),
        ("cast(null as string) as body", {}, "row 0 of .* has no body"),
        ("'x' as body, cast(X'ff' as string) as sharding_key", {}, "row 0 of .* its column sharding_key .* not UTF-8"),
    ],
)
def test_what_is_wrong_is_reported(
    spark: SparkSession, topics: Topics, columns: str, options: dict[str, str], says: str
) -> None:
    rows = spark.sql(f"select {columns}")
    with pytest.raises(Exception, match=says):
        rows.write.format("rocketmq").options(**topics.options("any-topic", **options)).mode("append").save()


def test_a_topic_cannot_be_overwritten(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(Exception, match=r"use mode\('append'\)|truncate"):
        spark.sql("select 'x' as body").write.format("rocketmq").options(**topics.options("T")).mode("overwrite").save()
