"""A broker killed during a read; and the whole pipeline with one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from source_topics import bodies, open_topics

from triomq_benchmarks.clusters.cluster import open_cluster
from triomq_benchmarks.spark.flights_pipeline import run_pipeline
from triomq_benchmarks.workload.flights import NoDataError, flights_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_the_master_dies_and_the_slave_is_read(spark: SparkSession) -> None:
    with open_cluster(sync_replication=True) as cluster, open_topics(cluster) as topics:
        topic = topics.new(queues=2)
        sent = topics.fill(topic, 2000)
        topics.wait_for_slaves(topic)
        read = {"endingOffsets": f'{{"{topic}": {{"broker-a": {{"0": 2000, "1": 2000}}}}}}'}
        planned = topics.read(spark, topic, minPartitions=4, **read)
        assert planned.rdd.getNumPartitions() == 4, "the tasks are planned while the master is there"
        cluster.kill_node("broker-a")
        cluster.wait_ended("broker-a")
        assert bodies(planned) == sorted(sent)
        # Where to end was given, so a read may even be planned now.
        assert bodies(topics.read(spark, topic, **read)) == sorted(sent)
        # Otherwise the end is unknown: the slave may be behind.
        with pytest.raises(Exception, match=r"master of queue .* cannot be reached, and its slave"):
            topics.read(spark, topic).count()
        assert topics.read(spark, topic, failOnDataLoss=False).count() == 4000


@pytest.mark.slow
def test_flights_through_a_restart_and_a_kill_of_the_master(spark: SparkSession, tmp_path: Path) -> None:
    try:
        flights_archive()
    except NoDataError as error:
        pytest.skip(str(error))
    keys = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    before = {key: spark.conf.get(key) for key in keys}
    for key, value in keys.items():
        spark.conf.set(key, value)
    try:
        with open_cluster(masters=2, sync_replication=True) as cluster:
            result = run_pipeline(spark, cluster, 6000, 1000, tmp_path, lambda _text: None)
    finally:
        for key, old in before.items():
            spark.conf.set(key, old)
    assert result.found.equals(result.expected)
    assert result.found.flights.sum() == 6000
    assert result.triggers[0] >= 2, "it was stopped in the middle"
    assert result.from_slave > 0, "something was left for the slave"


def test_sql_is_filtered_by_the_broker(spark: SparkSession) -> None:
    with open_cluster(slaves=0, settings={"enablePropertyFilter": "true"}) as cluster, open_topics(cluster) as topics:
        topic = topics.new(queues=2)
        for number in range(40):
            topics.send(
                topic, [b"%02d" % number], queue=number % 2, properties={"n": str(number)}, tags="ab"[number % 3 == 0]
            )
        found = bodies(topics.read(spark, topic, sql="n >= 10 and n < 20 and TAGS = 'b'"))
        assert found == [b"12", b"15", b"18"]
        with pytest.raises(Exception, match=r"sql: .*n >="):
            topics.read(spark, topic, sql="n >=").count()
