"""Messages to send, and the queues they go to.

Rules of names, sizes and properties are those of docs/protocol/messages.md §3 and §9 (upstream ``Message``,
``Validators``, ``TopicValidator``).  What users receive is in ``received.py``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from triomq._arguments.kinds import SURROGATE
from triomq._arguments.numbers import check_count
from triomq._error_text import shown
from triomq.errors import InvalidCall, MessageIllegal
from triomq_protocol.codes import ResponseCode
from triomq_protocol.names import (
    FORBIDDEN_TOPICS,
    MAX_GROUP_CHARACTERS,
    MAX_TOPIC_BYTES,
    RESERVED_PROPERTIES,
)
from triomq_protocol.requests import MessageQueue as MessageQueue

OFFSET_MAX: Final = 2**63 - 1
"""The largest offset in a request."""

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Largest body a stock broker stores (``maxMessageSize``)."""

DELAY_LEVEL_MAX = 18
"""The last level of a stock broker's ``messageDelayLevel``; brokers use their last one for higher levels."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    Nothing is checked here; every send calls :meth:`check`, which raises an error that names the fault.

    Args:
        topic: the topic to send it to.
        body: the payload, at least one byte.
        tags: one tag for consumers to filter by, without ``||`` and ``&&``, and without blanks at its ends.
        keys: a key, or a list of several, by which brokers index the message; each is one line of text without blanks, which
            separate them.
        properties: user properties; names and values are non-blank text.
        flag: an int32 for the sender's own use; brokers and clients keep it as it is.
        delay_level: 0 for none, else 1 (1 s) to 18 (2 h) of the broker's ``messageDelayLevel`` table; not seconds.
        wait_store_ok: whether a broker with synchronous flush or replication waits for it before it answers this send.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0
    delay_level: int = 0
    wait_store_ok: bool = True

    def check(self, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """Raise :class:`~triomq.errors.MessageIllegal` or :class:`~triomq.errors.InvalidCall` if brokers would refuse
        this message, or consumers would not get it as it is."""
        check_topic(self.topic)
        self.check_parts(max_body_bytes)

    def check_parts(self, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """:meth:`check` without the topic's name, for topics whose name was checked before."""
        check_body(self.body, max_body_bytes)
        if self.properties:
            check_properties(self.properties)
        tags, keys = self.tags, self.keys
        if tags:
            check_tag(tags)
        if keys:
            check_keys(keys)
        level, flag = self.delay_level, self.flag
        if level or type(level) is not int:
            check_delay_level(level)
        if flag or type(flag) is not int:
            check_count("flag", flag, -(2**31), 2**31 - 1)

    def property_pairs(self) -> list[tuple[str, str]]:
        """Properties as sent, without UNIQ_KEY: the user's own first, then those with a meaning to RocketMQ."""
        pairs = list(self.properties.items()) if self.properties else []
        if self.keys:
            pairs.append(("KEYS", self.keys if isinstance(self.keys, str) else " ".join(self.keys)))
        if not self.wait_store_ok:
            # Absence means true, so only the exception costs bytes.
            pairs.append(("WAIT", "false"))
        if self.delay_level > 0:
            pairs.append(("DELAY", str(self.delay_level)))
        if self.tags:
            pairs.append(("TAGS", self.tags))
        return pairs


def check_body(body: bytes, max_body_bytes: int) -> None:
    """Raise unless the body is bytes of a length brokers accept."""
    if not isinstance(body, bytes):
        cure = "body.encode()" if isinstance(body, str) else "bytes"
        raise InvalidCall(f"body is {type(body).__name__}, not bytes: give {cure}")
    if not body:
        raise MessageIllegal(
            "the body is empty, and brokers refuse such a message: send at least one byte",
            code=ResponseCode.MESSAGE_ILLEGAL,
        )
    if len(body) > max_body_bytes:
        raise MessageIllegal(
            f"the body has {len(body)} bytes, more than {max_body_bytes}", code=ResponseCode.MESSAGE_ILLEGAL
        )


def check_topic(topic: str) -> None:
    """Raise unless messages may be sent to a topic of this name."""
    check_name(topic, "topic", MAX_TOPIC_BYTES)
    if topic in FORBIDDEN_TOPICS:
        raise InvalidCall(f"sending to the system topic {topic} is forbidden")


def check_name(name: str, kind: str, max_length: int) -> None:
    """Raise unless the name fits RocketMQ's charset and length.

    Args:
        name: the text.
        kind: ``"topic"`` or ``"group"``, for the error.
        max_length: the most characters.
    """
    if not isinstance(name, str):
        raise InvalidCall(f"the {kind} is {type(name).__name__}, not text")
    if not name.strip():
        raise InvalidCall(f"the {kind} is blank")
    if len(name) > max_length:
        raise InvalidCall(f"the {kind} has {len(name)} characters, more than {max_length}")
    if not _NAME.match(name):
        raise InvalidCall(f"the {kind} {shown(name)} has characters other than % | a-z A-Z 0-9 _ -")


