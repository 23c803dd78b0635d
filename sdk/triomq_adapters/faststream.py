"""A FastStream broker: subscribers are members of consumer groups, publishers send to topics.

::

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

A handler that returns has consumed its message; when it raises, the message is delivered again later, and is a dead letter of the
group after 16 times. ``TestRocketMQBroker`` runs handlers without a server.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, Unpack

import anyio
from faststream import Context
from faststream._internal.broker import BrokerRouter, BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY as UNSET
from faststream._internal.context import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.message import StreamMessage, gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import BrokerSpec, Message, Operation, PublisherSpec, SubscriberSpec

import triomq
import triomq.aio
from triomq_adapters.faststream_messages import (
    REQUEST,
    Incoming,
    PublishOptions,
    ReceivedStreamMessage,
    RocketMQProducer,
    RocketMQPublishCommand,
    decode,
    decode_batch,
    incoming,
    parse_batch,
    parse_message,
)
from triomq_adapters.topics import ensure_topic

log = logging.getLogger("triomq.adapters.faststream")

__all__ = [
    "PublishOptions",
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublisher",
    "RocketMQRoute",
    "RocketMQRoutePublisher",
    "RocketMQRouter",
    "RocketMQSubscriber",
    "TestRocketMQBroker",
]

RocketMQMessage = Annotated[ReceivedStreamMessage, Context("message")]
"""The annotation with which a handler gets its message."""


class _BrokerConfig(BrokerConfig):
    """The state that subscribers and publishers share with their broker."""

    client: triomq.aio.Client | None = None
    queues: int = 8

    @property
    def connected(self) -> triomq.aio.Client:
        """The client.

        Raises:
            InvalidCall: the broker is not connected.
        """
        if self.client is None:
            raise triomq.errors.InvalidCall("the broker is not connected: await broker.connect() or start() first")
        return self.client


@dataclass(kw_only=True)
class _SubscriberConfig(SubscriberUsecaseConfig):
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
        policies = (self._ack_policy, self._outer_config.ack_policy)
        return next((policy for policy in policies if policy is not UNSET), AckPolicy.NACK_ON_ERROR)


def _schema(shown: Any, kind: type[Any], description: str | None, extra: str = "") -> dict[str, Any]:
    """The description of a subscriber or publisher for AsyncAPI."""
    message = Message(title=f"{shown.name}:Message", payload=resolve_payloads(shown.get_payloads(), extra))
    operation = Operation(message=message, bindings=None)
    return {shown.name: kind(address=shown.address, description=description, operation=operation, bindings=None)}


class _SubscriberSpecification(SubscriberSpecification[Any, Any]):
    topic = ""

    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        return _schema(self, SubscriberSpec, self.description)


class _PublisherSpecification(PublisherSpecification[Any, Any]):
    topic = ""

    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        return _schema(self, PublisherSpec, self.config.description_, "Publisher")


def _command(config: Any, *bodies: Any, **options: Any) -> RocketMQPublishCommand:
    correlation_id = options.pop("correlation_id", None) or config.id_generator()
    return RocketMQPublishCommand(*bodies, correlation_id=correlation_id, **options)


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
        self, config: _SubscriberConfig, specification: _SubscriberSpecification, calls: CallsCollection[Any]
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
        if self.calls and not isinstance(self._outer_config.producer, _MemoryProducer):
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


class RocketMQPublisher(PublisherUsecase):
    """Sends to a topic; made by ``broker.publisher``."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: _PublisherSpecification,
        *,
        tags: str | None,
        headers: dict[str, str] | None,
        batch: bool,
    ) -> None:
        super().__init__(config, specification)
        self._topic = specification.topic
        self._tags = tags
        self._headers = headers or {}
        self.batch = batch

    @property
    def topic(self) -> str:
        """The topic that messages are sent to."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]) -> Any:
        """Send a message, or with ``batch=True`` a list of them; options as for :meth:`RocketMQBroker.publish`."""
        command = _command(self._outer_config, *(message if self.batch else [message]), topic=topic, **options)
        return await self._publish(command, _extra_middlewares=())

    async def request(self, message: Any = None, topic: str = "", *, timeout: float = 3.0, **options: Any) -> Any:  # noqa: ASYNC109
        """Send a message and wait for the reply."""
        request = {"timeout_s": timeout, "_publish_type": PublishType.REQUEST}
        command = _command(self._outer_config, message, topic=topic, **request, **options)
        return await self._basic_request(self._addressed(command), producer=self._outer_config.producer)

    def _addressed(self, command: RocketMQPublishCommand) -> RocketMQPublishCommand:
        command.destination = command.destination or self.topic
        command.tags = command.tags or self._tags
        command.add_headers(self._headers, override=False)
        return command

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> Any:
        command = self._addressed(RocketMQPublishCommand.from_cmd(cmd, batch=self.batch))
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        return await publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)


_MESSAGE_ID_CHARACTERS = 32
"""Characters of an id in the log; ids of one process differ at their ends."""


class _LoggerStorage(DefaultLoggerStorage):
    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing: columns are not aligned."""

    def set_level(self, level: int) -> None:
        self._level = level

    def get_logger(self, *, context: Any) -> Any:
        found = self._get_logger_ref()
        if found is None:
            found = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=_MESSAGE_ID_CHARACTERS,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)s - %(message)s",
                context=context,
                log_level=getattr(self, "_level", logging.INFO),
            )
            self._logger_ref.add(found)
        return found


