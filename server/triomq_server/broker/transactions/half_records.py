"""Makes records and requests from a half message: its copies, its end, and the check sent to producers.

Pure: a stored half message in, a record or a request out. It answers to `TransactionalMessageBridge`,
`AbstractTransactionalMessageCheckListener` and `EndTransactionProcessor.endMessageTransaction`; rules:
docs/protocol/store.md §20, docs/protocol/messages.md §14.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq_protocol.codes import LanguageCode, RequestCode
from triomq_protocol.java_text import natural_number
from triomq_protocol.message_id import offset_message_id
from triomq_protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    KEYS,
    MAX_PROPERTIES_BYTES,
    OP_HALF_TOPIC,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    UNIQ_KEY,
    WAIT,
)
from triomq_protocol.properties import encode_properties_as_java
from triomq_protocol.record.encode import encode_topic, head_for, write_record
from triomq_protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.transaction import CheckTransactionStateRequest
from triomq_protocol.wire.command import Command
from triomq_server.store import AppendResult, NewRecord

HALF_QUEUE = 0
"""The only queue of the half topic, and of the op topic."""
OP_TAG = "d"
_SHOWN_CHARACTERS = 64


def for_log(name: str) -> str:
    """The beginning of a name that a client chose: a log line must not be as long as a header may be."""
    return name[:_SHOWN_CHARACTERS]


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue id for which a half message is meant; None if they are missing."""
    topic, queue_id = properties.get(REAL_TOPIC, ""), natural_number(properties.get(REAL_QID, ""), 32)
    return (topic, queue_id) if encode_topic(topic) and queue_id is not None else None


def copy_of(half: RecordView, properties: Mapping[str, str], topic: str = HALF_TOPIC) -> NewRecord:
    """The half message once more, with these properties, in queue 0 of a topic of the broker's own."""
    record = _same(half, properties)
    record.topic = topic
    record.properties = encode_properties_as_java(properties)
    return record


def discarded(half: RecordView, properties: Mapping[str, str]) -> NewRecord:
    """The half message as it is stored after its last check."""
    return copy_of(half, properties, CHECK_MAX_TIME_TOPIC)


def committed(half: RecordView, properties: Mapping[str, str], topic: str, queue_id: int) -> NewRecord:
    """The message that consumers receive: it keeps all properties of its half message, and their order."""
    record = _same(half, properties)
    record.topic, record.queue_id = topic, queue_id
    record.properties = half.properties_bytes
    record.sys_flag = half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    record.prepared_transaction_offset = half.physical_offset
    return record


def op_record(half_offset: int, now_ms: int, broker_host: bytes) -> NewRecord:
    """The op message, which states that the half message at this queue offset has ended."""
    return NewRecord(
        OP_HALF_TOPIC,
        HALF_QUEUE,
        b"%d" % half_offset,
        b"WAIT\x01true\x02TAGS\x01d",
        born_timestamp=now_ms,
        born_host=broker_host,
        store_host=broker_host,
        tags=OP_TAG,
    )


def op_half_offsets(op: RecordView) -> list[int]:
    """The queue offsets of the half messages that an op message is about; none if it is none.

    RocketMQ 5 ends many with one op message, whose body has a comma after each.
    """
    if op.tags != OP_TAG:
        return []
    return [int(text) for text in op.body.split(b",") if text.isdigit() and len(text) < 19]


def check_request(half: RecordView, properties: Mapping[str, str], copy: AppendResult) -> Command | None:
    """The question to a producer how a transaction has ended (code 39); None if the half message is for no topic.

    Its body is the half message as consumers would get it, at the offsets of its newest copy.
    """
    real = real_queue(properties)
    if real is None:
        return None
    record = _same(half, properties)
    topic = encode_topic(real[0])
    record.queue_id = real[1]
    record.properties = encode_properties_as_java({**properties, WAIT: "false"})
    if len(record.properties) > MAX_PROPERTIES_BYTES:
        # Java's broker adds it, but no producer needs it.
        record.properties = encode_properties_as_java(properties)
    head, sys_flag = head_for(record.born_host, record.store_host, record.sys_flag)
    size = head.size + len(record.body) + len(topic) + 2 + len(record.properties)
    body = bytearray(size)
    write_record(
        body, 0, size, head, sys_flag, topic, copy.queue_offset, copy.physical_offset, half.store_timestamp, record
    )
    unique_key = properties.get(UNIQ_KEY)
    header = CheckTransactionStateRequest(
        tran_state_table_offset=copy.queue_offset,
        commit_log_offset=copy.physical_offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=offset_message_id(record.store_host, copy.physical_offset),
    )
    return Command.request(
        RequestCode.CHECK_TRANSACTION_STATE, header, body=bytes(body), oneway=True, language=LanguageCode.JAVA
    )


def _same(half: RecordView, properties: Mapping[str, str]) -> NewRecord:
    """What every record made of a half message has in common with it."""
    return NewRecord(
        half.topic,
        HALF_QUEUE,
        half.body,
        b"",
        half.flag,
        half.sys_flag,
        half.born_timestamp,
        half.born_host_bytes,
        half.store_host_bytes,
        half.reconsume_times,
        tags=properties.get(TAGS),
        keys=properties.get(KEYS),
        uniq_key=properties.get(UNIQ_KEY),
    )
