"""Notices to a member of an ordered group about its locks."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from triomq import MessageQueue
from triomq._consumer.group.queue_locks import QueueLocks
from triomq._message.namespace import Namespace
from triomq_protocol.requests import LockBatchRequestBody, LockBatchResponseBody
from triomq_protocol.wire.command import Command


class Master:
    """Grants the even queues, in another order than asked."""

    address = "127.0.0.1:10911"

    async def request(self, command: Command, _timeout_s: float) -> Command:
        asked = LockBatchRequestBody.decode(command.body).mq_set
        granted = [queue for queue in reversed(asked) if queue.queue_id % 2 == 0]
        return command.answer(0, body=LockBatchResponseBody(lock_ok_mq_set=granted).encode())


async def test_locks_are_answered_in_the_order_of_the_queues() -> None:
    async def master(*_: object, **__: object) -> Master:
        return Master()

    brokers = SimpleNamespace(namespace=Namespace(""), of=master)
    locks = QueueLocks("G", "client", cast("Any", brokers))
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(16)]
    random.Random(1).shuffle(queues)
    granted, refused = await locks.lock(queues)
    assert granted == [queue for queue in queues if queue.queue_id % 2 == 0]
    assert refused == [queue for queue in queues if queue.queue_id % 2 == 1]
