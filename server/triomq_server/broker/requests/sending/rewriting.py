"""Rewrites messages that are not plain: delayed messages, halves of transactions, dead letters, batches.

Pure: a header and a property string in, the record as stored on disk out. Plain messages take the shorter way in
`send`. It answers to `CommitLog` (delay), `TransactionalMessageBridge` and `MessageBatch`; rules:
docs/protocol/messages.md §3.1, §7, §11, §12.
"""

from __future__ import annotations

from triomq_protocol.codes import ResponseCode
from triomq_protocol.java_text import parse_integer
from triomq_protocol.names import (
    CLUSTER,
    DELAY,
    HALF_TOPIC,
    KEYS,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from triomq_protocol.properties import decode_properties, encode_properties_as_java, encode_properties_bytes
from triomq_protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from triomq_protocol.requests.send import SendMessageRequest, SendMessageRequestV2
from triomq_server.broker.refusals import RefusedError, check_transactions
from triomq_server.config import BrokerConfig
from triomq_server.store import NewBatch, NewRecord


def special_record(record: NewRecord, properties: dict[str, str], config: BrokerConfig, *, dead: bool) -> None:
    """Complete the record of a message that is delayed, half of a transaction, or a dead letter.

    Args:
        record: with the requested topic and queue, which are replaced if the message goes elsewhere first.
        properties: as sent; changed in place.
        config: names and delay levels.
        dead: the record goes to a dead letter queue, at once whatever its delay.

    Raises:
        RefusedError: the broker takes no transactional messages, or the delay level is not a number.
    """
    properties[CLUSTER] = config.broker_cluster_name
    if dead:
        properties[DELAY] = "0"
    if not dead and _is_half(record, properties, config):
        check_transactions(config)
        if not properties.get(PGROUP) and not config.store.compat_49:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a half message of a transaction without the property {PGROUP}: no producer could end it",
            )
        # A level that is not a number is refused now: when the transaction ends, the message could not be stored any more.
        level = delay_level(properties, config)
        _to_internal_topic(record, properties, HALF_TOPIC, 0)
        record.sys_flag &= ~TRANSACTION_MASK
        if not config.store.compat_49 or level <= 0:
            _describe(record, properties)
            record.properties = encode_properties_as_java(properties)
            return
    elif WAIT in properties and not _goes_to_schedule(record, properties, config):
        del properties[WAIT]
    store_properties(record, properties, config)


def store_properties(record: NewRecord, properties: dict[str, str], config: BrokerConfig) -> None:
    """Give a record its properties; a delayed one is sent to the schedule topic first (`CommitLog.asyncPutMessage`).

    Raises:
        RefusedError: the delay level is not a number.
    """
    _describe(record, properties)
    if _goes_to_schedule(record, properties, config):
        level = delay_level(properties, config)
        properties[DELAY] = str(level)
        _to_internal_topic(record, properties, SCHEDULE_TOPIC, level - 1)
        record.delay_level = level
    record.properties = encode_properties_bytes(properties)


def _describe(record: NewRecord, properties: dict[str, str]) -> None:
    """Repeat what the store needs to know of the properties."""
    record.tags = properties.get(TAGS)
    record.keys = properties.get(KEYS)
    record.uniq_key = properties.get(UNIQ_KEY)


def _is_half(record: NewRecord, properties: dict[str, str], config: BrokerConfig) -> bool:
    """Whether a message is half of a transaction. One that a consumer sends back itself is not: it has ended."""
    if properties.get(TRAN_MSG, "").lower() != "true":
        return False
    return record.reconsume_times <= 0 or delay_level(properties, config) <= 0


def _goes_to_schedule(record: NewRecord, properties: dict[str, str], config: BrokerConfig) -> bool:
    """Whether a message is delayed: it has a level, and is not a half whose transaction is still open."""
    return delay_level(properties, config) > 0 and record.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


def delay_level(properties: dict[str, str], config: BrokerConfig) -> int:
    """The delay level, 0 for none, at most the highest there is. Raises RefusedError for text that is not an int32."""
    return min(_requested_level(properties), len(config.store.delay_levels_ms))


def _requested_level(properties: dict[str, str]) -> int:
    text = properties.get(DELAY)
    if text is None:
        return 0
    try:
        return parse_integer(text, 32)
    except ValueError:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, f"property {DELAY} is not a number: {text[:64]!r}") from None


def new_batch(header: SendMessageRequest | SendMessageRequestV2, body: bytes, cluster: str) -> NewBatch | None:
    """A batch as the store takes it, without queue and hosts; None if it may not be a batch at all.

    A batch is neither delayed nor transactional; CLUSTER is appended to every element's properties, and WAIT stays.

    Raises:
        RefusedError: the delay level is not a number.
    """
    properties = None if header.sys_flag & TRANSACTION_MASK else batch_properties(header.properties, cluster)
    if properties is None:
        return None
    return NewBatch(
        header.topic,
        0,
        body,
        properties,
        header.sys_flag,
        header.born_timestamp,
        reconsume_times=header.reconsume_times or 0,
    )


def batch_properties(text: str | None, cluster: str) -> bytes | None:
    """The text that a batch's own property string adds to each element's properties; None if it asks for a delay. Raises
    as `new_batch`."""
    properties = decode_properties(text)
    if _requested_level(properties) > 0:
        return None
    properties[CLUSTER] = cluster
    return encode_properties_bytes(properties)


def _to_internal_topic(record: NewRecord, properties: dict[str, str], topic: str, queue_id: int) -> None:
    """Send the record to one of the broker's own topics first; its properties keep the real topic and queue."""
    properties[REAL_TOPIC] = record.topic
    properties[REAL_QID] = str(record.queue_id)
    record.topic = topic
    record.queue_id = queue_id
