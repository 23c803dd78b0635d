"""Brokers at the name server: codes 103, 104, 322 and their bodies (namesrv.md sections 2 and 3)."""

from typing import Self

import msgspec

from triomq_protocol.body import Body
from triomq_protocol.header import Header, Int32, Int64


class RegisterBrokerRequest(Header, kw_only=True):
    """Header of REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponse(Header, kw_only=True):
    """Answer header of 103; both absent for masters and while no master is known."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequest(Header, kw_only=True):
    """Header of UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequest(Header, kw_only=True):
    """Header of QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponse(Header, kw_only=True):
    """Answer header of 322."""

    changed: bool | None = None


class DataVersion(Body, frozen=True, kw_only=True):
    """Version of a table: `timestamp` (ms) and a counter; equal iff both are equal."""

    counter: int = 0
    timestamp: int = 0


class TopicConfig(Body, kw_only=True):
    """One topic as a broker keeps it."""

    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str | None = None
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    def line(self) -> str:
        """The five tokens of the compressed registration; order and topicSysFlag do not travel in it."""
        raise LookupError

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read `line()` back. Raises BodyError."""
        raise LookupError


class TopicConfigTable(Body, kw_only=True):
    """All topics of a broker: answer body of 21, topics.json; upstream `TopicConfigSerializeWrapper`."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class RegisterBrokerBody(Body, kw_only=True):
    """Body of 103."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)

    def encode_compressed(self) -> bytes:
        """The zlib form of a broker with `compressedRegister` (namesrv.md section 3.1)."""
        raise LookupError

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        """Read the zlib form; at most 64 MiB after inflation. Raises BodyError."""
        raise LookupError


def registration_crc(body: bytes) -> int:
    """`bodyCrc32` of the header: CRC32 of the body as sent, top bit cleared."""
    raise LookupError
