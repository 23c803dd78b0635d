"""A publisher: sends messages, and the results of handlers, to a topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherUsecase
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from triomq_adapters.faststream.messages import PublishOptions, RocketMQPublishCommand, make_command
from triomq_adapters.faststream.specification import RocketMQPublisherSpecification


class RocketMQPublisher(PublisherUsecase):
    """Sends to a topic; made by ``broker.publisher``."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: RocketMQPublisherSpecification,
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
        command = make_command(self._outer_config, *(message if self.batch else [message]), topic=topic, **options)
        return await self._publish(command, _extra_middlewares=())

    async def request(self, message: Any = None, topic: str = "", *, timeout: float = 3.0, **options: Any) -> Any:  # noqa: ASYNC109
        """Send a message and wait for the reply."""
        request = {"timeout_s": timeout, "_publish_type": PublishType.REQUEST}
        command = make_command(self._outer_config, message, topic=topic, **request, **options)
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