class _Endpoints(Registrator[Any, Any]):
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
        specification = _SubscriberSpecification(
            outer,
            SubscriberSpecificationConfig(title_=title, description_=description, include_in_schema=include_in_schema),
            calls,
        )
        specification.topic = topic
        config = _SubscriberConfig(
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
        specification = _PublisherSpecification(
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


class RocketMQRouter(_Endpoints, BrokerRouter[Any, Any]):
    """Subscribers and publishers of one module of a program, for ``broker.include_router``.

    Args:
        prefix: the prefix of their topics' names.
        handlers: functions that are not decorated, as :class:`RocketMQRoute`.
        routers: further routers inside this one.
        include_in_schema: whether AsyncAPI shows them.
        middlewares: this and the following ones are arguments that all FastStream brokers take.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[SubscriberRoute] = (),
        *,
        routers: Sequence[Registrator[Any, Any]] = (),
        include_in_schema: bool | None = None,
        middlewares: Sequence[Any] = (),
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        ack_policy: AckPolicy = UNSET,
    ) -> None:
        config = _BrokerConfig(
            prefix=prefix,
            include_in_schema=include_in_schema,
            broker_middlewares=middlewares,
            broker_dependencies=dependencies,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            ack_policy=ack_policy,
        )
        super().__init__(config=config, handlers=handlers, routers=routers)


class RocketMQRoute(SubscriberRoute):
    """A function, the arguments of its ``subscriber``, and ``publishers`` for its result."""


class RocketMQRoutePublisher(ArgsContainer):
    """The arguments of a ``publisher``, for :class:`RocketMQRoute`."""


class RocketMQBroker(_Endpoints, BrokerUsecase[Any, Any, Any]):
    """Connects a FastStream application to RocketMQ.

    Args:
        name_servers: as for :func:`triomq.open_client`; None: those in the environment's ``NAMESRV_ADDR``.
        group: the producer group.
        queues: queues per broker of a topic that is created for a subscriber.
        send_timeout_s: how many seconds a publication may take.
        graceful_timeout: how many seconds ``stop`` waits for handlers.
        client_options: further arguments of :func:`triomq.open_client`.
        routers: routers that are included from the start.
        logger: the logger of the broker's log lines.
        tags: the tags in AsyncAPI.
        middlewares: this and the following ones are arguments that all FastStream brokers take.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        group: str = "faststream",
        queues: int = 8,
        send_timeout_s: float = 10.0,
        graceful_timeout: float | None = 15.0,
        client_options: triomq.ClientOptions | None = None,
        routers: Sequence[Registrator[Any, Any]] = (),
        logger: Any = UNSET,
        tags: Iterable[Any] = (),
        middlewares: Sequence[Any] = (),
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        ack_policy: AckPolicy = UNSET,
        apply_types: bool = True,
        serializer: Any = UNSET,
        context: ContextRepo | None = None,
        id_generator: Callable[[], str] = gen_cor_id,
    ) -> None:
        config = _BrokerConfig(
            producer=RocketMQProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_dependencies=dependencies,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            ack_policy=ack_policy,
            graceful_timeout=graceful_timeout,
            logger=make_logger_state(logger=logger, log_level=logging.INFO, default_storage_cls=_LoggerStorage),
            extra_context={"broker": self},
            id_generator=id_generator,
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types, serializer=serializer, context=context or ContextRepo()
            ),
        )
        config.queues = queues
        super().__init__(
            config=config,
            routers=routers,
            specification=BrokerSpec(
                url=[f"rocketmq://{name_servers or ''}"],
                protocol="rocketmq",
                protocol_version="4.9",
                description=None,
                tags=list(tags),
                security=None,
            ),
        )
        self._name_servers = name_servers
        self._group = group
        self._send_timeout_s = send_timeout_s
        self._client_options = client_options or {}

    async def _connect(self) -> triomq.aio.Client:
        client = await triomq.aio.open_client(self._name_servers, **self._client_options)
        config = self.config.broker_config
        config.client = client
        config.producer.sender = client.producer(self._group, send_timeout_s=self._send_timeout_s)
        config.producer.serializer = config.fd_config._serializer  # noqa: SLF001
        config.producer.codec = config.broker_codec or config.producer.codec
        return client

    async def start(self) -> None:
        """Connect, and start subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop subscribers, and close the client."""
        await super().stop(exc_type, exc_val, exc_tb)
        client, self._connection = self._connection, None
        self.config.broker_config.client = self.config.broker_config.producer.sender = None
        if client is not None:
            await client.aclose()

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - FastStream's name
        """Whether a name server answers."""
        if self._connection is None:
            return False
        with anyio.move_on_after(timeout):
            try:
                await self._connection.admin.cluster_info()
            except triomq.MQError:
                return False
            return True
        return False

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> triomq.SendResult | None:
        """Send a message; it is stored when this returns.

        Args:
            message: bytes, text, or an object that FastStream encodes as JSON.
            topic: the topic to send to.
            options: tags, keys, headers, a delay: all of :class:`PublishOptions`.

        Raises:
            MQError: it could not be sent.
        """
        command = _command(self.config, message, topic=topic, **options)
        sent: triomq.SendResult | None = await self._basic_publish(command, producer=self._producer)
        return sent

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str, tags: str | None = None, headers: dict[str, str] | None = None
    ) -> triomq.SendResult | None:
        """Send several messages in one request, up to 4 MiB in all; they are stored consecutively in one queue."""
        command = _command(self.config, *messages, topic=topic, tags=tags, headers=headers)
        sent: triomq.SendResult | None = await self._basic_publish_batch(command, producer=self._producer)
        return sent

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        timeout: float = 3.0,  # noqa: ASYNC109 - FastStream's name
        *,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> ReceivedStreamMessage:
        """Send a message, and wait for its handler's result.

        Raises:
            TimeoutError: no reply arrived in time.
        """
        options = {"tags": tags, "headers": headers, "correlation_id": correlation_id, "timeout_s": timeout}
        command = _command(self.config, message, topic=topic, _publish_type=PublishType.REQUEST, **options)
        reply: ReceivedStreamMessage = await self._basic_request(command, producer=self._producer)
        return reply


class _MemoryProducer(RocketMQProducer):
    """Passes messages to the subscribers of brokers, without a server."""

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
