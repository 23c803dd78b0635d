"""Reads and writes over TLS by an account; its secret is in no plan and no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import triomq.blocking
from triomq_benchmarks.clusters.cluster import OurCluster, open_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "s3cret-of-spark"
ACCOUNTS = f"""
globalWhiteRemoteAddresses: []
accounts:
- accessKey: spark-app
  secretKey: {SECRET}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: PUB|SUB
  topicPerms:
  - orders=PUB|SUB
  - others=DENY
- accessKey: operator
  secretKey: operators-own
  admin: true
"""
TOPICS = ("orders", "others")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    """A master with access control."""
    home = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "rocketmqHome": str(home), "haSlaveAddresses": "127.0.0.1"}
    with open_cluster(slaves=0, settings=settings) as cluster:
        operator = triomq.Credentials("operator", "operators-own")
        with triomq.blocking.open_client(cluster.name_servers, credentials=operator) as client:
            for topic in TOPICS:
                client.admin.create_topic(topic, queues=2)
        yield cluster


def test_rows_there_and_back_by_an_account_over_tls(
    spark: SparkSession, guarded: OurCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = {"accessKey": "spark-app", "secretKey": SECRET}
    tls = {"tls": "true", "tlsInsecure": "true"}
    to = {"namesrv": guarded.name_servers, "topic": "orders"}
    written = spark.range(100).selectExpr("cast(id as string) as body")
    written.write.format("rocketmq").options(**to, **keys, **tls).mode("append").save()
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: spark-app\nsecretKey: {SECRET}\n")
    rows = spark.read.format("rocketmq").options(**to, credentialsFile=str(file)).load()
    assert sorted(int(row.body) for row in rows.select("body").collect()) == list(range(100))

    read = spark.read.format("rocketmq").options(**to, **keys, **tls).load()
    assert read.count() == 100
    read.explain(True)
    refusals = []
    for options in ({**to, "topic": "others", **keys}, to, {**to, "accessKey": "spark-app", "secretKey": f"{SECRET}x"}):
        with pytest.raises(Exception, match="AccessRefused") as refused:
            written.write.format("rocketmq").options(**options).mode("append").save()
        refusals.append(str(refused.value))
    shown = capfd.readouterr()
    for text in (*refusals, shown.out, shown.err):
        assert SECRET not in text
