"""The topic table: what is built in, what a send may create, and topics.json (docs/protocol/broker-api.md §4.4,
docs/protocol/store.md §21-22)."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from text_file import TextFile

from triomq_protocol.requests.registration import DataVersion, TopicConfig, TopicConfigTable
from triomq_server.broker.tables.topics import TopicTable, topic_name_remark
from triomq_server.config import BrokerConfig


def table(file: TextFile | None = None, **settings: Any) -> TopicTable:
    values = {"brokerClusterName": "C1", "brokerName": "b1", **{key: str(value) for key, value in settings.items()}}
    config, _ = BrokerConfig.from_properties(values)
    ticks = count(1000)
    return TopicTable(config, file, lambda: next(ticks))


def test_built_in_topics() -> None:
    built_in = {name: (t.read_queue_nums, t.write_queue_nums, t.perm) for name, t in table().table.items()}
    assert built_in == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "C1": (16, 16, 7),
        "b1": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "C1_REPLY_TOPIC": (1, 1, 6),
    }


def test_built_in_topics_follow_the_configuration() -> None:
    topics = table(
        autoCreateTopicEnable="false", clusterTopicEnable="false", brokerTopicEnable="false", traceTopicEnable="true"
    )
    assert topics.get("TBW102") is None
    assert (topics.table["C1"].perm, topics.table["b1"].perm) == (1, 1)
    assert topics.table["RMQ_SYS_TRACE_TOPIC"].read_queue_nums == 1


@pytest.mark.parametrize(("wish", "queues"), [(4, 4), (20, 8), (0, 0), (-3, 0)])
def test_a_send_creates_with_bounded_queues(wish: int, queues: int) -> None:
    made = table().create_for_send("New", "TBW102", wish)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (queues, queues, 6)


@pytest.mark.parametrize(("template", "made"), [("C1", True), ("b1", True), ("BenchmarkTest", False), ("none", False)])
def test_only_inheritable_templates_create(template: str, made: bool) -> None:
    assert (table().create_for_send("New", template, 4) is not None) == made


def test_no_creation_when_it_is_off_even_if_the_template_survives_in_the_file() -> None:
    file = TextFile(
        b'{"topicConfigTable":{"TBW102":{"topicName":"TBW102","perm":7,"readQueueNums":8,"writeQueueNums":8}}}'
    )
    topics = table(file, autoCreateTopicEnable="false")
    topics.load()
    assert topics.create_for_send("New", "TBW102", 4) is None
    assert topics.table["TBW102"].perm == 6


def test_each_change_counts_persists_and_calls_on_change() -> None:
    file = TextFile()
    topics = table(file)
    notified: list[TopicConfig | None] = []
    topics.on_change = notified.append
    topics.put(TopicConfig(topic_name="A"))
    topics.ensure("%RETRY%g", 1)
    topics.ensure("%RETRY%g", 9)
    assert topics.remove("A")
    assert not topics.remove("A")
    assert [topic and topic.topic_name for topic in notified] == ["A", "%RETRY%g", None]
    assert topics.version.counter == 3
    saved = json.loads(file.text)
    assert saved["dataVersion"]["counter"] == 3
    assert saved["topicConfigTable"]["%RETRY%g"]["readQueueNums"] == 1
    assert "A" not in saved["topicConfigTable"]


def test_a_full_disk_costs_nothing_but_the_file() -> None:
    file = TextFile()
    topics = table(file)
    file.full = True
    topics.put(TopicConfig(topic_name="A"))
    assert topics.get("A") is not None
    file.full = False
    topics.persist_if_unsaved()
    assert "A" in json.loads(file.text)["topicConfigTable"]
    file.text = b""
    topics.persist_if_unsaved()
    assert file.text == b""


def test_real_file_survives_load_and_save(vectors: Path) -> None:
    """The text of a real topics.json, read and written again, has the same members in the same form."""
    text = json.loads((vectors / "store-small.json").read_text())["configFiles"]["topics.json"]
    file = TextFile(text.encode())
    topics = table(file)
    topics.load()
    topics.persist()
    ours, real = file.text.decode(), text
    assert json.loads(ours)["dataVersion"] == json.loads(real)["dataVersion"]
    real_table, our_table = json.loads(real)["topicConfigTable"], json.loads(ours)["topicConfigTable"]
    assert {name: our_table[name] for name in real_table} == real_table
    # Form: what is in both files stands there in the same lines.
    assert set(real.splitlines()) - set(ours.splitlines()) <= {"\t\t}", "\t\t},"}


def test_order_topics_from_the_name_server() -> None:
    topics = table()
    topics.put(TopicConfig(topic_name="A"))
    topics.put(TopicConfig(topic_name="B", order=True))
    notified: list[object] = []
    topics.on_change = notified.append
    counter = topics.version.counter
    topics.set_order_topics({"A": "b1:4"})
    assert (topics.table["A"].order, topics.table["B"].order) == (True, False)
    assert topics.version.counter == counter + 1
    topics.set_order_topics({"A": "b1:4"})
    assert topics.version.counter == counter + 1
    assert notified == []


def test_a_slave_takes_the_masters_table_completely() -> None:
    topics = table()
    received = TopicConfigTable(
        data_version=DataVersion(counter=9, timestamp=5), topic_config_table={"A": TopicConfig(topic_name="A")}
    )
    same_dict = topics.table
    assert topics.replace_all(received)
    assert set(topics.table) == {"A"}
    assert topics.table is same_dict, "the hot path holds the dictionary itself"
    assert topics.version == DataVersion(counter=9, timestamp=5)
    assert not topics.replace_all(received)


def test_what_a_slave_makes_itself_leaves_its_version_alone() -> None:
    topics = table(brokerRole="SLAVE", brokerId=1)
    assert topics.version == DataVersion(counter=0, timestamp=0)
    received = TopicConfigTable(data_version=DataVersion(counter=9, timestamp=5))
    topics.replace_all(received)
    topics.ensure("%RETRY%g", 1)
    assert topics.version == DataVersion(counter=9, timestamp=5)
    assert not topics.replace_all(received), "the next copy of the same table does not wipe it"
    assert topics.get("%RETRY%g") is not None


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        (None, "The specified topic is blank."),
        ("", "The specified topic is blank."),
        ("  ", "The specified topic is blank."),
        ("a b", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("größe", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a\n", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("t" * 128, "The specified topic is longer than topic max length."),
        ("t" * 127, None),
        ("%RETRY%a|b_c-9", None),
    ],
)
def test_names(topic: str | None, remark: str | None) -> None:
    assert topic_name_remark(topic) == remark


@pytest.mark.parametrize(
    ("topic", "system"),
    [("TBW102", True), ("C1", True), ("b1", True), ("C1_REPLY_TOPIC", True), ("rmq_sys_x", True), ("T1", False)],
)
def test_system_topics(topic: str, system: bool) -> None:
    assert table().is_system(topic) == system
