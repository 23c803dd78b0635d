"""Topics, groups, configuration and statistics of one broker: codes 17, 18, 21, 25, 26, 50-54, 200, 201, 202, 207,
215, 225, 315, 321, 351, 352, 401 (docs/protocol/broker-api.md §12, §13, §15, §16)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

from collections.abc import Generator
from typing import ClassVar, Self

from triomq_protocol.requests.heartbeat import SubscriptionData
from triomq_protocol.requests.message_queue import MessageQueue
from triomq_protocol.requests.registration import DataVersion, TopicConfig
from triomq_protocol.wire.body import ANSWER_TOLERANT_BYTES, Body
from triomq_protocol.wire.header import Header, Int32, Int64
from triomq_protocol.wire.parts import decode_in_parts, table_parts


class CreateTopicRequest(Header, kw_only=True):
    """Header of UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str | None = None
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    """Of RocketMQ 5: `+name=value` or `-name`, joined by commas."""


class TopicConfigInList(TopicConfig, kw_only=True):
    """A topic in the body of 18; `attributes` as in the header of 17, with the signs in the names."""

    attributes: dict[str, str] = {}


class CreateTopicListBody(Body, kw_only=True):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    most_bytes: ClassVar[int] = 1 << 20
    most_objects: ClassVar[int] = 2001

    topic_config_list: list[TopicConfigInList] = []


class GetTopicConfigRequest(Header, kw_only=True):
    """Header of GET_TOPIC_CONFIG (351)."""

    topic: str


class DeleteTopicRequest(Header, kw_only=True):
    """Header of DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class GetAllTopicConfigResponse(Header, kw_only=True):
    """Answer header of 21: no fields."""


class GetTopicStatsInfoRequest(Header, kw_only=True):
    """Header of GET_TOPIC_STATS_INFO (202)."""

    topic: str


class TopicOffset(Body, kw_only=True):
    """Bounds of one queue; upstream `TopicOffset`."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStatsTable(Body, kw_only=True):
    """Answer body of 202."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    offset_table: dict[MessageQueue, TopicOffset] = {}


class SubscriptionGroupConfig(Body, kw_only=True):
    """One consumer group as a broker keeps it: body of 200."""

    most_bytes: ClassVar[int] = 1 << 20

    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str | None = None
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupList(Body, kw_only=True):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    most_bytes: ClassVar[int] = 1 << 20
    most_objects: ClassVar[int] = 1001

    group_config_list: list[SubscriptionGroupConfig] = []


class SetMessageRequestModeBody(Body, kw_only=True):
    """Body of SET_MESSAGE_REQUEST_MODE (401); `mode` is PULL or POP."""

    most_bytes: ClassVar[int] = 1 << 16

    topic: str | None = None
    consumer_group: str | None = None
    mode: str | None = None
    pop_share_queue_num: int = 0


class GetSubscriptionGroupConfigRequest(Header, kw_only=True):
    """Header of GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class SubscriptionGroupTable(Body, kw_only=True):
    """All groups of a broker: answer body of 201, subscriptionGroup.json; upstream `SubscriptionGroupWrapper`."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}

    @classmethod
    def decode_in_slices(cls, data: bytes) -> Generator[None, None, Self]:
        """`decode`, which yields after parts of a long table; returns the body.

        More than 2 MiB must be in the form that brokers write. Raises BodyError.
        """
        rest, groups = table_parts(data, "subscriptionGroupTable", b'"groupName"')

        def add(body: Self, part: Self) -> None:
            body.subscription_group_table.update(part.subscription_group_table)

        return decode_in_parts(cls, data, rest, [("subscriptionGroupTable", part) for part in groups], add)


class DeleteSubscriptionGroupRequest(Header, kw_only=True):
    """Header of DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    remove_offset: bool = False


class GetBrokerConfigResponse(Header, kw_only=True):
    """Answer header of 26: DataVersion JSON of the configuration."""

    version: str | None = None


class ViewBrokerStatsDataRequest(Header, kw_only=True):
    """Header of VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class BrokerStatsItem(Body, kw_only=True):
    """Sum, per-second rate and average per call over one window."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """Answer body of 315."""

    stats_day: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_minute: BrokerStatsItem | None = None


class QueryConsumeQueueRequest(Header, kw_only=True):
    """Header of QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ConsumeQueueEntry(Body, kw_only=True):
    """One entry of a consume queue; upstream `ConsumeQueueData`."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0


class QueryConsumeQueueBody(Body, kw_only=True):
    """Answer body of 321; upstream `QueryConsumeQueueResponseBody`."""

    filter_data: str | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[ConsumeQueueEntry] | None = None
    subscription_data: SubscriptionData | None = None


class CreateAccessConfigRequest(Header, kw_only=True):
    """Header of UPDATE_AND_CREATE_ACL_CONFIG (50)."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessConfigRequest(Header, kw_only=True):
    """Header of DELETE_ACL_CONFIG (51)."""

    access_key: str | None = None


class UpdateGlobalWhiteAddrsConfigRequest(Header, kw_only=True):
    """Header of UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""

    global_white_addrs: str | None = None
    acl_file_full_path: str | None = None


class GetBrokerAclConfigResponse(Header, kw_only=True):
    """Answer header of GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str | None = None
    all_acl_file_version: str | None = None
    broker_name: str | None = None
    broker_addr: str | None = None
    cluster_name: str | None = None


class GetBrokerClusterAclConfigResponse(Header, kw_only=True):
    """Answer header of GET_BROKER_CLUSTER_ACL_CONFIG (54): no fields."""


class PlainAccessConfig(Body, kw_only=True):
    """One account of an access control file."""

    access_key: str | None = None
    admin: bool = False
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] | None = None
    secret_key: str | None = None
    topic_perms: list[str] | None = None
    white_remote_address: str | None = None


class ClusterAclConfig(Body, kw_only=True):
    """Answer body of 54; upstream `AclConfig`."""

    global_white_addrs: list[str] = []
    plain_access_configs: list[PlainAccessConfig] = []
