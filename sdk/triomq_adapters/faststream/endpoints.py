"""The methods ``subscriber`` and ``publisher`` of brokers and routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.configs import (
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
)
from faststream._internal.constants import EMPTY as UNSET
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

import triomq
from triomq_adapters.faststream.publisher import RocketMQPublisher
from triomq_adapters.faststream.specification import RocketMQPublisherSpecification, RocketMQSubscriberSpecification
from triomq_adapters.faststream.subscriber import RocketMQSubscriber, RocketMQSubscriberConfig


class Endpoints(Registrator[Any, Any]):
    """The methods with which a broker and its routers create subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str | None = None,
        start_from: triomq.StartFrom = "earliest",
        retries: triomq.ConsumeRetries | None = None,
        max_workers: int = 1,
        batch: bool = False,
        batch_max: int = 32,
        ack_policy: AckPolicy = UNSET,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketMQSubscriber:
        """Call a handler with the messages of a topic.

        Args:
            topic: its name; it is created if it does not exist.
            group: the consumer group; default: the topic and ``-subscribers``. Two subscribers of one program need two.
            tags: ``"a || b"``; default: all messages.
            start_from: where a new group starts.
            retries: when and how often messages are retried if the handler fails or takes too long.
            max_workers: the most messages handled at the same time.
            batch: whether a handler gets a list of the messages that have arrived.
            batch_max: the most messages in a list.
            ack_policy: default: a message whose handler fails is delivered again later.
            no_reply: True if the results of handlers are not sent to the client that asked.
            dependencies: dependencies of FastDepends.
            parser: converts a received message to FastStream's.
            decoder: decodes bodies.
            codec: encodes and decodes bodies.
            persistent: whether it stays after a restart of the broker.
            title: the title in AsyncAPI.
            description: the description in AsyncAPI.
            include_in_schema: whether AsyncAPI shows it.
        """
        calls = CallsCollection[Any]()
        outer: Any = self.config
        specification = RocketMQSubscriberSpecification(
            outer,
            SubscriberSpecificationConfig(title_=title, description_=description, include_in_schema=include_in_schema),
            calls,
        )
        specification.topic = topic
        config = RocketMQSubscriberConfig(
            _outer_config=outer,
            _ack_policy=ack_policy,
            no_reply=no_reply,
            topic=topic,
            group=group,
            tags=tags,
            start_from=start_from,
            retries=retries,
            max_workers=max_workers,
            batch_max=batch_max if batch else 1,
        )
        made = RocketMQSubscriber(config, specification, calls)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=codec, dependencies_=dependencies
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> RocketMQPublisher:
        """Send a handler's result to a topic, or messages with its ``publish``.

        Args:
            topic: the topic to send to.
            tags: one tag for consumers to filter by.
            headers: headers of every message; they are user properties.
            batch: whether a handler returns a list of messages, which are sent in one request.
            persistent: whether it stays after a restart of the broker.
            title: the title in AsyncAPI.
            description: the description in AsyncAPI.
            schema: the type of the messages in AsyncAPI.
            include_in_schema: whether AsyncAPI shows it.
        """
        outer: Any = self.config
        specification = RocketMQPublisherSpecification(
            outer,
            PublisherSpecificationConfig(
                title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
            ),
        )
        specification.topic = topic
        config = PublisherUsecaseConfig(_outer_config=outer)
        made = RocketMQPublisher(config, specification, tags=tags, headers=headers, batch=batch)
        super().publisher(made, persistent=persistent)
        return made
