"""Names of the system and reserved properties, against the tables of docs/protocol/messages.md §3 and §9."""

from __future__ import annotations

import pytest

from triomq_protocol import names
from triomq_protocol.names import is_system_topic


@pytest.mark.parametrize(
    "topic",
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_",
        "rmq_sys_anything",
        "DefaultCluster_REPLY_TOPIC",
        "_REPLY_TOPIC",
    ],
)
def test_topics_of_the_system(topic: str) -> None:
    assert is_system_topic(topic)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "orders",
        "tbw102",
        "TBW1020",
        "aTBW102",
        "RMQ_SYS_",
        "RMQ_SYS_OTHER",
        "my_rmq_sys_topic",
        "Cluster_REPLY_TOPIC_2",
        "Cluster_reply_topic",
        "%RETRY%group",
        "%DLQ%group",
        "%LMQ%queue",
        "ORDER_TOPIC_CONFIG",
    ],
)
def test_topics_of_users(topic: str) -> None:
    assert not is_system_topic(topic)


def test_topics_that_only_brokers_write_to() -> None:
    assert sorted(names.FORBIDDEN_TOPICS) == [
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ]
    assert all(map(is_system_topic, names.FORBIDDEN_TOPICS))


def test_groups_of_a_fresh_broker() -> None:
    assert sorted(names.SYSTEM_GROUPS) == [
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "TOOLS_CONSUMER",
    ]
    assert names.TRANSACTION_GROUP.startswith(names.SYSTEM_GROUP_PREFIX)


RESERVED = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID TRANSFER_FLAG
    CORRECTION_FLAG MQ2_FLAG ORIGIN_MESSAGE_ID RECONSUME_TIME MAX_RECONSUME_TIMES MSG_REGION TRACE_ON UNIQ_KEY
    CONSUME_START_TIME INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET
"""


def test_properties_that_users_must_not_set() -> None:
    assert sorted(names.RESERVED_PROPERTIES) == sorted(RESERVED.split())


@pytest.mark.parametrize(
    "name",
    ["TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_MULTI_DISPATCH", "keys"],
)  # fmt: skip
def test_properties_that_users_may_set(name: str) -> None:
    assert name not in names.RESERVED_PROPERTIES


def test_limits() -> None:
    assert (names.MAX_TOPIC_BYTES, names.MAX_GROUP_CHARACTERS, names.MAX_PROPERTIES_BYTES) == (127, 255, 32767)
