"""Notices to a member of an ordered group about its locks."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import trio

from triomq import MessageQueue
from triomq._consumer.group.queue_locks import QueueLocks
from triomq._message.namespace import Namespace
from triomq.errors import ConnectFailed
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


async def test_a_broker_that_grants_no_locks_is_logged_now_and_then(autojump_clock, caplog) -> None:
    """They are requested every second."""

    async def unreachable(*_: object, **__: object) -> Master:
        raise ConnectFailed("no connection", address=Master.address)

    locks = QueueLocks("G", "client", cast("Any", SimpleNamespace(namespace=Namespace(""), of=unreachable)))
    for _ in range(15):
        assert await locks.lock([MessageQueue("T", "broker-a", 0)]) == ([], [])
        await trio.sleep(1)
    first, second = caplog.messages
    assert first.startswith("broker-a did not lock 1 queues: no connection")
    assert second.endswith("(and 9 more like it since the last such line)")
