"""Brokers at the name server: codes 103, 104, 322 and their bodies (docs/protocol/namesrv.md §2 and §3)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

import zlib
from collections.abc import Callable, Generator
from typing import ClassVar, Self, cast

import msgspec

from triomq_protocol.checksum import crc32
from triomq_protocol.errors import BodyError
from triomq_protocol.java_text import parse_integer
from triomq_protocol.wire.body import Body, FrozenBody
from triomq_protocol.wire.fastjson import dumps, loads
from triomq_protocol.wire.header import Header, Int32, Int64
from triomq_protocol.wire.parts import check_uncut, decode_in_parts, list_parts, table_parts


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

    most_bytes: ClassVar[int] = 4096

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
        """Read `line()` back, or the line of a broker of version 5, with attributes after it. Raises BodyError."""
        parts = line.split(" ", 5)
        if len(parts) == 6 and (parts[5] in ("", "null") or parts[5].startswith("{")):
            del parts[5]
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
    """Answer body of 21 as triomq's broker sends it; RocketMQ ignores the additional field.

    `triomq_removed_queues` lists topic, queue id, next queue offset and log offset of each removed consume queue.
    """

    triomq_removed_queues: list[tuple[str, int, int, int]] = []

    @classmethod
    def decode_in_slices(cls, data: bytes) -> Generator[None, None, Self]:
        """`decode`, which yields after parts of a long table; returns the body.

        More than 2 MiB must be in the form that brokers write. Raises BodyError.
        """
        rest, topics = table_parts(data, "topicConfigTable", b'"topicName"')
        rest, removed = list_parts(rest, "triomqRemovedQueues")
        parts = [("topicConfigTable", part) for part in topics] + [("triomqRemovedQueues", part) for part in removed]

        def add(body: Self, part: Self) -> None:
            body.topic_config_table.update(part.topic_config_table)
            body.triomq_removed_queues += part.triomq_removed_queues

        return decode_in_parts(cls, data, rest, parts, add)


def _unwatched(_topics: int, _size: int) -> None:
    """Nobody wants to know how far a registration has been read."""


class RegisterBrokerBody(Body, kw_only=True):
    """Body of 103."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)

    def encode_compressed(self) -> bytes:
        """The zlib form of a broker with `compressedRegister` (docs/protocol/namesrv.md §3.1)."""
        slices = self.encode_compressed_in_slices()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                compressed: bytes = end.value
                return compressed

    def encode_compressed_in_slices(self) -> Generator[None, None, bytes]:
        """`encode_compressed`, which yields after parts of a long table."""
        table = self.topic_config_serialize_wrapper
        deflate = zlib.compressobj(9)
        count = len(table.topic_config_table).to_bytes(4, "big")
        parts = [deflate.compress(_prefixed(table.data_version.encode()) + count)]
        for number, config in enumerate(table.topic_config_table.values(), 1):
            parts.append(deflate.compress(_prefixed(config.line().encode())))
            if not number % _LINES_PER_SLICE:
                yield
        parts += [deflate.compress(_prefixed(dumps(self.filter_server_list))), deflate.flush()]
        return b"".join(parts)

    @classmethod
    def decode_in_slices(
        cls, data: bytes, progress: Callable[[int, int], None] = _unwatched
    ) -> Generator[None, None, Self]:
        """`decode`, which yields after parts of a long table; returns the body.

        `progress` gets the number of topics and of bytes read so far, after each part.

        A body of more than 2 MiB or some thousand topics must have its table in the form that brokers write. Raises
        BodyError.
        """
        rest, tables = table_parts(data, "topicConfigTable", b'"topicName"')
        check_uncut(cls, data, (rest, *tables))
        for part in (rest, *tables):
            objects, texts = part.count(b"{"), part.count(b'"') // 2
            if objects > _MOST_OBJECTS_OF_PART or texts > _MOST_TEXTS_OF_PART:
                raise BodyError(
                    cls.__name__,
                    f"{objects} objects and {texts} texts in {len(part)} bytes; at most {_MOST_OBJECTS_OF_PART} and "
                    f"{_MOST_TEXTS_OF_PART} are read",
                )
        body = cls.decode(rest)
        size = len(rest)
        for table in tables:
            # As a table of its own: brokers of later versions write members that are skipped.
            read = TopicConfigTable.decode(b'{"topicConfigTable":%b}' % table)
            topics = body.topic_config_serialize_wrapper.topic_config_table
            topics.update(read.topic_config_table)
            size += len(table)
            progress(len(topics), size)
            yield
        return body

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        """Read the zlib form; at most 64 MiB after inflation. Raises BodyError."""
        slices = cls.decode_compressed_in_slices(data)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return cast("Self", end.value)

    @classmethod
    def decode_compressed_in_slices(
        cls, data: bytes, progress: Callable[[int, int], None] = _unwatched
    ) -> Generator[None, None, Self]:
        """`decode_compressed`, which yields after parts of a long table; returns the body.

        `progress` gets the number of topics and of bytes read so far, after each part.

        Inflated are a few hundred kilobytes at a time, and no part is read that is longer than its like ever is.
        """
        reader = _InflatedParts(data)
        version = DataVersion.decode((yield from reader.next_part("bytes of a version", DataVersion.most_bytes)))
        table: dict[str, TopicConfig] = {}
        for number in range(1, (yield from reader.next_number("topics", _MOST_LINES)) + 1):
            while (line := reader.part("bytes of a topic", _MOST_LINE_BYTES)) is None:
                progress(len(table), reader.inflated_bytes)
                reader.inflate()
                yield
            config = TopicConfig.from_line(line.decode("utf-8", "replace"))
            table[str(config.topic_name)] = config
            if not number % _LINES_PER_SLICE:
                progress(number, reader.inflated_bytes)
                yield
        servers = loads((yield from reader.next_part("bytes of filter servers", _MOST_SERVERS_BYTES)))
        if not isinstance(servers, list):
            raise BodyError(_COMPRESSED, "the filter servers are not a list")
        yield from reader.skip_rest()
        return cls(
            filter_server_list=[str(server) for server in servers],
            topic_config_serialize_wrapper=TopicConfigTable(
                data_version=version,
                topic_config_table=table,
            ),
        )


