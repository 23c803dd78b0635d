"""Records for tests, made by the encoder that the broker runs."""

from __future__ import annotations

import attrs

from triomq_protocol.names import MAX_TOPIC_BYTES
from triomq_protocol.record.encode import head_for, write_record
from triomq_protocol.record.layout import BODY_CRC_AT, INT32, PROPERTIES_LENGTH


@attrs.define
class Stored:
    """The fields of a record that do not depend on its place."""

    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int


def encode_record(
    topic: bytes,
    queue_id: int,
    body: bytes,
    properties: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(8),
    store_host: bytes = bytes(8),
    queue_offset: int = 0,
    physical_offset: int = 0,
    store_timestamp: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
) -> bytes:
    """One record; the IPv6 bits of `sys_flag` are set from the hosts' lengths. A wrong `body_crc` may be asked for."""
    assert len(topic) <= MAX_TOPIC_BYTES
    head, sys_flag = head_for(born_host, store_host, sys_flag)
    fields = Stored(
        queue_id, body, properties, flag, born_timestamp, born_host, store_host, reconsume_times,
        prepared_transaction_offset,
    )  # fmt: skip
    encoded_topic = bytes([len(topic)]) + topic
    buffer = bytearray(head.size + len(body) + len(encoded_topic) + PROPERTIES_LENGTH.size + len(properties))
    write_record(
        buffer, 0, len(buffer), head, sys_flag, encoded_topic, queue_offset, physical_offset, store_timestamp, fields
    )
    if body_crc is not None:
        INT32.pack_into(buffer, BODY_CRC_AT, body_crc)
    return bytes(buffer)
