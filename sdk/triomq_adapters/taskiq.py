"""A Taskiq broker: tasks are messages of one topic, workers are members of one consumer group.

::

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.task
    async def resize(path: str) -> None: ...

A task is acknowledged when Taskiq acknowledges it; what a worker took and did not acknowledge is delivered again, to it or another.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

import triomq
import triomq.aio
from triomq_adapters.delays import Clock, due_after, due_of, message_due, remaining_ms, wall_ms
from triomq_adapters.topics import ensure_topic

__all__ = ["RocketMQBroker"]

log = logging.getLogger("triomq.adapters.taskiq")

COMMIT_EVERY_S: Final = 1.0
"""How often a worker commits its acknowledgements; if it is killed, others repeat the tasks acknowledged since."""


class RocketMQBroker(AsyncBroker):
    """Sends tasks to a topic, and takes them from it as a member of a group.

    A task's name is its message's tag, its id the message's key. The label ``delay`` is its wait in seconds, of any
    length; it is late by up to a second, and never early.

    Args:
        name_servers: as for :func:`triomq.open_client`; None: those in the environment's ``NAMESRV_ADDR``.
        topic: the topic of the tasks; it is created if it does not exist.
        group: the consumer group of the workers. Members of one group share the tasks; each group gets all tasks.
        queues: queues per broker of a topic that is created; each queue is read by one worker at a time.
        send_timeout_s: how many seconds ``kiq`` may take.
        retries: when an unacknowledged task is delivered again, and how often before it becomes a dead letter;
            default: after 900 s, 16 times.
        drain_s: how many seconds a worker waits at its end for tasks to be acknowledged.
        client_options: further arguments of :func:`triomq.open_client`.
        clock: returns the time in ms since 1970.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        topic: str = "taskiq",
        group: str = "taskiq-workers",
        queues: int = 16,
        send_timeout_s: float = 10.0,
        retries: triomq.ConsumeRetries | None = None,
        drain_s: float = 10.0,
        client_options: triomq.ClientOptions | None = None,
        clock: Clock = wall_ms,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self._open_client = partial(triomq.aio.open_client, name_servers, **(client_options or {}))
        self._queues = queues
        self._send_timeout_s = send_timeout_s
        self._retries = retries or triomq.ConsumeRetries(max_times=16, timeout_s=900.0)
        self._drain_s = drain_s
        self._clock = clock
        self._open: AsyncExitStack | None = None
        self._client: triomq.aio.Client
        self._producer: triomq.aio.Producer
        self._consumer: triomq.aio.PushConsumer | None = None

    async def startup(self) -> None:
        """Open the client, and create the topic if it does not exist."""
        if self._open is None:
            async with AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(self._open_client())
                self._producer = self._client.producer(f"{self.group}-senders", send_timeout_s=self._send_timeout_s)
                await ensure_topic(self._client.admin, self.topic, self._queues)
                self._open = stack.pop_all()
        await super().startup()

    async def shutdown(self) -> None:
        """Leave the group and close the client."""
        try:
            await super().shutdown()
        finally:
            stack, self._open, self._consumer = self._open, None, None
            if stack is not None:
                await stack.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; it is stored when this returns.

        Raises:
            InvalidCall: the broker is not started, the name or the id cannot be a tag or a key, or the delay is not a number.
            MessageIllegal: the task is longer than brokers store.
            MQError: it could not be sent.
        """
        due_ms = due_after(message.labels.get("delay"), self._clock())
        await self._send(message.message, message.task_name, message.task_id, due_ms)

    async def _send(self, body: bytes, task_name: str | None, key: str | None, due_ms: int | None) -> None:
        self._check_started()
        message = message_due(self.topic, body, tags=task_name, keys=key, due_ms=due_ms, now_ms=self._clock())
        await self._producer.send(message)

    def _check_started(self) -> AsyncExitStack:
        if self._open is None:
            raise triomq.errors.InvalidCall("the broker is not started: await broker.startup() first")
        return self._open

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Take tasks, until the broker shuts down; they are acknowledged by :class:`taskiq.AckableMessage`.

        The group is left by :meth:`shutdown` and not by the generator's end, so that tasks at work then are acknowledged.
        """
        stack = self._check_started()
        if self._consumer is None:
            consumer = self._client.push_consumer(
                self.group,
                start_from="earliest",
                retries=self._retries,
                drain_s=self._drain_s,
                commit_every_s=COMMIT_EVERY_S,
            )
            async with AsyncExitStack() as unless_subscribed:
                await unless_subscribed.enter_async_context(consumer)
                await consumer.subscribe(self.topic)
                stack.push_async_exit(unless_subscribed.pop_all())
            self._consumer = consumer
        async for delivery in self._consumer:
            body = await self._due(delivery)
            if body is not None:
                yield AckableMessage(data=body, ack=partial(_acknowledge, delivery))

    async def _due(self, delivery: triomq.aio.Delivery) -> bytes | None:
        """The task, or None if it still has to wait or cannot be read."""
        message = delivery.message
        try:
            if remaining_ms(message.properties, self._clock()) <= 0:
                return message.body
            # Sent before the answer: a worker that ends between the two causes a copy, and loses nothing.
            key = message.keys[0] if message.keys else None
            await self._send(message.body, message.tags, key, due_of(message.properties))
        except triomq.MQError:
            log.exception("%r could not be taken, and is delivered again later", message)
            await delivery.later()
        else:
            await delivery.done()
        return None


async def _acknowledge(delivery: triomq.aio.Delivery) -> None:
    if not delivery.answered:
        await delivery.done()
