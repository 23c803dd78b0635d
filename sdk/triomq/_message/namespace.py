"""Namespaces: topics and groups of one instance, distinguished on the brokers by a prefix (docs/protocol/consumer.md §16).

Users and the client's own code see topics without the prefix; requests to name servers and brokers have it.  Groups get
it once, when a producer or consumer is made.  Upstream: ``NamespaceUtil``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from triomq._error_text import shown
from triomq.errors import InvalidCall
from triomq_protocol.names import (
    DLQ_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from triomq_protocol.requests import MessageQueue

_NAME: Final = re.compile(r"[|a-zA-Z0-9_-]+\Z")


class Namespace:
    """One namespace, or none.

    Args:
        name: the prefix without its ``%``; empty: names stay as they are.

    Raises:
        InvalidCall: it contains characters that names cannot have.

    Attributes:
        plain: further topics that stay as they are.
    """

    __slots__ = ("_prefix", "name", "plain")

    def __init__(self, name: str = "") -> None:
        if name and not _NAME.match(name):
            raise InvalidCall(
                f"the namespace {shown(name)} has other characters than letters, digits, '|', '_' and '-'"
            )
        self.name: str = name
        self._prefix = f"{name}%"
        self.plain: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, name: str) -> str:
        """A topic or group as brokers know it; the prefix of a retry topic or of dead letters stays in front."""
        if not self.name or not name or self._stays(name):
            return name
        kind, rest = _split(name)
        return name if rest.startswith(self._prefix) else f"{kind}{self._prefix}{rest}"

    def unwrap(self, name: str) -> str:
        """A topic or group as users know it; those of other namespaces stay as they are."""
        if not self.name:
            return name
        kind, rest = _split(name)
        return f"{kind}{rest[len(self._prefix) :]}" if rest.startswith(self._prefix) else name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """:meth:`wrap` of a queue's topic."""
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id) if self.name else queue

    def wrap_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """:meth:`wrap_queue` of each."""
        return [self.wrap_queue(queue) for queue in queues]

    def unwrap_topic(self, topic: str) -> str:
        """:meth:`unwrap` of a topic as the client keeps it: a retry topic has the name of its group, prefix included."""
        return topic if topic.startswith(RETRY_PREFIX) else self.unwrap(topic)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """:meth:`unwrap_topic` of a queue's topic."""
        return MessageQueue(self.unwrap_topic(queue.topic), queue.broker_name, queue.queue_id) if self.name else queue

    def _stays(self, name: str) -> bool:
        return (
            name in SYSTEM_TOPICS
            or name.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX))
            or name in self.plain
            # Not upstream: brokers know their reply topics by their cluster alone.
            or name.endswith(REPLY_TOPIC_SUFFIX)
        )


def _split(name: str) -> tuple[str, str]:
    """The prefix of a retry topic or of dead letters, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
