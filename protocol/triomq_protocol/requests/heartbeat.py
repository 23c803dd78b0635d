"""Clients at the broker: codes 34, 35, 38, 40, 46 (docs/protocol/broker-api.md §3 and §8)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

from typing import ClassVar

import msgspec

from triomq_protocol.wire.body import Body
from triomq_protocol.wire.header import Header, Int32

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"
CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body, kw_only=True):
    """A consumer group's subscription to one topic; sets are lists in Java's order."""

    class_filter_mode: bool = False
    code_set: list[Int32] = []  # larger numbers, which Java refuses too, can be chosen to have the same hash
    expression_type: str = "TAG"
    sub_string: str | None = None
    sub_version: int = 0
    tags_set: list[str] = []
    topic: str | None = None


class ConsumerData(Body, kw_only=True):
    """One consumer group of a client."""

    consume_from_where: str | None = None
    consume_type: str | None = None
    group_name: str | None = None
    message_model: str | None = None
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(Body, kw_only=True):
    """One producer group of a client."""

    group_name: str | None = None


class HeartbeatData(Body, kw_only=True):
    """Body of HEART_BEAT (34)."""

    most_bytes: ClassVar[int] = 2 << 20
    most_objects: ClassVar[int] = 5000

    client_id: str | None = msgspec.field(default=None, name="clientID")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []


class UnregisterClientRequest(Header, kw_only=True):
    """Header of UNREGISTER_CLIENT (35); its answer has an empty header."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class UnregisterClientResponse(Header, kw_only=True):
    """Answer header of 35: no fields."""


class GetConsumerListByGroupRequest(Header, kw_only=True):
    """Header of GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


class GetConsumerListByGroupResponse(Header, kw_only=True):
    """Answer header of 38: no fields."""


class ConsumerIdList(Body, kw_only=True):
    """Answer body of 38; upstream `GetConsumerListByGroupResponseBody`."""

    consumer_id_list: list[str] = []


class NotifyConsumerIdsChangedRequest(Header, kw_only=True):
    """Header of NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client, one-way."""

    consumer_group: str


class CheckClientConfigBody(Body, kw_only=True):
    """Body of CHECK_CLIENT_CONFIG (46); upstream `CheckClientRequestBody`."""

    most_bytes: ClassVar[int] = 1 << 20

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
