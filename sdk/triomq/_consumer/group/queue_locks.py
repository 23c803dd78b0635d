"""Locks queues at their brokers, to consume them in order (docs/protocol/consumer.md §9; codes 41 and 42).

Three times matter: a client considers its lock valid for 30 s, renews it every 20 s, and the broker keeps it for 60 s.  Upstream: ``RebalanceImpl``, ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

import trio

from triomq._cluster.broker_links import BrokerLinks
from triomq._consumer.group.by_broker import at_each_broker, by_broker
from triomq._message.message import MessageQueue
from triomq._transport.answers import checked, short_body_of
from triomq._transport.peer_log import PeerLog
from triomq.errors import MQError
from triomq_protocol.codes import RequestCode
from triomq_protocol.flags import ONEWAY
from triomq_protocol.requests import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.consumer")

LOCK_TIMEOUT_S: Final = 1.0
"""How long a broker may take to grant locks (docs/protocol/consumer.md §9)."""

VALID_S: Final = 30.0
"""How long a granted lock is considered valid (``rocketmq.client.rebalance.lockMaxLiveTime``)."""

RENEW_EVERY_S: Final = 20.0
"""How often locks are renewed (``rocketmq.client.rebalance.lockInterval``)."""

RETRY_S: Final = 3.0
"""The pause before a refused lock is requested again."""

BROKER_KEEPS_S: Final = 60.0
"""How long a broker keeps a lock that is not renewed (``rebalanceLockMaxLiveTime``)."""


class QueueLocks:
    """Asks masters for locks on behalf of one group member.

    Args:
        group: consumer group.
        client_id: the member's client id.
        brokers: the links to masters.
    """

    def __init__(self, group: str, client_id: str, brokers: BrokerLinks) -> None:
        self.leaving: set[MessageQueue] = set()
        """Queues that are locked but not, or no longer, consumed: a consumer that ends releases their locks too."""
        self._group = group
        self._client_id = client_id
        self._brokers = brokers
        self._lines = PeerLog(log)  # locks that a broker does not grant are requested every second

    async def lock(
        self, queues: Collection[MessageQueue], failed: Callable[[MessageQueue, MQError], object] = lambda *_: None
    ) -> tuple[list[MessageQueue], list[MessageQueue]]:
        """Take or renew locks.

        Args:
            queues: the queues.
            failed: called with a queue of each broker that did not answer, and the error.

        Returns:
            The queues that are ours now, and those that are not, each broker's in the given order; queues whose broker
            did not answer are in neither.
        """
        granted: list[MessageQueue] = []
        refused: list[MessageQueue] = []

        @trio.lowlevel.enable_ki_protection
        async def lock_at_one_broker(part: Collection[MessageQueue]) -> None:
            first = next(iter(part))
            try:
                ours = await self._ask(part)
            except MQError as error:
                text = "did not lock %d queues: %s"
                self._lines.write(logging.WARNING, first.broker_name, text, len(part), error, kind=type(error))
                failed(first, error)
                return
            granted.extend(each for each in part if each in ours)
            refused.extend(each for each in part if each not in ours)

        await at_each_broker(queues, lock_at_one_broker)
        return granted, refused

    async def unlock(self, queues: Collection[MessageQueue], *, wait: bool) -> None:
        """Release locks; a lock whose broker does not receive this expires by itself.

        Args:
            queues: the queues.
            wait: whether to wait for the brokers' answers, as at the end of a consumer.
        """
        for part in by_broker(queues):
            queues_there = self._brokers.namespace.wrap_queues(part)
            body = UnlockBatchRequestBody(client_id=self._client_id, consumer_group=self._group, mq_set=queues_there)
            command = Command.request(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
            try:
                link = await self._brokers.of(part[0], only_master=True)
                if wait:
                    await link.request(command, LOCK_TIMEOUT_S)
                else:
                    command.flag |= ONEWAY
                    link.notify(command)
            except MQError as error:
                log.info("%d queues of %s could not be unlocked: %s", len(part), part[0].broker_name, error.reason)

    async def _ask(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        link = await self._brokers.of(next(iter(queues)), only_master=True)
        namespace = self._brokers.namespace
        body = LockBatchRequestBody(
            client_id=self._client_id, consumer_group=self._group, mq_set=namespace.wrap_queues(queues)
        )
        answer = await link.request(Command.request(RequestCode.LOCK_BATCH_MQ, body=body.encode()), LOCK_TIMEOUT_S)
        what = f"locking {len(queues)} queues for group {self._group}"
        locked = short_body_of(LockBatchResponseBody, checked(answer, what, link.address), what, link.address)
        return {namespace.unwrap_queue(queue) for queue in locked.lock_ok_mq_set}