_COMPRESSED = "compressed RegisterBrokerBody"
_MAX_INFLATED_BYTES = 64 << 20


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


MOST_UNUSUAL_BYTES = 1 << 20
"""A registration of more bytes is only read in parts, which takes the form that brokers write."""

_PART_BYTES = 1 << 18
"""Of a compressed registration, before or after inflation: so much is read in one go."""
_MOST_LINES = 500_000
"""As many topics as a name server takes from all brokers."""
_MOST_LINE_BYTES = 4096
"""A name of 255 characters and the numbers take at most 1.2 KB."""
_MOST_SERVERS_BYTES = 8192
"""A name server takes 16 filter servers of a broker."""
_LINES_PER_SLICE = 1000
_MOST_OBJECTS_OF_PART = 8192
"""Each topic of a broker takes at least a hundred bytes. Reading one takes up to four microseconds."""
_MOST_TEXTS_OF_PART = 100_000
"""Of names and values. A topic has some twelve."""


class _InflatedParts:
    """Reads numbers and length-prefixed parts of a zlib stream while it is inflated, and never beyond its end.

    It is not inflated as a whole: that may be a thousand times as long, for every connection that sends one.
    """

    def __init__(self, data: bytes) -> None:
        self._inflater = zlib.decompressobj()
        self._data = data
        self._taken = 0
        self._inflated = b""
        self._at = 0
        self._left = _MAX_INFLATED_BYTES

    @property
    def inflated_bytes(self) -> int:
        """How many bytes have been inflated."""
        return _MAX_INFLATED_BYTES - self._left

    def inflate(self) -> None:
        """Inflate a piece more. Raises BodyError if there is none."""
        if self._inflater.eof:
            raise BodyError(_COMPRESSED, "a part is longer than what is left")
        some = self._inflater.unconsumed_tail
        if not some:
            some = self._data[self._taken : self._taken + _PART_BYTES]
            self._taken += len(some)
        if not some or not self._left:
            raise BodyError(_COMPRESSED, f"incomplete, or more than {_MAX_INFLATED_BYTES} bytes when inflated")
        try:
            piece = self._inflater.decompress(some, min(_PART_BYTES, self._left))
        except zlib.error as error:
            raise BodyError(_COMPRESSED, str(error)) from error
        self._left -= len(piece)
        self._inflated = self._inflated[self._at :] + piece
        self._at = 0

    def number(self, what: str, most: int) -> int | None:
        """The next number, or None if more must be inflated first. Raises BodyError if it is negative or too large."""
        end = self._at + 4
        if end > len(self._inflated):
            return None
        number = int.from_bytes(self._inflated[self._at : end], "big", signed=True)
        if not 0 <= number <= most:
            raise BodyError(_COMPRESSED, f"{number} {what}; 0 to {most} are possible")
        self._at = end
        return number

    def part(self, what: str, most_bytes: int) -> bytes | None:
        """The next part, or None if more must be inflated first. Raises BodyError if it is too long."""
        begin = self._at
        size = self.number(what, most_bytes)
        if size is None or size > len(self._inflated) - self._at:
            self._at = begin
            return None
        self._at += size
        return self._inflated[self._at - size : self._at]

    def next_number(self, what: str, most: int) -> Generator[None, None, int]:
        """`number`; yields after each piece that is inflated."""
        while (number := self.number(what, most)) is None:
            self.inflate()
            yield
        return number

    def next_part(self, what: str, most_bytes: int) -> Generator[None, None, bytes]:
        """`part`; yields after each piece that is inflated."""
        while (part := self.part(what, most_bytes)) is None:
            self.inflate()
            yield
        return part

    def skip_rest(self) -> Generator[None, None, None]:
        """Inflate the rest, for the checksum at its end. Later versions may have put something there."""
        while not self._inflater.eof:
            self._at = len(self._inflated)
            self.inflate()
            yield


def registration_crc(body: bytes) -> int:
    """`bodyCrc32` of the header: CRC32 of the body as sent, top bit cleared."""
    return crc32(body)
