"""The broker: connects a FastStream application to RocketMQ."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Unpack

import anyio
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY as UNSET
from faststream._internal.context import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import make_logger_state
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

import triomq
import triomq.aio
from triomq_adapters.faststream.config import RocketMQBrokerConfig
from triomq_adapters.faststream.endpoints import Endpoints
from triomq_adapters.faststream.logger import LoggerStorage
from triomq_adapters.faststream.messages import (
    PublishOptions,
    ReceivedStreamMessage,
    RocketMQProducer,
    make_command,
)


class RocketMQBroker(Endpoints, BrokerUsecase[Any, Any, Any]):
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
        config = RocketMQBrokerConfig(
            producer=RocketMQProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_dependencies=dependencies,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            ack_policy=ack_policy,
            graceful_timeout=graceful_timeout,
            logger=make_logger_state(logger=logger, log_level=logging.INFO, default_storage_cls=LoggerStorage),
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
        command = make_command(self.config, message, topic=topic, **options)
        sent: triomq.SendResult | None = await self._basic_publish(command, producer=self._producer)
        return sent

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str, tags: str | None = None, headers: dict[str, str] | None = None
    ) -> triomq.SendResult | None:
        """Send several messages in one request, up to 4 MiB in all; they are stored consecutively in one queue."""
        command = make_command(self.config, *messages, topic=topic, tags=tags, headers=headers)
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
        command = make_command(self.config, message, topic=topic, _publish_type=PublishType.REQUEST, **options)
        reply: ReceivedStreamMessage = await self._basic_request(command, producer=self._producer)
        return reply
