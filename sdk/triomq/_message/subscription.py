"""A consumer's subscription to a topic: tags, an SQL92 expression, or an old class filter (docs/protocol/consumer.md §13).

Pure: texts in, subscriptions out; the time is an argument.  Upstream: ``FilterAPI``,
``SubscriptionData``, ``ExpressionType``.
"""

from __future__ import annotations

from typing import Final

import attrs

from triomq._message.namespace import Namespace
from triomq.errors import InvalidCall
from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.tags import TagFilter, check_tags
from triomq_protocol.names import RETRY_PREFIX
from triomq_protocol.requests import SubscriptionData

SQL92_VERSION: Final = 232
"""Brokers older than this do not filter by SQL (docs/protocol/client.md §1.1)."""


ALL: Final = "*"
"""The expression that takes every message."""


SQL_FORMS: Final = "an SQL92 expression is given to subscribe as triomq.Sql('...'), and to pull as sql='...'"
"""The cure for an expression that was passed as tags."""


@attrs.frozen
class Sql:
    """An SQL92 expression over properties, instead of tags: ``Sql("a > 5 AND b = 'x'")``; the broker evaluates it.

    Args:
        expression: the text.
    """

    expression: str


@attrs.frozen
class ClassFilter:
    """The name of a Java class on the route's filter servers, as 4.x clients used (obsolete upstream).

    Args:
        class_name: its full name.
    """

    class_name: str


@attrs.frozen
class Subscription:
    """One topic's subscription.

    Args:
        topic: its name.
        expression: the text as sent: tags, SQL or a class name.
        kind: ``TAG`` or ``SQL92``.
        tags: the parsed tags of kind TAG; None for others.
        version_ms: ``subVersion``; brokers keep the subscription with the highest.
        class_filter: whether ``expression`` is the name of a filter class.
    """

    topic: str
    expression: str
    kind: str
    tags: TagFilter | None
    version_ms: int
    class_filter: bool = False

    @property
    def filters_by_tag(self) -> bool:
        """Whether it filters by tag, which every broker supports; other filters need :data:`SQL92_VERSION`."""
        return self.kind == "TAG"

    @property
    def exact_tags(self) -> frozenset[str]:
        """The tags that messages are compared with here, as brokers compare only hashes; empty: all."""
        return frozenset(self.tags.tags) if self.tags is not None and not self.class_filter else frozenset()

    @property
    def takes_all(self) -> bool:
        """Whether brokers return every message."""
        return self.tags is not None and not self.class_filter and not self.tags.tags

    def chooses_as(self, other: Subscription) -> bool:
        """Whether another subscription has the same expression, and so chooses the same messages."""
        mine = self.expression, self.kind, self.class_filter
        return mine == (other.expression, other.kind, other.class_filter)

    def data(self, namespace: Namespace | None = None) -> SubscriptionData:
        """The subscription as in heartbeats and the client check, with the topic's name in a namespace."""
        tags = self.tags.tags if self.tags is not None else ()
        codes = self.tags.codes if self.tags is not None else frozenset()
        return SubscriptionData(
            class_filter_mode=self.class_filter,
            code_set=sorted(codes),
            expression_type=self.kind,
            sub_string=self.expression,
            sub_version=self.version_ms,
            tags_set=list(tags),
            topic=self.topic if namespace is None else namespace.wrap(self.topic),
        )


def make_subscription(topic: str, expression: str | Sql | ClassFilter | None, version_ms: int) -> Subscription:
    """Parse an expression.

    Args:
        topic: the topic.
        expression: ``"a || b"``, an :class:`Sql`, a :class:`ClassFilter`; None, empty and ``"*"`` take all.
        version_ms: the time now, in ms since 1970.

    Raises:
        InvalidCall: it names no tag, is not a list of tags, or is of another type.
    """
    if isinstance(expression, Sql):
        if not expression.expression.strip():
            raise InvalidCall("the SQL92 expression is empty; subscribe with '*' to take every message")
        return Subscription(topic, expression.expression, "SQL92", None, version_ms)
    if isinstance(expression, ClassFilter):
        # Neither tags nor codes: the class decides (docs/protocol/consumer.md §3, sysFlag bit 8).
        return Subscription(topic, expression.class_name, "TAG", None, version_ms, class_filter=True)
    if expression is not None and not isinstance(expression, str):
        raise InvalidCall(f"the filter is {type(expression).__name__}, neither text like 'a || b' nor triomq.Sql")
    try:
        tags = check_tags(expression)
    except LocalProtocolError as error:
        raise InvalidCall(f"the tags cannot be used: {error}; {SQL_FORMS}") from error
    return Subscription(topic, tags.expression, "TAG", tags, version_ms)


def next_version_ms(now_ms: int, last_ms: int) -> int:
    """A version that brokers consider newer, even if the clock was set back.

    Args:
        now_ms: the time now, in ms since 1970; it may have been set back.
        last_ms: the newest version so far.
    """
    return max(now_ms, last_ms + 1)


def tags_taken(asked: Subscription, announced: Subscription | None) -> frozenset[str]:
    """The tags that an answer's messages are compared with; empty: all messages are kept.

    A broker that holds a pull answers with the subscription it has by then: messages whose tag was subscribed after the
    pull was sent must not be lost.

    Args:
        asked: the subscription when the pull was sent.
        announced: the newest subscription that was sent to brokers since; None: there is none.
    """
    if announced is None:
        return asked.exact_tags
    takes_all = not asked.exact_tags or not announced.exact_tags
    return frozenset() if takes_all else asked.exact_tags | announced.exact_tags


def retry_topic(group: str) -> str:
    """The topic of a group's retries."""
    return RETRY_PREFIX + group
