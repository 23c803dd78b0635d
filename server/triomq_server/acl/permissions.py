"""Permissions of an account for topics and groups, and those that a request needs (docs/protocol/remoting.md §11.2).

Upstream: `Permission`, `PlainAccessResource`, `PlainAccessValidator.parse`. Groups are named by their retry topics.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from triomq_protocol.codes import RequestCode
from triomq_protocol.names import REPLY_TOPIC_SUFFIX, RETRY_PREFIX
from triomq_protocol.requests.heartbeat import HeartbeatData


class Permission(enum.Flag):
    """Permitted actions; none at all is RocketMQ's DENY."""

    DENY = 0
    PUB = 4
    SUB = 8


_BY_NAME = {
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
    "DENY": Permission.DENY,
}

ADMIN_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
)
"""Requests that RocketMQ 4.9 reserves for administrators, and those of 5 that do the same for a list."""

OWN_ADMIN_CODES = frozenset({29_001, 29_002, 29_003, 29_004})
"""Our own operators' requests: replication state, role change, truncation of a slave's log, bytes of the log."""

ACCOUNT_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    }
)
"""Requests that change accounts or show their secrets. In RocketMQ 4.9 every account may send them, and so make itself
an administrator."""


class Need(msgspec.Struct, frozen=True):
    """A permission that a request needs.

    Attributes:
        resource: a topic; a group is named by its retry topic.
        permission: PUB or SUB.
    """

    resource: str
    permission: Permission

    @property
    def is_group(self) -> bool:
        """Whether the resource is a consumer group."""
        return self.resource.startswith(RETRY_PREFIX)

    def __str__(self) -> str:
        return f"group:{self.resource[len(RETRY_PREFIX) :]}" if self.is_group else f"topic:{self.resource}"


def permission_of(text: str | None) -> Permission:
    """The permission with this name; DENY for every other text, and for None."""
    return Permission.DENY if text is None else _BY_NAME.get(text.strip(), Permission.DENY)


def names_permission(text: str) -> bool:
    """Whether a text is the name of a permission."""
    return text.strip() in _BY_NAME


def needs_admin(code: int, *, compat_49: bool) -> bool:
    """Whether only administrators may send a request."""
    return code in ADMIN_CODES or code in OWN_ADMIN_CODES or (code in ACCOUNT_CODES and not compat_49)


def needs_of(  # noqa: C901 - one case for each request
    code: int, fields: Mapping[str, str | None], body: bytes, *, compat_49: bool
) -> list[Need]:
    """The permissions that a request needs; none if it names neither a topic nor a group.

    Args:
        code: the request's code.
        fields: its ext fields.
        body: its body.
        compat_49: copy RocketMQ 4.9, which checks no batches (320), no replies (324, 325), and no retries among sends
            in the long form (10); for those in the short form it takes the group that the sender names.

    Raises:
        BodyError: a heartbeat's body cannot be read.
    """
    match code:
        case RequestCode.SEND_MESSAGE:
            return (
                _send_49(fields.get("topic"), fields.get("group"))
                if compat_49
                else _send(fields.get("topic"), fields.get("producerGroup"))
            )
        case RequestCode.SEND_MESSAGE_V2:
            return _send_49(fields.get("b"), fields.get("a")) if compat_49 else _send(fields.get("b"), fields.get("a"))
        case RequestCode.SEND_BATCH_MESSAGE:
            return [] if compat_49 else _send(fields.get("b"), fields.get("a"))
        case RequestCode.SEND_REPLY_MESSAGE:
            return [] if compat_49 else _reply(fields.get("topic"), fields.get("producerGroup"))
        case RequestCode.SEND_REPLY_MESSAGE_V2:
            return [] if compat_49 else _reply(fields.get("b"), fields.get("a"))
        case RequestCode.CONSUMER_SEND_MSG_BACK:
            return _group(fields.get("group"))
        case RequestCode.PULL_MESSAGE | RequestCode.LITE_PULL_MESSAGE | RequestCode.UPDATE_CONSUMER_OFFSET:
            return _topic(fields.get("topic"), Permission.SUB) + _group(fields.get("consumerGroup"))
        case RequestCode.QUERY_MESSAGE:
            return _topic(fields.get("topic"), Permission.SUB)
        case RequestCode.UNREGISTER_CLIENT | RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return _group(fields.get("consumerGroup"))
        case RequestCode.HEART_BEAT:
            return _heartbeat(body)
        case _:
            return []


def _topic(name: str | None, permission: Permission) -> list[Need]:
    return [] if name is None else [Need(name, permission)]


def _group(name: str | None) -> list[Need]:
    if name is None:
        return []
    return [Need(RETRY_PREFIX + name, Permission.SUB)]


def _send(topic: str | None, group: str | None) -> list[Need]:
    """A message for a retry topic comes from its consumer group, which must be allowed to receive.

    The group that the message names does not matter."""
    if topic is None or not topic.startswith(RETRY_PREFIX):
        return _topic(topic, Permission.PUB)
    return list(dict.fromkeys([*_group(group), Need(topic, Permission.SUB)]))


def _reply(topic: str | None, group: str | None) -> list[Need]:
    """A reply is stored in the topic that it names; every account may reply in a cluster's own topic for replies."""
    return [] if topic is not None and topic.endswith(REPLY_TOPIC_SUFFIX) else _send(topic, group)


def _send_49(topic: str | None, group: str | None) -> list[Need]:
    """As `_send`, but without verifying the group that the sender names."""
    if topic is not None and topic.startswith(RETRY_PREFIX):
        return _group(group)
    return _topic(topic, Permission.PUB)


def _heartbeat(body: bytes) -> list[Need]:
    needs: dict[Need, None] = {}
    for consumer in HeartbeatData.decode(body).consumer_data_set:
        needs.update(dict.fromkeys(_group(consumer.group_name)))
        for subscription in consumer.subscription_data_set:
            needs.update(dict.fromkeys(_topic(subscription.topic, Permission.SUB)))
    return list(needs)
