"""Batches: several messages of one topic in one request (docs/protocol/messages.md §7; upstream ``MessageBatch``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from triomq._arguments.numbers import check_count
from triomq._message.message import MAX_BODY_BYTES, Message
from triomq.errors import CallError, InvalidCall, MessageIllegal
from triomq_protocol.codes import ResponseCode
from triomq_protocol.java_text import utf8
from triomq_protocol.names import MAX_PROPERTIES_BYTES, RETRY_PREFIX, START_DELIVER_TIME, UNIQ_KEY
from triomq_protocol.properties import encode_properties, has_timer, starts_later
from triomq_protocol.record.batch import encode_batch_element

ELEMENT_BYTES = 22
"""Bytes of one message of a batch in addition to its body and properties."""

MAX_BATCH_MESSAGES = 9_000
"""The answer names each message, in 57 bytes if the broker has an IPv6 address, in a header of at most 512 KiB."""

_UNIQUE_KEY_BYTES = len(UNIQ_KEY) + 56 + 3


def messages_of(given: Iterable[Message]) -> Sequence[Message]:
    """The messages of a batch, as a list if they come from a generator: they are read more than once.

    Raises:
        InvalidCall: it is a single message, or not iterable.
    """
    if isinstance(given, list | tuple):
        return given
    _check_several(given)
    return list(given)


def _check_several(given: Iterable[Message]) -> None:
    kind: object = given
    if isinstance(kind, Message):
        raise InvalidCall("messages is one triomq.Message: give a list of several, or send(message)")
    if not isinstance(kind, Iterable) or isinstance(kind, str | bytes):
        raise InvalidCall(f"messages is {type(kind).__name__}, not a list of triomq.Message")


def check_batch(messages: Sequence[Message], max_body_bytes: int, now_ms: int) -> None:
    """Raise unless brokers accept these messages as one batch (docs/protocol/client.md §6.11).

    Raises:
        InvalidCall: no messages, other objects among them, several topics or wait flags, a delay, a retry topic.
        MessageIllegal: a message breaks a rule of its own, or there are too many.
    """
    if not messages:
        raise InvalidCall("the batch is empty")
    if len(messages) > MAX_BATCH_MESSAGES:
        raise MessageIllegal(
            f"the batch has {len(messages)} messages, more than {MAX_BATCH_MESSAGES}: the broker's answer names each of "
            "them; triomq.split_batch cuts it",
            code=ResponseCode.MESSAGE_ILLEGAL,
        )
    first = messages[0]
    for number, message in enumerate(messages):
        _check_member(number, message, first, max_body_bytes, now_ms)


def _check_member(number: int, message: object, first: Message, max_body_bytes: int, now_ms: int) -> None:
    if not isinstance(message, Message):
        raise InvalidCall(f"message {number} of the batch is {type(message).__name__}, not triomq.Message")
    try:
        message.check(max_body_bytes)
    except CallError as error:
        error.add_note(f"It is message {number} of the batch.")
        raise
    if message.topic != first.topic:
        raise InvalidCall(f"message {number} of the batch goes to topic {message.topic}, not to {first.topic}")
    if message.wait_store_ok != first.wait_store_ok:
        raise InvalidCall(f"message {number} of the batch differs in wait_store_ok")
    if message.delay_level > 0:
        raise InvalidCall(f"message {number} of the batch has a delay level; batches cannot be delayed")
    properties = message.properties or {}
    if has_timer(properties):
        raise InvalidCall(
            f"message {number} of the batch has a time of delivery, which brokers of RocketMQ 5 ignore in batches: "
            "send it alone"
        )
    if starts_later(properties, now_ms):
        raise InvalidCall(
            f"message {number} of the batch has a time of delivery ({START_DELIVER_TIME}), which brokers ignore in batches: "
            "send it alone"
        )
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidCall("batches cannot go to a retry topic")


def encode_batch(messages: Sequence[Message], unique_keys: Sequence[str], max_body_bytes: int) -> bytes:
    """The body of a batch request; each message carries its own UNIQ_KEY.

    Raises:
        MessageIllegal: the batch or the properties of a message are too large.
    """
    elements = []
    for number, (message, unique_key) in enumerate(zip(messages, unique_keys, strict=True)):
        pairs = dict(message.property_pairs())
        pairs[UNIQ_KEY] = unique_key
        properties = encode_properties(pairs).encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise MessageIllegal(
                f"the properties of message {number} have {len(properties)} bytes, more than {MAX_PROPERTIES_BYTES}",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        elements.append(encode_batch_element(message.body, properties, message.flag))
    body = b"".join(elements)
    if len(body) > max_body_bytes:
        raise MessageIllegal(
            f"the batch has {len(body)} bytes, more than {max_body_bytes}; triomq.split_batch cuts it",
            code=ResponseCode.MESSAGE_ILLEGAL,
        )
    return body


def element_bytes(message: Message) -> int:
    """An upper bound of a message's size in a batch, in bytes."""
    properties = sum(len(utf8(name)) + len(utf8(value)) + 2 for name, value in message.property_pairs())
    return ELEMENT_BYTES + len(message.body) + properties + _UNIQUE_KEY_BYTES


def split_batch(
    messages: Iterable[Message], *, max_bytes: int = MAX_BODY_BYTES, max_count: int = 1024
) -> Iterator[list[Message]]:
    """Split messages into batches that brokers accept, in order.

    A batch also ends where the topic or ``wait_store_ok`` changes.

    Args:
        messages: any number, also a generator.
        max_bytes: upper bound of a batch's body; at most the broker's ``maxMessageSize``.
        max_count: upper bound of messages per batch; more than 9,000 are never put into one.

    Raises:
        InvalidCall: an argument, or a message, is of another type, or a bound is less than 1.
        MessageIllegal: one message alone is too large.
    """
    _check_several(messages)
    check_count("max_bytes", max_bytes, 1)
    check_count("max_count", max_count, 1)
    max_count = min(max_count, MAX_BATCH_MESSAGES)
    batch: list[Message] = []
    size = 0
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidCall(f"a message to be split is {type(message).__name__}, not triomq.Message")
        own = element_bytes(message)
        if own > max_bytes:
            raise MessageIllegal(
                f"a message needs {own} bytes, more than a batch may have ({max_bytes})",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        fits = (
            bool(batch)
            and len(batch) < max_count
            and size + own <= max_bytes
            and message.topic == batch[0].topic
            and message.wait_store_ok == batch[0].wait_store_ok
        )
        if batch and not fits:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += own
    if batch:
        yield batch
