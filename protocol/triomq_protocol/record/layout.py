"""The layout of a message record: the only definition of its offsets, sizes, Structs and sysFlag bits
(docs/protocol/messages.md §4, §7, §14).

A record is a head, then body, topic and properties, the last two each preceded by its length. The head has a fixed size
except for its two hosts, which take 8 bytes (IPv4) or 20 (IPv6) each, as two bits of sysFlag indicate. All numbers are
big-endian. Offsets and Structs follow from one table of fields; no other module defines any. Upstream `CommitLog`,
`MessageSysFlag`.
"""

from struct import Struct, calcsize
from typing import Final

MESSAGE_MAGIC: Final = -626843481
"""0xDAA320A7 as signed int32: a record."""
BLANK_MAGIC: Final = -875286124
"""0xCBD43194 as signed int32: the mark at the end of a log file; its size is then the rest of the file."""

# sysFlag. Compression and transaction bits come from producers, the IPv6 bits from the side that packed the host.
COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
ANY_HOST_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
IPV6_EXTRA_BYTES: Final = IPV6_HOST_BYTES - IPV4_HOST_BYTES
_HOST_BYTES: Final = (IPV4_HOST_BYTES, IPV6_HOST_BYTES)

HEAD_FIELDS: Final = {
    "size": "i",
    "magic": "i",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": "8s",
    "store_timestamp": "q",
    "store_host": "8s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}
"""The head's fields in order, with their struct codes if both hosts are IPv4. `size` is the size of the record."""


def field_offset(name: str) -> int:
    """The position of a field in an IPv4 head."""
    names = list(HEAD_FIELDS)
    return calcsize(">" + "".join(HEAD_FIELDS[before] for before in names[: names.index(name)]))


def _head(*names: str) -> Struct:
    """Reads these fields of an IPv4 head in one go and skips the others; ends with the last of them."""
    formats, at = [">"], 0
    for name in names:
        begin = field_offset(name)
        formats += [f"{begin - at}x" if begin > at else "", HEAD_FIELDS[name]]
        at = begin + calcsize(">" + HEAD_FIELDS[name])
    return Struct("".join(formats))


def _whole_head(born_host_bytes: int, store_host_bytes: int) -> Struct:
    formats = HEAD_FIELDS | {"born_host": f"{born_host_bytes}s", "store_host": f"{store_host_bytes}s"}
    return Struct(">" + "".join(formats.values()))


BODY_CRC_AT: Final = field_offset("body_crc")
QUEUE_ID_AT: Final = field_offset("queue_id")
FLAG_AT: Final = field_offset("flag")
QUEUE_OFFSET_AT: Final = field_offset("queue_offset")
PHYSICAL_OFFSET_AT: Final = field_offset("physical_offset")
SYS_FLAG_AT: Final = field_offset("sys_flag")
BORN_TIMESTAMP_AT: Final = field_offset("born_timestamp")
BORN_HOST_AT: Final = field_offset("born_host")
STORE_TIMESTAMP_AT: Final = field_offset("store_timestamp")
"""The fields after an IPv4 born host."""
STORE_TIMESTAMP_AT_V6: Final = STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES
"""The fields after an IPv6 born host."""
HEAD_V4: Final = _whole_head(IPV4_HOST_BYTES, IPV4_HOST_BYTES)
"""All fields of a head with two IPv4 hosts."""
HEADS: Final = {(born, store): _whole_head(born, store) for born in _HOST_BYTES for store in _HOST_BYTES}
"""All fields of a head, by the lengths of born and store host."""
BODY_AT: Final = HEAD_V4.size
"""The fields after two IPv4 hosts."""

# Fields after the born host are located forward from the store timestamp, fields after both hosts backward from the
# body.
STORE_HOST_AFTER_TIMESTAMP: Final = field_offset("store_host") - STORE_TIMESTAMP_AT
BODY_AFTER_TIMESTAMP: Final = BODY_AT - STORE_TIMESTAMP_AT
"""From the store timestamp to the body, over an IPv4 store host."""
BODY_AFTER_TIMESTAMP_V6: Final = BODY_AFTER_TIMESTAMP + IPV6_EXTRA_BYTES
"""The same over an IPv6 store host."""
RECONSUME_TIMES_BEFORE_BODY: Final = BODY_AT - field_offset("reconsume_times")
PREPARED_OFFSET_BEFORE_BODY: Final = BODY_AT - field_offset("prepared_transaction_offset")
BODY_LENGTH_BEFORE_BODY: Final = BODY_AT - field_offset("body_length")

TOPIC_LENGTH_BYTES: Final = 1
PROPERTIES_LENGTH: Final = Struct(">h")
TAIL_LENGTHS_BYTES: Final = TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH.size
"""The lengths of topic and properties."""
FIXED_BYTES: Final = BODY_AT + TAIL_LENGTHS_BYTES
"""Size of a record with IPv4 hosts, without body, topic and properties: no record is smaller."""

MARK: Final = _head("size", "magic")
"""The first two words, of a record and of the mark at a file's end. Written last: without them there is no record."""
MARKED_SHAPE_V4: Final = _head("size", "magic", "sys_flag", "body_length")
"""The fields of `SHAPE_V4`, and the magic number."""
SHAPE_V4: Final = _head("size", "sys_flag", "body_length")
"""The fields from which all positions in a record follow; the last is meaningless unless both hosts are IPv4."""
PLACE: Final = _head("size", "magic", "physical_offset")
"""The fields that identify a record."""
ENTRY_CHECKED: Final = _head("size", "magic", "queue_id", "queue_offset", "physical_offset")
"""The fields that show whether a consume queue entry points to its record."""
CHECKED: Final = _head(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag"
)  # fmt: skip
"""The fields that recovery reads, before the hosts."""
DISPATCHED_V4: Final = _head(
    "size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp", "body_length"
)
"""The fields that dispatch reads, where both hosts are IPv4."""
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")

# The records of one batch have these fields of the head in common; they are packed once and copied into each.
_BATCH_COMMON: Final = ("sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times",
                        "prepared_transaction_offset")  # fmt: skip


def _batch_structs(born_host_bytes: int, store_host_bytes: int) -> tuple[Struct, Struct]:
    formats = HEAD_FIELDS | {"born_host": f"{born_host_bytes}s", "store_host": f"{store_host_bytes}s"}
    common = Struct(">" + "".join(formats[name] for name in _BATCH_COMMON))
    before = "".join(code for name, code in formats.items() if name not in (*_BATCH_COMMON, "body_length"))
    return common, Struct(f">{before}{common.size}s{formats['body_length']}")


BATCH_HEADS: Final = {(born, store): _batch_structs(born, store) for born in _HOST_BYTES for store in _HOST_BYTES}
"""By the lengths of born and store host: the fields that the records of a batch share, and a head with those as
bytes."""
BATCH_PLACES: Final = {common.size: Struct(f">qq{common.size}s") for common, _ in BATCH_HEADS.values()}
"""By the size of the fields that the records of a batch share: queue offset, physical offset, and those fields."""

# A message inside the body of a batch request: a head, the body, the properties preceded by their length.
BATCH_ELEMENT_HEAD: Final = Struct(">iiiii")
"""Size, magic and checksum (ignored by brokers), flag, body length."""
BATCH_ELEMENT_SHAPE: Final = Struct(">12xii")
"""Flag and body length."""
BATCH_ELEMENT_BODY_AT: Final = BATCH_ELEMENT_HEAD.size
BATCH_ELEMENT_FIXED_BYTES: Final = BATCH_ELEMENT_HEAD.size + PROPERTIES_LENGTH.size
