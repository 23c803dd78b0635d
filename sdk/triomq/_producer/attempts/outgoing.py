"""One message being sent: its content on the wire, and the results of its attempts (docs/protocol/client.md §6.8).

The bytes of its requests are made in ``request.py``, the attempts in ``attempt.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq._message.message import Message, MessageQueue
from triomq._message.send_result import SendResult
from triomq.errors import Attempt, MessageIllegal
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import KEYS, MAX_PROPERTIES_BYTES, TAGS, UNIQ_KEY
from triomq_protocol.properties import encode_properties

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("triomq.producer")


class Outgoing:
    """A message being sent: what stays the same over all attempts, and how the earlier ones ended.

    Attributes:
        topic: its topic.
        body: the body as sent, perhaps compressed, perhaps a batch.
        properties: the property string, UNIQ_KEY included.
        unique_key: the id users see.
        deadline: on trio's clock, for all attempts together.
        wait_until: on trio's clock; how long to wait for a route and a master. If that is later than the deadline,
            time spent waiting moves the deadline.
        waited_in_vain: no route or no master was found until then; there is no further attempt.
        code: the kind of its requests: a message, a batch, or a reply.
        pinned: the queue it must go to; such a message gets one attempt, so that order is kept.
        retry: for a copy for a retry topic: how often it failed, and how often it may fail before it is a dead letter.
        attempts: the failed attempts.
        result: of the latest attempt that stored it, if the policy asked for another one nevertheless.
        last_broker: the broker of the latest attempt.
        is_written: whether a request of an attempt was written, so that the message may be stored.
        unready_queue: the queue that was chosen for the first attempt, if the attempt must wait for something.
        refresh_route: whether the next attempt asks for the route again first.
        own_properties: names and values that the client adds, e.g. for a half message; users cannot set them.
        retry_state: tenacity's record of the attempts; None as long as no decision was needed.
    """

    __slots__ = (
        "attempts", "body", "born_ms", "code", "deadline", "flag", "is_written", "last_broker", "own_properties", "pinned",
        "properties", "refresh_route", "result", "retry", "retry_state", "sys_flag", "topic", "unique_key",
        "unready_queue", "wait_until", "waited_in_vain",
    )  # fmt: skip

    def __init__(
        self, topic: str, body: bytes, properties: str, unique_key: str, born_ms: int, deadline: float
    ) -> None:
        self.topic: str = topic
        self.body: bytes = body
        self.properties: str = properties
        self.unique_key: str = unique_key
        self.born_ms: int = born_ms
        self.deadline: float = deadline
        self.wait_until: float = deadline
        self.waited_in_vain: bool = False
        self.sys_flag: int = 0
        self.flag: int = 0
        self.code: RequestCode = RequestCode.SEND_MESSAGE_V2
        self.pinned: MessageQueue | None = None
        self.attempts: list[Attempt] = []
        self.is_written: bool = False
        self.last_broker: str | None = None
        self.unready_queue: MessageQueue | None = None
        self.refresh_route: bool = False
        self.result: SendResult | None = None
        self.retry: tuple[int, int] | None = None
        self.own_properties: Mapping[str, str] | None = None
        self.retry_state: RetryCallState | None = None


def properties_text(message: Message, unique_key: str, own: Mapping[str, str] | None = None) -> str:
    """The property string, UNIQ_KEY included.

    Args:
        message: the user's message.
        unique_key: its id.
        own: properties that the client adds.

    Raises:
        MessageIllegal: the string is longer than a stored record can hold.
    """
    tags, keys = message.tags, message.keys
    if message.properties is None and message.wait_store_ok and message.delay_level <= 0 and own is None:
        # The usual case, without building a table.
        text = f"{UNIQ_KEY}\x01{unique_key}"
        if keys:
            text = f"{KEYS}\x01{keys if isinstance(keys, str) else ' '.join(keys)}\x02{text}"
        if tags:
            text = f"{text}\x02{TAGS}\x01{tags}"
    else:
        pairs = dict(message.property_pairs())
        pairs[UNIQ_KEY] = unique_key
        if own is not None:
            pairs |= own
        text = encode_properties(pairs)
    if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"the properties have more than {MAX_PROPERTIES_BYTES} bytes", code=ResponseCode.MESSAGE_ILLEGAL
        )
    return text


def use_properties(out: Outgoing, message: Message) -> None:
    """Send a message with the properties that hooks have added to it; without them, if they are too many."""
    try:
        out.properties = properties_text(message, out.unique_key, out.own_properties)
    except MessageIllegal as error:
        log.warning("message %s is sent without the properties that hooks added: %s", out.unique_key, error.reason)