def check_group(group: str) -> None:
    """Raise unless the producer or consumer group's name can be used."""
    check_name(group, "group", MAX_GROUP_CHARACTERS)
    if group in ("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"):
        raise InvalidCall(f"the group {group} is reserved, choose another")


def check_queue(queue: object, cure: str = "") -> None:
    """Raise unless it is a queue.

    Args:
        queue: the argument.
        cure: what to do; added to the error's text.
    """
    if not isinstance(queue, MessageQueue):
        raise InvalidCall(f"the queue is {type(queue).__name__}, not MessageQueue{cure}")


def check_whole_offset(offset: object) -> None:
    """Raise unless it is a whole number."""
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise InvalidCall(f"the offset is {shown(offset)}, not a whole number")


def check_offset(offset: int) -> None:
    """Raise unless it is a valid offset."""
    check_whole_offset(offset)
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidCall(
            f"the offset is {shown(offset)}, not at least 0" + (f" and at most {OFFSET_MAX}" if offset > 0 else "")
        )


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise unless user properties survive the property string's separators."""
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidCall(
            f"properties is {type(properties).__name__}, not a table of names and values: give a dict, as "
            '{"name": "value"}'
        )
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise InvalidCall(f"the property name {name} is reserved")
        if not _is_clean(name) or not _is_clean(value):
            _check_encodable(f"the property {name!r:.100}", name, value)
            raise InvalidCall(
                f"the property {shown(name)} is {shown(value)}, and needs text that is not blank and free of U+0001 and U+0002"
            )


def check_tag(tag: object) -> None:
    """Raise unless a subscription can select messages with this tag."""
    if not isinstance(tag, str) or not _is_clean(tag):
        _check_encodable("tags", tag)
        raise InvalidCall(f"tags is {shown(tag)}, and needs text that is not blank and free of U+0001 and U+0002")
    if "||" in tag or "&&" in tag:
        raise InvalidCall(
            f"tags is {shown(tag)}, but a message has one tag, and no subscription could select this one; "
            "several texts can be properties, for SQL92 expressions"
        )
    if tag[0] <= " " or tag[-1] <= " ":
        raise InvalidCall(
            f"tags is {shown(tag)}, but subscriptions are read without blanks at the ends of a tag; write {shown(tag.strip())}"
        )


def check_keys(keys: object) -> None:
    """Raise unless brokers index exactly these keys."""
    if isinstance(keys, str):
        if " " in keys and keys.strip():
            raise InvalidCall(
                f"keys is {shown(keys)}, but a blank separates keys; give several as keys={shown(keys.split())}"
            )
        if not _is_clean(keys):
            _check_encodable("keys", keys)
            raise InvalidCall(f"keys is {shown(keys)}, and needs text that is not blank and free of U+0001 and U+0002")
        _check_one_line(keys)
        return
    # An iterable that can be read only once, like a generator, would be empty when the message is encoded.
    if not isinstance(keys, list | tuple | Collection) or not all(map(_is_clean, keys)):
        _check_encodable("keys", *(keys if isinstance(keys, Collection) else ()))
        raise InvalidCall(
            f"keys is {shown(keys)}, neither one key nor a list of keys; each needs text that is not blank and free of U+0001 "
            "and U+0002"
        )
    for key in keys:
        if " " in key:
            raise InvalidCall(f"the key {shown(key)} in keys has a blank, which would make several keys of it")
        _check_one_line(key)


def _check_one_line(key: str) -> None:
    if not key.isprintable() and (found := _CONTROL.search(key)):
        raise InvalidCall(
            f"keys has {shown(key)} with the control character {shown(found[0])}, and a key is one line of text; give several keys "
            f"as keys={shown(key.split())}, and other text as a property"
        )


def _check_encodable(name: str, *texts: object) -> None:
    """Raise if a text cannot be encoded as UTF-8; brokers would get a `?` instead."""
    for text in texts:
        if isinstance(text, str) and (found := SURROGATE.search(text)):
            raise InvalidCall(
                f"{name} has {shown(text)} with the lone surrogate {shown(found[0])}, half a character, which UTF-8 cannot "
                "hold; give text that text.encode() takes, and bytes in the body"
            )


def check_delay_level(level: object) -> None:
    """Raise unless it is 0 or a level of a stock broker's table."""
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= DELAY_LEVEL_MAX:
        given = f"{level!r:.100}, which is text," if isinstance(level, str) else f"{level!r:.100},"
        raise InvalidCall(
            f"delay_level is {given} neither 0 (no delay) nor a level from 1 (1 s) to {DELAY_LEVEL_MAX} (2 h); levels "
            "are not seconds, see the broker's messageDelayLevel"
        )


def _is_clean(text: object) -> bool:
    return (
        isinstance(text, str)
        and bool(text.strip())
        and "\x01" not in text
        and "\x02" not in text
        and (text.isascii() or not SURROGATE.search(text))
    )
