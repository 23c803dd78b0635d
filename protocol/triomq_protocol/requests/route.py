"""Routes, cluster and key-value configuration of a name server (docs/protocol/namesrv.md): codes 100-102, 105, 106,
205, 206, 216, 219, 224, 304, 311-313, 327."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

from collections.abc import Generator
from typing import ClassVar

from triomq_protocol.wire.body import ANSWER_TOLERANT_BYTES, Body, SmallKey
from triomq_protocol.wire.fastjson import dumps_standard, dumps_standard_in_slices
from triomq_protocol.wire.header import Header, Int32


class GetRouteInfoRequest(Header, kw_only=True):
    """Header of GET_ROUTEINFO_BY_TOPIC (105); without topic the answer is code 17."""

    topic: str | None = None
    accept_standard_json_only: bool | None = None


class QueueData(Body, kw_only=True, gc=False):
    """A topic's queues on one broker set.

    The garbage collector ignores it and maps of it: a name server has hundreds of thousands, and they refer only to texts
    and numbers.
    """

    broker_name: str | None = None
    perm: int = 0
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Body, kw_only=True):
    """The addresses of one broker set: broker id (0 is the master) -> `host:port`."""

    broker_addrs: dict[SmallKey, str] | None = None
    broker_name: str | None = None
    cluster: str | None = None
    enable_acting_master: bool | None = None  # of RocketMQ 5 only: a slave may be listed as 0 while there is no master


class QueueMapping(Body, kw_only=True):
    """The queues of a static topic of RocketMQ 5 on one broker set; what its own clients need to find them is not read."""

    bname: str | None = None
    total_queues: int = 0


class TopicRouteData(Body, kw_only=True):
    """Answer body of 105: the brokers and queues of a topic."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    broker_datas: list[BrokerData] | None = None
    filter_server_table: dict[str, list[str]] | None = None
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] | None = None
    topic_queue_mapping_by_broker: dict[str, QueueMapping] | None = None

    def encode_standard(self) -> bytes:
        """The form for callers of version >= 401 or with acceptStandardJsonOnly (docs/protocol/remoting.md §13.1).

        Map keys quoted and sorted, non-ASCII as `\\uXXXX`, `/` as `\\/`.
        """
        return dumps_standard(self)

    def encode_standard_in_slices(self) -> Generator[None, None, bytes]:
        """`encode_standard`, which yields between parts that take a few milliseconds."""
        return dumps_standard_in_slices(self)

    @property
    def names(self) -> int:
        """The number of brokers, of their addresses and of filter servers, which encoding takes its time for."""
        return sum(1 + len(broker.broker_addrs or ()) for broker in self.broker_datas or ()) + sum(
            map(len, (self.filter_server_table or {}).values())
        )


class ClusterInfo(Body, kw_only=True):
    """Answer body of GET_BROKER_CLUSTER_INFO (106)."""

    tolerant_bytes: ClassVar[int] = ANSWER_TOLERANT_BYTES

    broker_addr_table: dict[str, BrokerData] | None = None
    cluster_addr_table: dict[str, list[str]] | None = None


class TopicList(Body, kw_only=True):
    """Answer body of every topic list: 206, 224, 304, 305, 311, 312, 313."""

    broker_addr: str | None = None
    topic_list: list[str] = []


class KVTable(Body, kw_only=True):
    """Text to text: answer body of 103 (order configuration), 219 and 28."""

    table: dict[str, str] = {}


class PutKVConfigRequest(Header, kw_only=True):
    """Header of PUT_KV_CONFIG (100); a missing namespace or key is answered by the name server."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class GetKVConfigRequest(Header, kw_only=True):
    """Header of GET_KV_CONFIG (101)."""

    namespace: str | None = None
    key: str | None = None


class GetKVConfigResponse(Header, kw_only=True):
    """Answer header of 101."""

    value: str | None = None


class DeleteKVConfigRequest(Header, kw_only=True):
    """Header of DELETE_KV_CONFIG (102)."""

    namespace: str | None = None
    key: str | None = None


class GetKVListByNamespaceRequest(Header, kw_only=True):
    """Header of GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str | None = None


class WipeWritePermOfBrokerRequest(Header, kw_only=True):
    """Header of WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


class WipeWritePermOfBrokerResponse(Header, kw_only=True):
    """Answer header of 205: how many topics lost the write permission."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerRequest(Header, kw_only=True):
    """Header of ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class AddWritePermOfBrokerResponse(Header, kw_only=True):
    """Answer header of 327."""

    add_topic_count: Int32


class DeleteTopicFromNamesrvRequest(Header, kw_only=True):
    """Header of DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequest(Header, kw_only=True):
    """Header of GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str
