"""Monitoring and controlling consumers and producers: codes 203, 204, 208, 220-223, 300, 303, 307-309, 314, 317, 328,
343, 345 (docs/protocol/broker-api.md §14)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from triomq_protocol.requests.heartbeat import SubscriptionData
from triomq_protocol.requests.message_queue import MessageQueue
from triomq_protocol.wire.body import ANSWER_TOLERANT_BYTES, Body, SmallKey
from triomq_protocol.wire.fastjson import quote
from triomq_protocol.wire.header import Header, Int32, Int64


class GetConsumerConnectionListRequest(Header, kw_only=True):
    """Header of GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class GetProducerConnectionListRequest(Header, kw_only=True):
    """Header of GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ClientConnection(Body, kw_only=True):
    """One connected client; upstream `Connection`."""

    client_addr: str | None = None
    client_id: str | None = None
    language: str | None = None
    version: int = 0


class ConsumerConnection(Body, kw_only=True):
    """Answer body of 203."""

    connection_set: list[ClientConnection] = []
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = {}

    @property
    def members(self) -> set[str]:
        """The client ids of the members, each of which may have several connections."""
        return {each.client_id or "" for each in self.connection_set}


class ProducerConnection(Body, kw_only=True):
    """Answer body of 204."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Body, kw_only=True):
    """One producer in ProducerTableInfo."""

    client_id: str | None = None
    language: str | None = None
    last_update_timestamp: int = 0
    remote_ip: str | None = msgspec.field(default=None, name="remoteIP")
    version: int = 0


class ProducerTableInfo(Body, kw_only=True):
    """Answer body of GET_ALL_PRODUCER_INFO (328)."""

    data: dict[str, list[ProducerInfo]] = {}

    @staticmethod
    def encode_group(group: str, producers: Sequence[bytes]) -> bytes:
        """One entry of the map, of encoded `ProducerInfo`."""
        return b"%b:[%b]" % (quote(group).encode(), b",".join(producers))

    @staticmethod
    def encode_groups(groups: Sequence[bytes]) -> bytes:
        """The body whose map has these entries, of `encode_group`; see `ConsumeStatsList.encode_groups`."""
        return b'{"data":{%b}}' % b",".join(groups)


class GetConsumeStatsRequest(Header, kw_only=True):
    """Header of GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


class OffsetWrapper(Body, kw_only=True):
    """A group's progress in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int | None = None
    """Of RocketMQ 5, whose tools subtract `consumer_offset` from it; absent for tools of 4.9."""


class ConsumeStats(Body, kw_only=True):
    """Answer body of 208."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}


class GetConsumeStatsInBrokerRequest(Header, kw_only=True):
    """Header of GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class ConsumeStatsList(Body, kw_only=True):
    """Answer body of 317."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: int = 0

    @staticmethod
    def encode_group(group: str, stats: Sequence[bytes]) -> bytes:
        """One entry of the list, of encoded `ConsumeStats`."""
        return b"{%b:[%b]}" % (quote(group).encode(), b",".join(stats))

    @staticmethod
    def encode_groups(broker_addr: str, groups: Sequence[bytes], total_diff: int) -> bytes:
        """The body whose list has these entries, from `encode_group`.

        A broker has tens of thousands of groups. As objects, all of them would be visited by the garbage collector
        while they wait to be written.
        """
        head = b'{"brokerAddr":%b,"consumeStatsList":[' % quote(broker_addr).encode()
        return b'%b%b],"totalDiff":%d}' % (head, b",".join(groups), total_diff)


class QueryTopicConsumeByWhoRequest(Header, kw_only=True):
    """Header of QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


class GroupList(Body, kw_only=True):
    """Answer body of 300."""

    group_list: list[str] = []


class QueryConsumeTimeSpanRequest(Header, kw_only=True):
    """Header of QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class QueueTimeSpan(Body, kw_only=True):
    """Store times of one queue; the `_str` forms are local time `yyyy-MM-dd#HH:mm:ss:SSS`."""

    consume_time_stamp: int = 0
    consume_time_stamp_str: str | None = None
    delay_time: int = 0
    max_time_stamp: int = 0
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    min_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """Answer body of 303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetRequest(Header, kw_only=True):
    """Header of QUERY_CORRECTION_OFFSET (308)."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """Answer body of 308."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    correction_offsets: dict[SmallKey, int] = {}


class CloneGroupOffsetRequest(Header, kw_only=True):
    """Header of CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class GetConsumerRunningInfoRequest(Header, kw_only=True):
    """Header of GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ProcessQueueInfo(Body, kw_only=True):
    """State of one assigned queue inside a consumer."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mib: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class ConsumeStatus(Body, kw_only=True):
    """Rates of one topic inside a consumer."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")


class ConsumerRunningInfo(Body, kw_only=True):
    """The state that a consumer reports: answer body of 307."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    jstack: str | None = None
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    properties: dict[str, str] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: list[SubscriptionData] = []


class ConsumeMessageDirectlyRequest(Header, kw_only=True):
    """Header of CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """Answer body of 309; `consume_result` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL."""

    auto_commit: bool = True
    consume_result: str | None = None
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0


class ResetOffsetRequest(Header, kw_only=True):
    """Header of INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220)."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: Int64 | None = None
    """Of RocketMQ 5: the only queue to reset, unless negative, and the offset to which, instead of a time."""


class GroupRequest(Header, kw_only=True):
    """Header of QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class GroupAndTopicRequest(Header, kw_only=True):
    """Header of QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str


class QuerySubscriptionBody(Body, kw_only=True):
    """Answer body of 345; without a subscription if the group is offline or reads the topic without one."""

    group: str
    subscription_data: SubscriptionData | None = None
    topic: str


class ResetOffsetBody(Body, kw_only=True):
    """Answer body of 222, body of 220: where each queue was set to."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    offset_table: dict[MessageQueue, int] = {}


class MessageQueueForC(Body, kw_only=True):
    """One queue and its offset in ResetOffsetBodyForC."""

    broker_name: str | None = None
    offset: int = 0
    queue_id: int = 0
    topic: str | None = None


class ResetOffsetBodyForC(Body, kw_only=True):
    """Body of 220 when the requester's language is CPP."""

    offset_table: list[MessageQueueForC] = []


class GetConsumerStatusRequest(Header, kw_only=True):
    """Header of INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerStatusBody(Body, kw_only=True):
    """Answer body of 221 (message_queue_table) and of 223 (consumer_table: client id -> queue -> offset)."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    consumer_table: dict[str, dict[MessageQueue, int]] = {}
    message_queue_table: dict[MessageQueue, int] = {}
