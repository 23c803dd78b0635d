"""Records of message traces, which producers and consumers write about their messages (docs/protocol/consumer.md §15).

A record is text: fields joined by one control character, ended by another.  Several records make the body of a message
to the trace topic.  Upstream: ``TraceDataEncoder``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

_SEPARATOR: Final = "\x01"
_END: Final = "\x02"
_NULL: Final = "null"


class TraceMessageType(IntEnum):
    """The type of a message, as stated by a record."""

    NORMAL = 0
    HALF = 1
    END = 2
    """The end of a transaction."""
    DELAYED = 3


class ConsumeOutcome(IntEnum):
    """What became of messages that a handler was given (``contextCode``)."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    FAILED = 4


class TraceKind(StrEnum):
    """The kind of a record."""

    SENT = "Pub"
    CONSUMING = "SubBefore"
    CONSUMED = "SubAfter"
    TRANSACTION_END = "EndTransaction"


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a trace; fields that its kind does not have are None.

    Args:
        kind: the kind of record.
        message_id: id of the message.
        time_ms: time of the event, in ms since 1970.
        group: group of the producer or consumer.
        topic: topic of the message.
        region: region of the broker.
        tags: the message's tag.
        keys: its keys, joined by blanks.
        store_host: the broker's address.
        body_bytes: size of the body on the wire.
        cost_ms: time until the broker's answer, or the handler's time per message.
        message_type: type of the message (``msgType``).
        offset_message_id: the broker's id.
        success: whether it is stored as safely as configured, or consumed.
        request_id: joins the two records of one consumption.
        retry_times: number of earlier failures.
        outcome: the handler's result (``contextCode``).
        transaction_id: id of the transaction.
        state: state of the transaction, by Java's name.
        from_check: whether the broker had asked for the state.
    """

    kind: TraceKind
    message_id: str
    time_ms: int | None = None
    group: str | None = None
    topic: str | None = None
    region: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    body_bytes: int | None = None
    cost_ms: int | None = None
    message_type: int | None = None
    offset_message_id: str | None = None
    success: bool | None = None
    request_id: str | None = None
    retry_times: int | None = None
    outcome: int | None = None
    transaction_id: str | None = None
    state: str | None = None
    from_check: bool | None = None


_FIELDS: Final[dict[TraceKind, tuple[str, ...]]] = {
    TraceKind.SENT: (
        "time_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host", "body_bytes", "cost_ms",
        "message_type", "offset_message_id", "success",
    ),
    TraceKind.CONSUMING: ("time_ms", "region", "group", "request_id", "message_id", "retry_times", "keys"),
    TraceKind.CONSUMED: ("request_id", "message_id", "cost_ms", "success", "keys", "outcome", "time_ms", "group"),
    TraceKind.TRANSACTION_END: (
        "time_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host", "message_type",
        "transaction_id", "state", "from_check",
    ),
}  # fmt: skip
"""The fields of each kind, in their order; older clients leave out the last ones, newer ones add others."""

_NUMBERS: Final = frozenset({"time_ms", "body_bytes", "cost_ms", "message_type", "retry_times", "outcome"})
_LARGEST: Final = 253_402_128_000_000
"""The end of the year 9999 in ms, less two days for zones."""

_SENT_WITHOUT_ID: Final = 12
"""How many fields early clients wrote of a send: not the broker's id."""

_FLAGS: Final = frozenset({"success", "from_check"})


def decode_records(text: str) -> list[TraceRecord]:
    """The records in the body of a message to a trace topic; records of unknown kinds are left out."""
    records = []
    for part in text.split(_END):
        kind, *values = part.split(_SEPARATOR)
        if kind in TraceKind.__members__.values():
            record = _decode(TraceKind(kind), values)
            if record is not None:
                records.append(record)
    return records


