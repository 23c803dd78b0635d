"""Brokers at the name server: codes 103, 104, 322 and their bodies (docs/protocol/namesrv.md §2 and §3)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

import zlib
from typing import Self

import msgspec

from triomq_protocol.checksum import crc32
from triomq_protocol.errors import BodyError
from triomq_protocol.java_text import parse_integer
from triomq_protocol.wire.body import Body, FrozenBody
from triomq_protocol.wire.fastjson import dumps, loads
from triomq_protocol.wire.header import Header, Int32, Int64


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


class DataVersion(FrozenBody, frozen=True, kw_only=True):
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
        """The five tokens of the compressed registration; order and topicSysFlag are not part of it."""
        return f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} {self.topic_filter_type}"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read `line()` back. Raises BodyError."""
        parts = line.split(" ")
        try:
            name, read, write, perm, filter_type = parts
            return cls(
                topic_name=name,
                read_queue_nums=parse_integer(read, 32),
                write_queue_nums=parse_integer(write, 32),
                perm=parse_integer(perm, 32),
                topic_filter_type=filter_type,
            )
        except ValueError as error:
            raise BodyError("topic config line", f"{line[:200]!r}") from error


class TopicConfigTable(Body, kw_only=True):
    """All topics of a broker: answer body of 21, topics.json; upstream `TopicConfigSerializeWrapper`."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class TopicConfigTableForSlaves(TopicConfigTable, kw_only=True):
    """Answer body of 21 as our broker sends it; RocketMQ does not look at the field that is added.

    `triomq_removed_queues` lists topic, queue id, next queue offset and log offset of each removed consume queue.
    """

    triomq_removed_queues: list[tuple[str, int, int, int]] = []


class RegisterBrokerBody(Body, kw_only=True):
    """Body of 103."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)

    def encode_compressed(self) -> bytes:
        """The zlib form of a broker with `compressedRegister` (docs/protocol/namesrv.md §3.1)."""
        table = self.topic_config_serialize_wrapper
        parts = [_prefixed(table.data_version.encode()), len(table.topic_config_table).to_bytes(4, "big")]
        parts += [_prefixed(config.line().encode()) for config in table.topic_config_table.values()]
        parts.append(_prefixed(dumps(self.filter_server_list)))
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        """Read the zlib form; at most 64 MiB after inflation. Raises BodyError."""
        reader = _PrefixReader(_inflate(data))
        version = DataVersion.decode(reader.part())
        configs = [TopicConfig.from_line(reader.part().decode("utf-8", "replace")) for _ in range(reader.count())]
        servers = loads(reader.part())
        if not isinstance(servers, list):
            raise BodyError(_COMPRESSED, "the filter servers are not a list")
        return cls(
            filter_server_list=[str(server) for server in servers],
            topic_config_serialize_wrapper=TopicConfigTable(
                data_version=version,
                topic_config_table={str(config.topic_name): config for config in configs},
            ),
        )


_COMPRESSED = "compressed RegisterBrokerBody"
_MAX_INFLATED_BYTES = 64 << 20


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(data, _MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise BodyError(_COMPRESSED, str(error)) from error
    if not inflater.eof:
        raise BodyError(_COMPRESSED, f"incomplete, or more than {_MAX_INFLATED_BYTES} bytes when inflated")
    return out


class _PrefixReader:
    """Reads numbers and length-prefixed parts, and never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        end = self._at + 4
        number = int.from_bytes(self._data[self._at : end], "big", signed=True)
        if end > len(self._data) or not 0 <= number <= len(self._data) - end:
            raise BodyError(_COMPRESSED, f"length {number} at {self._at} of {len(self._data)} bytes")
        self._at = end
        return number

    def part(self) -> bytes:
        size = self.count()
        self._at += size
        return self._data[self._at - size : self._at]


def registration_crc(body: bytes) -> int:
    """`bodyCrc32` of the header: CRC32 of the body as sent, top bit cleared."""
    return crc32(body)
