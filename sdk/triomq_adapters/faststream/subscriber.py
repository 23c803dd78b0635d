"""A subscriber: a member of a consumer group that calls handlers, or gives single messages."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import anyio
from faststream._internal.configs import SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY as UNSET
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.response.response import PublishCommand

import triomq
import triomq.aio
from triomq_adapters.faststream.messages import (
    REQUEST,
    Incoming,
    RocketMQPublishCommand,
    decode,
    decode_batch,
    incoming,
    parse_batch,
    parse_message,
)
from triomq_adapters.faststream.specification import RocketMQSubscriberSpecification
from triomq_adapters.topics import ensure_topic

log = logging.getLogger("triomq.adapters.faststream")


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """The arguments of ``broker.subscriber``; one message at a time is a batch of one."""

    topic: str
    group: str | None
    tags: str | None
    start_from: triomq.StartFrom
    retries: triomq.ConsumeRetries | None
    max_workers: int
    batch_max: int

    @property
    def ack_policy(self) -> AckPolicy:
        """What happens to a message whose handler fails."""
        policies = (self._ack_policy, self._outer_config.ack_policy)
        return next((policy for policy in policies if policy is not UNSET), AckPolicy.NACK_ON_ERROR)


class _Reply(FakePublisher):
    """Sends a handler's result to the client that asked."""

    def __init__(self, producer: Any, message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        made = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        if self._message.reply_to == REQUEST:
            made.delivery = self._message.raw_message.delivery
        else:
            made.destination = self._message.reply_to
        return made


class RocketMQSubscriber(TasksMixin, SubscriberUsecase[Any]):
    """A member of a consumer group; made by ``broker.subscriber``."""

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: RocketMQSubscriberSpecification,
        calls: CallsCollection[Any],
    ) -> None:
        self.batch_max = config.batch_max
        is_batch = self.batch_max > 1
        config.parser, config.decoder = (parse_batch, decode_batch) if is_batch else (parse_message, decode)
        super().__init__(config, specification, calls)
        self._config = config
        self._consumer: triomq.aio.PushConsumer | None = None
        self._joining = anyio.Lock()  # without handlers, several tasks may ask for messages

    @property
    def topic(self) -> str:
        """The topic that messages are read from."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._config.group or f"{self.topic}-subscribers"

    def takes(self, message: triomq.Message) -> bool:
        """Whether the subscription selects a message."""
        selected = self._config.tags
        tags = None if selected in (None, "*") else {tag.strip() for tag in (selected or "").split("||")}
        return message.topic == self.topic and (tags is None or message.tags in tags)

    async def start(self) -> None:
        """Join the group, and call handlers if there are any."""
        await super().start()
        self._post_start()
        producer: Any = self._outer_config.producer
        if self.calls and producer.uses_server:
            await self._join()
            for _ in range(self._config.max_workers):
                # The client reconnects by itself; an error that ends a consumer is final.
                self.add_task(self._consume, restart_on_failure=False)

    async def _join(self) -> triomq.aio.PushConsumer:
        async with self._joining:
            if self._consumer is None:
                broker: Any = self._outer_config
                config = self._config
                await ensure_topic(broker.connected.admin, self.topic, broker.queues)
                async with AsyncExitStack() as unless_subscribed:
                    consumer = await unless_subscribed.enter_async_context(
                        broker.connected.push_consumer(
                            self.group, start_from=config.start_from, retries=config.retries, drain_s=0
                        )
                    )
                    await consumer.subscribe(self.topic, config.tags)
                    unless_subscribed.pop_all()
                self._consumer = consumer
            return self._consumer

    async def stop(self) -> None:
        """Wait for handlers, and leave the group; unanswered messages are given to other members."""
        if self._consumer is not None:
            self._consumer.drain()
        await super().stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.aclose()

    async def _consume(self) -> None:
        consumer = await self._join()
        with suppress(triomq.ClosedError):  # a worker stopped by its own handler
            async for delivery in consumer:
                taken = await self._readable(delivery)
                while len(taken) < self.batch_max and (more := await consumer.poll()) is not None:
                    taken += await self._readable(more)
                if not taken:
                    continue
                await self.consume(taken[0] if self.batch_max == 1 else tuple(taken))

    @staticmethod
    async def _readable(delivery: triomq.aio.Delivery) -> list[Incoming]:
        """The message in a list; empty if its body cannot be read, and it is delivered again later."""
        try:
            return [incoming(delivery.message, delivery)]
        except (triomq.errors.MessageIllegal, triomq.errors.InvalidCall) as error:
            # It is damaged, or compressed by a library that is missing here. Another member may have it, and a message
            # that cannot be read becomes a dead letter.
            log.error("%r cannot be read, and is delivered again later: %s", delivery.message, error)  # noqa: TRY400
            await delivery.later()
            return []

    async def get_one(self, *, timeout: float = 5.0) -> Any:  # noqa: ASYNC109 - FastStream's name
        """The next message, or None if none arrives in time; for subscribers without a handler."""
        self._check_no_handlers()
        consumer = await self._join()
        delivery = await consumer.poll(timeout)
        found = [] if delivery is None else await self._readable(delivery)
        return await self._processed(found[0]) if found else None

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over messages, for subscribers without a handler; answer each with ``ack`` or ``nack``."""
        self._check_no_handlers()
        async for delivery in await self._join():
            for found in await self._readable(delivery):
                yield await self._processed(found)

    def _check_no_handlers(self) -> None:
        if self.calls:  # the class of the error is FastStream's
            raise AssertionError(
                f"the handlers of the subscriber of {self.topic} take its messages: use one without handlers"
            )

    async def _processed(self, found: Incoming) -> Any:
        raw: Any = (found,) if self.batch_max > 1 else found
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        return await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[Any]:
        return (_Reply(self._outer_config.producer, message),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """The fields of a message in log lines."""
        return {"topic": self.topic, "group": self.group, **super().get_log_context(message)}
