"""Batch reads: columns, offsets, times, filters, tasks, and error texts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from source_topics import Topics, bodies

import triomq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_column(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    before_ms = time.time_ns() // 1_000_000
    topics.send(topic, [b"first"], queue=1, tags="a", keys=["k1", "k2"], properties={"x": "é", "y": "2"})
    topics.send(topic, [b"second"], queue=1)
    queue = topics.queues(topic)[1]
    rows = topics.read(spark, topic).orderBy("queue_offset").collect()
    pulled = list(topics.client.pull_consumer("columns").pull(queue, 0))
    assert len(rows) == 2
    for row, message in zip(rows, pulled, strict=True):
        assert (row.topic, row.broker_name, row.queue_id) == (topic, queue.broker_name, queue.queue_id)
        assert row.queue_offset == message.queue_offset
        assert row.message_id == message.message_id
        assert row["keys"] == (" ".join(message.keys) or None)
        assert row.tags == message.tags
        assert bytes(row.body) == message.body
        assert row.properties == message.properties
        assert round(row.born_timestamp.timestamp() * 1000) == message.born_ms
        assert round(row.store_timestamp.timestamp() * 1000) == message.stored_ms >= before_ms
        assert row.reconsume_times == 0
        assert row.commit_log_offset == message.physical_offset
    assert rows[0].properties["x"] == "é"
    assert rows[1].tags is None


def test_everything_is_read_once_however_it_is_split(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=2)
    sent = topics.fill(topic, 1500)
    whole, cut = topics.read(spark, topic), topics.read(spark, topic, minPartitions=9)
    assert (whole.rdd.getNumPartitions(), cut.rdd.getNumPartitions()) == (4, 9)
    assert bodies(whole) == bodies(cut) == sorted(sent)


def test_a_task_keeps_the_order_of_its_queue(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=1)
    topics.fill(topic, 3000)
    offsets = topics.read(spark, topic).filter("broker_name = 'broker-a'").select("queue_offset").collect()
    assert [row.queue_offset for row in offsets] == list(range(3000))


def test_few_columns_by_a_schema(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    sent = topics.fill(topic, 5)
    reader = spark.read.format("rocketmq").schema("tags string, body binary").options(**topics.options(topic))
    rows = reader.load()
    assert rows.columns == ["tags", "body"]
    assert bodies(rows) == sorted(sent)


def test_offsets_from_and_to(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=2)
    topics.fill(topic, 20)
    start = json.dumps({topic: {"broker-a": {"0": 5, "1": -1}, "broker-b": {"0": -2, "1": 19}}})
    end = json.dumps({topic: {"broker-a": {"0": 8}, "broker-b": {"0": 3, "1": -1}}})
    rows = topics.read(spark, topic, startingOffsets=start, endingOffsets=end)
    counts = {
        (row.broker_name, row.queue_id): row["count"]
        for row in rows.groupBy("broker_name", "queue_id").count().collect()
    }
    assert counts == {("broker-a", 0): 3, ("broker-b", 0): 3, ("broker-b", 1): 1}


def test_times_from_and_to(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=1)
    edges = []
    for part in range(3):
        time.sleep(0.02)
        edges.append(time.time_ns() // 1_000_000)
        time.sleep(0.02)
        topics.fill(topic, 40, start=part * 40)
    rows = topics.read(spark, topic, startingTimestamp=edges[1], endingTimestamp=edges[2])
    assert sorted(row.queue_offset for row in rows.collect()) == sorted([*range(40, 80)] * 2)
    assert topics.read(spark, topic, startingTimestamp=edges[2] + 60_000).count() == 0


def test_reads_from_the_offsets_of_a_group(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=1)
    topics.fill(topic, 10)
    with topics.client.pull_consumer("stands") as consumer:
        consumer.commit(topics.queues(topic)[0], 7)
    rows = topics.read(spark, topic, startingOffsets="committed", consumerGroup="stands")
    assert {(row.broker_name, row["count"]) for row in rows.groupBy("broker_name").count().collect()} == {
        ("broker-a", 3),
        ("broker-b", 10),
    }


def test_several_topics(spark: SparkSession, topics: Topics) -> None:
    one, two = topics.new(name="pattern-one"), topics.new(name="pattern-two")
    sent = {one: topics.fill(one, 3), two: topics.fill(two, 4)}
    topics.producer.send(triomq.Message(topics.new(name="%RETRY%pattern-group"), b"no data"))
    assert bodies(topics.read(spark, subscribe=f"{one}, {two}")) == sorted(sent[one] + sent[two])
    assert bodies(topics.read(spark, subscribePattern=".*pattern.*")) == sorted(sent[one] + sent[two])
    assigned = json.dumps({one: {"broker-b": [1]}})
    rows = topics.read(spark, assign=assigned).collect()
    assert {(row.topic, row.broker_name, row.queue_id) for row in rows} == {(one, "broker-b", 1)}
    assert topics.read(spark, subscribePattern="no such topic").count() == 0


@pytest.fixture(scope="module")
def mixed(topics: Topics) -> str:
    """A topic with tags, in four queues."""
    topic = topics.new(queues=2)
    for number in range(400):
        fields = {"tags": "abc"[number % 3]} if number % 4 else {}
        topics.send(topic, [b"%d" % number], queue=number % 4, **fields)
    # The broker compares hashes, and these two are the same.
    topics.send(topic, [b"Aa"], tags="Aa")
    topics.send(topic, [b"BB"], tags="BB")
    return topic


FILTERS = [
    "tags = 'a'",
    "tags in ('a', 'c') and queue_id = 1",
    "tags = 'Aa'",
    "tags is null",
    "tags <> 'a'",
    "queue_offset >= 10 and queue_offset < 20",
    "queue_offset = 7 and broker_name = 'broker-b'",
    "store_timestamp >= '{middle}'",
    "store_timestamp < '{middle}' and tags = 'b'",
    "store_timestamp = '{middle}'",
    "tags = 'a' and tags = 'b'",
    "body = '17' or tags = 'a'",
    "tags = 'none of them'",
]


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_give_the_same_rows_whatever_was_asked_before(
    spark: SparkSession, topics: Topics, mixed: str, pushdown: str
) -> None:
    # Spark keeps one reader for all queries of a DataFrame, and hands filters to it when it may.
    key = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, pushdown)
    try:
        rows = topics.read(spark, mixed)
        held = rows.collect()
        reference = spark.createDataFrame(held, rows.schema)
        middle = sorted(row.store_timestamp for row in held)[200].isoformat(sep=" ")
        for text in FILTERS:
            text = text.format(middle=middle)
            assert bodies(rows.filter(text)) == bodies(reference.filter(text)), text
        assert rows.count() == len(held) == 402
        both = rows.filter("tags = 'a'").union(rows.filter("tags = 'b'"))
        assert both.count() == reference.filter("tags in ('a', 'b')").count()
        rows.createOrReplaceTempView("mixed_view")
        counts = spark.sql(
            "select (select count(*) from mixed_view where queue_id = 0),"
            " (select count(*) from mixed_view where topic = 'none'), (select count(*) from mixed_view)"
        )
        assert list(counts.collect()[0]) == [reference.filter("queue_id = 0").count(), 0, 402]
    finally:
        spark.conf.set(key, before)


def test_a_load_is_read_to_its_first_actions_end(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=1)
    topics.fill(topic, 5)
    rows = topics.read(spark, topic)
    assert rows.count() == 10
    topics.fill(topic, 3, start=5)
    # As the page says: Spark keeps the plan. If a new version of Spark does not, the page has to change.
    assert rows.count() == 10
    assert topics.read(spark, topic).count() == 16


def test_tags_by_option(spark: SparkSession, topics: Topics, mixed: str) -> None:
    rows = topics.read(spark, mixed, tags="a || Aa").collect()
    assert {row.tags for row in rows} == {"a", "Aa"}
    assert len(rows) == 101


def test_matches_in_a_long_queue_come_once(spark: SparkSession, topics: Topics) -> None:
    # Longer than what one lane of a filtered read takes at a time: the lanes' edges lie within the queue.
    topic = topics.new(queues=1)
    for number in range(25):
        topics.send(topic, [b"%d" % (1000 * number + each) for each in range(100)], tags="a")
        topics.send(topic, [b"other"] * 900, tags="b")
    rows = topics.read(spark, topic, tags="a")
    assert bodies(rows) == sorted(b"%d" % (1000 * number + each) for number in range(25) for each in range(100))


@pytest.mark.parametrize("preference", ["suggested", "master", "slave", "preferSlave"])
def test_reads_with_each_preference(spark: SparkSession, topics: Topics, preference: str) -> None:
    topic = topics.new()
    sent = topics.fill(topic, 50)
    topics.wait_for_slaves(topic)
    assert bodies(topics.read(spark, topic, readPreference=preference)) == sorted(sent)


def test_compressed_bodies(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    body = b"text that can be compressed " * 1000
    topics.producer.send(triomq.Message(topic, body))
    assert bodies(topics.read(spark, topic)) == [body]


def test_an_empty_topic(spark: SparkSession, topics: Topics) -> None:
    assert topics.read(spark, topics.new()).count() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"startingOffsets": "{"}, "startingOffsets is neither a known value nor JSON"),
        ({"subscribe": "other"}, "given are topic, subscribe"),
    ],
)
def test_load_reports_wrong_options(spark: SparkSession, topics: Topics, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says.replace("?", r"\?")):
        topics.read(spark, "any", **options)


def test_a_missing_topic(spark: SparkSession, topics: Topics) -> None:
    topics.new(name="present-topic")
    with pytest.raises(
        Exception, match=r"know no topic 'presend-topic'; did you mean present-topic\?.*brokers are away"
    ) as caught:
        topics.read(spark, "presend-topic").count()
    assert len(str(caught.value).splitlines()) < 10, "a few lines of stack, and the reason"


def test_offsets_of_what_is_not_there(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new(queues=1)
    topics.fill(topic, 10)
    with pytest.raises(Exception, match="startingOffsets gives an offset for queue 9"):
        topics.read(spark, topic, startingOffsets=json.dumps({topic: {"broker-a": {"9": 1}}})).count()
    beyond = json.dumps({topic: {"broker-a": {"0": 1000}}})
    with pytest.raises(Exception, match=r"asks for queue 0 of topic .* up to 1000, and it ends at 10"):
        topics.read(spark, topic, endingOffsets=beyond).count()
    assert topics.read(spark, topic, endingOffsets=beyond, failOnDataLoss=False).count() == 20


def test_a_name_server_that_is_not_there(spark: SparkSession) -> None:
    rows = spark.read.format("rocketmq").options(namesrv="127.0.0.1:1", topic="T").load()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        rows.count()
