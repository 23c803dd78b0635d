"""Runs handlers without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

import triomq
from triomq_adapters.faststream.broker import RocketMQBroker
from triomq_adapters.faststream.messages import Incoming, RocketMQProducer, RocketMQPublishCommand
from triomq_adapters.faststream.subscriber import RocketMQSubscriber


class _MemoryProducer(RocketMQProducer):
    """Passes messages to the subscribers of brokers, without a server."""

    uses_server = False

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        config = broker.config.broker_config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.serializer = config.fd_config._serializer  # noqa: SLF001
        self.codec = config.broker_codec or self.codec
        self._brokers = brokers

    def _subscribers_of(self, message: triomq.Message) -> list[RocketMQSubscriber]:
        every: Iterator[Any] = (each for broker in self._brokers for each in broker.subscribers)
        return [each for each in every if each.takes(message)]

    async def _deliver(self, cmd: RocketMQPublishCommand, messages: Sequence[triomq.Message]) -> list[Any]:
        made = tuple(Incoming(m.topic, m.body, m.properties or {}, cmd.correlation_id or "", m.tags) for m in messages)
        results = []
        for subscriber in self._subscribers_of(messages[0]) if messages else ():
            calls: Sequence[Any] = [made] if subscriber.batch_max > 1 else made
            results += [await subscriber.process_message(each) for each in calls]
        return results

    async def publish(self, cmd: RocketMQPublishCommand) -> None:
        await self._deliver(cmd, [await self.message(cmd)])

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> None:
        await self._deliver(cmd, await self.messages(cmd))

    async def request(self, cmd: RocketMQPublishCommand) -> Incoming:
        with anyio.fail_after(cmd.timeout_s):
            results = await self._deliver(cmd, [await self.message(cmd)])
        if not results:
            raise SubscriberNotFound
        reply = RocketMQPublishCommand(
            results[0].body, headers=results[0].headers, correlation_id=results[0].correlation_id
        )
        message = await self.message(reply)
        return Incoming(cmd.destination, message.body, message.properties or {}, reply.correlation_id or "")


class TestRocketMQBroker(TestBroker[RocketMQBroker, Any], broker=RocketMQBroker):
    """Runs the handlers of brokers without a server: a published message has been handled when ``publish`` returns.

    ::

        async with TestRocketMQBroker(broker) as test:
            await test.publish(order, "orders")
            bill.mock.assert_called_once_with(order)
    """

    def create_publisher_fake_subscriber(self, broker: RocketMQBroker, publisher: Any) -> tuple[Any, bool]:
        """The subscriber of a publisher's topic, or a new one, and whether it existed before."""
        for each in (subscriber for one in self.brokers for subscriber in one.subscribers):
            if each.topic == publisher.topic:  # type: ignore[attr-defined]
                return each, True
        return broker.subscriber(publisher.topic, batch=publisher.batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, _MemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        return None
