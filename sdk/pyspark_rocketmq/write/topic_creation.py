"""Creates the topics of a write before their first row, if the option `createTopic` is set.

A topic that a broker creates automatically, at the first message, is on that broker only: it cannot be written while
the broker is down.
"""

from __future__ import annotations

from typing import Final

import trio

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.write.sending import cause_of
from triomq import MQError
from triomq.admin import Admin
from triomq.errors import BrokerNotFound, RouteNotFound

REGISTERED_LIMIT_S: Final = 30.0
"""How long name servers may take to learn of a topic that masters have created."""

PAUSE_S: Final = 0.05


class TopicCreation:
    """Creates topics that the name servers do not know, and leaves the others as they are.

    Tasks may do so concurrently: they send masters the same settings.

    Args:
        queues: the number of queues on each master; None creates nothing.
    """

    def __init__(self, queues: int | None) -> None:
        self._queues = queues
        self._present: set[str] = set()

    async def ensure(self, admin: Admin, topic: str) -> None:
        """Return once the topic can be written, or at once if nothing is to be created.

        Args:
            admin: queries and creates topics.
            topic: the topic.

        Raises:
            WriteFailed: it was not created on every master.
        """
        if self._queues is None or topic in self._present:
            return
        try:
            if await _brokers(admin, topic) == 0:
                created = await admin.create_topic(topic, queues=self._queues)
                await _wait_registered(admin, topic, len(created))
        except MQError as error:
            raise WriteFailed(f"createTopic: {cause_of(error)}; no row was sent to topic {topic}") from error
        self._present.add(topic)


async def _brokers(admin: Admin, topic: str) -> int:
    """The number of brokers that have a topic; 0 if it does not exist."""
    try:
        route = await admin.route(topic)
    except BrokerNotFound:
        raise
    except RouteNotFound:
        return 0
    return len(route.queue_datas or ())


async def _wait_registered(admin: Admin, topic: str, brokers: int) -> None:
    with trio.move_on_after(REGISTERED_LIMIT_S) as scope:
        while True:
            if await _brokers(admin, topic) >= brokers:
                break
            await trio.sleep(PAUSE_S)
    if scope.cancelled_caught:
        raise WriteFailed(
            f"createTopic: {brokers} masters have created topic {topic}, and the name servers do not know it of all "
            f"of them after {REGISTERED_LIMIT_S:g} s; no row was sent to it"
        )