def _decode(kind: TraceKind, values: Sequence[str]) -> TraceRecord | None:
    if kind is TraceKind.SENT and len(values) == _SENT_WITHOUT_ID:
        values = [*values[:-1], _NULL, values[-1]]
    fields: dict[str, object] = {}
    # Not strict: see _FIELDS.
    for name, value in zip(_FIELDS[kind], values, strict=False):
        if name in _NUMBERS:
            fields[name] = _number(value)
        elif name in _FLAGS:
            fields[name] = value == "true"
        else:
            fields[name] = None if value == _NULL else value
    if not isinstance(fields.get("message_id"), str):
        return None
    return msgspec.convert({"kind": kind, **fields}, TraceRecord)


def _number(value: str) -> int | None:
    # Anybody may write to the topic: Python refuses to read 5,000 digits, and to show times after the year 9999.
    if not value.isdecimal() or len(value) > len(str(_LARGEST)):
        return None
    number = int(value)
    return number if number <= _LARGEST else None


def encode_sent(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    kind: TraceMessageType,
    offset_message_id: str,
    success: bool,
) -> str:
    """A message was sent (``Pub``).

    Args:
        time_ms: start of the send, in ms since 1970.
        region: region of the broker.
        group: the producer group.
        topic: topic of the message.
        message_id: the sender's id.
        tags: its tag.
        keys: its keys, joined by blanks.
        store_host: the broker's address.
        body_bytes: size of its body on the wire.
        cost_ms: time until the broker's answer.
        kind: type of the message.
        offset_message_id: the broker's id.
        success: whether it is stored as safely as configured.
    """
    fields = (
        "Pub", str(time_ms), region, group, topic, message_id, _text(tags), _text(keys), store_host, str(body_bytes),
        str(cost_ms), str(kind.value), offset_message_id, _flag(success),
    )  # fmt: skip
    return _SEPARATOR.join(fields) + _END


def encode_consuming(
    *,
    time_ms: int,
    region: str | None,
    group: str,
    request_id: str,
    message_id: str,
    retry_times: int,
    keys: str | None,
) -> str:
    """A message is given to a handler (``SubBefore``).

    Args:
        time_ms: now, in ms since 1970.
        region: region of the broker, if the message has it.
        group: the consumer group.
        request_id: joins this record to :func:`encode_consumed`'s.
        message_id: id of the message.
        retry_times: number of earlier failures.
        keys: its keys, joined by blanks.
    """
    fields = (
        "SubBefore", str(time_ms), _text(region), group, request_id, message_id, str(retry_times), _text(keys),
    )  # fmt: skip
    return _SEPARATOR.join(fields) + _END


def encode_consumed(
    *,
    request_id: str,
    message_id: str,
    cost_ms: int,
    keys: str | None,
    outcome: ConsumeOutcome,
    time_ms: int,
    group: str,
) -> str:
    """A handler has finished with a message (``SubAfter``).

    Args:
        request_id: as given to :func:`encode_consuming`.
        message_id: id of the message.
        cost_ms: the handler's time per message.
        keys: its keys, joined by blanks.
        outcome: the handler's result.
        time_ms: now, in ms since 1970.
        group: the consumer group.
    """
    success = _flag(outcome is ConsumeOutcome.SUCCESS)
    fields = (
        "SubAfter", request_id, message_id, str(cost_ms), success, _text(keys), str(outcome.value), str(time_ms), group,
    )  # fmt: skip
    return _SEPARATOR.join(fields) + _END


def encode_transaction_end(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> str:
    """The end of a transaction was sent to a broker (``EndTransaction``).

    Args:
        time_ms: now, in ms since 1970.
        region: of the broker.
        group: the producer group.
        topic: of the message.
        message_id: the message's.
        tags: its tag.
        keys: its keys, joined by blanks.
        store_host: the broker's address.
        transaction_id: the transaction's.
        state: by Java's name, as ``COMMIT_MESSAGE``.
        from_check: whether the broker had asked.
    """
    fields = (
        "EndTransaction", str(time_ms), region, group, topic, message_id, _text(tags), _text(keys), store_host,
        str(TraceMessageType.END.value), transaction_id, state, _flag(from_check),
    )  # fmt: skip
    return _SEPARATOR.join(fields) + _END


def _text(value: str | None) -> str:
    return _NULL if value is None else value


def _flag(value: bool) -> str:
    return "true" if value else "false"
