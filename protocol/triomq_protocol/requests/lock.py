"""Queue locks of orderly consumers: codes 41 and 42 (docs/protocol/broker-api.md §11)."""
# ruff: noqa: RUF012 (msgspec gives every instance a default of its own)

from typing import ClassVar

import msgspec

from triomq_protocol.requests.message_queue import MessageQueue
from triomq_protocol.wire.body import Body


class LockBatchRequestBody(Body, kw_only=True):
    """Body of LOCK_BATCH_MQ (41)."""

    most_bytes: ClassVar[int] = 4 << 20
    most_objects: ClassVar[int] = 10_001

    client_id: str | None = None
    consumer_group: str | None = None
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body, kw_only=True):
    """Answer body of 41: the queues the client now holds."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class UnlockBatchRequestBody(Body, kw_only=True):
    """Body of UNLOCK_BATCH_MQ (42)."""

    most_bytes: ClassVar[int] = 4 << 20
    most_objects: ClassVar[int] = 10_001

    client_id: str | None = None
    consumer_group: str | None = None
    mq_set: list[MessageQueue] = []
