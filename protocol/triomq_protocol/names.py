"""Names and limits that all programs of a cluster share: topics, groups, properties, broker ids.

Values that users or operators may choose are not here. Upstream `TopicValidator`, `MixAll`, `MessageConst`, `Validators`.
"""

from typing import Final

MASTER_ID: Final = 0
"""A master's broker id; slaves have others."""

# Topics (docs/protocol/messages.md §9).
RETRY_PREFIX: Final = "%RETRY%"
"""Prefix of a group's name: the topic of messages to be consumed again."""
DLQ_PREFIX: Final = "%DLQ%"
"""Prefix of a group's name: the topic of messages that have used up their retries."""
LMQ_PREFIX: Final = "%LMQ%"
"""Prefix of light message queues, which are queues without a configured topic."""
DEFAULT_TOPIC: Final = "TBW102"
"""The topic whose settings are the defaults of a topic that a send creates."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic of delayed messages until they are due; queue n holds level n + 1."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Half messages of transactions, which consumers do not see yet."""
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Which half messages have been committed or rolled back, one message for each."""
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose transactions were checked too often, or that are too old."""
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The name servers' namespace of the queues of ordered topics: topic -> `broker:queues;broker:queues`."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""Suffix of a cluster's name: the topic of request-reply answers."""

SYSTEM_TOPICS: Final = (
    DEFAULT_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    TRACE_TOPIC,
    OP_HALF_TOPIC,
    CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
)
"""The topics that every broker has, in the order of docs/protocol/messages.md §9; a Java set's order depends on its
insertions."""
TOPICS_OF_5: Final = ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC")
"""Further ones of every broker of RocketMQ 5, whose names do not begin with `SYSTEM_TOPIC_PREFIX`."""


def is_system_topic(topic: str) -> bool:
    """Whether a topic belongs to the system and not to users, whatever the names of clusters and brokers are.

    Beside it, brokers have topics with the names of their cluster and of themselves.
    """
    named = topic in SYSTEM_TOPICS or topic in TOPICS_OF_5
    return named or topic.startswith(SYSTEM_TOPIC_PREFIX) or topic.endswith(REPLY_TOPIC_SUFFIX)


FORBIDDEN_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
"""Topics that only brokers write to."""

# Groups (docs/protocol/broker-api.md §13).
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that exist on every broker from its start."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under whose offsets a broker notes how far it has checked transactions."""

# Limits.
MAX_TOPIC_BYTES: Final = 127
"""A record keeps the length of its topic in one signed byte."""
MAX_GROUP_CHARACTERS: Final = 255
MAX_NAME_CHARACTERS: Final = 255
"""Of any name or address that a server keeps for a peer: a group's is the longest that clients can make."""
MAX_PROPERTIES_BYTES: Final = 32767
"""A record keeps the length of its properties in an int16."""

# Properties of messages (docs/protocol/messages.md §3).
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
TIMER_PROPERTIES: Final = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
"""When a broker of RocketMQ 5 is to deliver a message."""
TIMER_OUT: Final = "TIMER_OUT_MS"
"""When it was due, set by that broker; such a message, sent again, is delivered at once."""
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
"""When a broker of Alibaba Cloud is to deliver a message: its clients send it to any broker."""
DELIVERY_TIMES: Final = TIMER_PROPERTIES | {START_DELIVER_TIME}
"""When a broker of either kind is to deliver a message; those of RocketMQ 4.9 ignore it, and all do in batches."""
PGROUP: Final = "PGROUP"
"""The producer group of a half message."""
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
UNIQ_KEY: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
INSTANCE_ID: Final = "INSTANCE_ID"
"""The client's namespace."""
CORRELATION_ID: Final = "CORRELATION_ID"
"""Of a request and its reply."""
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
"""The id of the client that asks."""
TTL: Final = "TTL"
"""How long it waits, in ms."""
MSG_TYPE: Final = "MSG_TYPE"
"""`reply` for a reply."""
ARRIVE_TIME: Final = "ARRIVE_TIME"
"""When the reply came to the client that asked, in ms since 1970; set by that client."""

RESERVED_PROPERTIES: Final = frozenset(
    {
        KEYS,
        TAGS,
        WAIT,
        DELAY,
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QID,
        TRAN_MSG,
        PGROUP,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        ORIGIN_MESSAGE_ID,
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "MSG_REGION",
        "TRACE_ON",
        UNIQ_KEY,
        "CONSUME_START_TIME",
        INSTANCE_ID,
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        ARRIVE_TIME,
        "PUSH_REPLY_TIME",
        CLUSTER,
        MSG_TYPE,
        "INNER_MULTI_QUEUE_OFFSET",
    }
)
"""Names that a user's property must not have (docs/protocol/messages.md §3, column R)."""
