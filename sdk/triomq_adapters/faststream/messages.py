"""Conversion of FastStream's messages to RocketMQ's, and their acknowledgement by handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import attrs
from faststream import Context
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.message import StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand

import triomq
import triomq.aio
from triomq_protocol.names import REPLY_TO_CLIENT, RESERVED_PROPERTIES

CONTENT_TYPE, CORRELATION_ID, REPLY_TO, EMPTY = "content-type", "correlation_id", "reply_to", "triomq-empty"
"""Properties that are not headers; the last marks an empty body, which brokers refuse."""

REQUEST = "(the client that asked)"
"""The destination of the reply to a request; no topic can have this name."""


@attrs.define(eq=False)
class Incoming:
    """A message as it was received, or as a test created it; middlewares may change it.

    Args:
        topic: the topic it was received from.
        body: the payload.
        properties: all properties.
        message_id: the sender's id.
        tags: the tag.
        delivery: takes the answer; None: it needs none.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str]
    message_id: str
    tags: str | None = None
    delivery: triomq.aio.Delivery | None = None


def incoming(message: triomq.ReceivedMessage, delivery: triomq.aio.Delivery | None = None) -> Incoming:
    """Convert a received message."""
    return Incoming(message.topic, message.body, message.properties, message.message_id, message.tags, delivery)


class ReceivedStreamMessage(StreamMessage[Any]):
    """A message, or with ``batch=True`` several, as a handler gets them; ``raw_message`` is RocketMQ's."""

    async def ack(self) -> None:
        """Mark it as consumed."""
        await self._answer(triomq.aio.Delivery.done)
        await super().ack()

    async def nack(self) -> None:
        """Mark it as failed: it is delivered again later."""
        await self._answer(triomq.aio.Delivery.later)
        await super().nack()

    async def reject(self) -> None:
        """Drop it."""
        await self._answer(triomq.aio.Delivery.done)
        await super().reject()

    async def _answer(self, how: Callable[[triomq.aio.Delivery], Awaitable[None]]) -> None:
        for each in self.raw_message if isinstance(self.raw_message, tuple) else (self.raw_message,):
            if each.delivery is not None and not each.delivery.answered:
                await how(each.delivery)


RocketMQMessage = Annotated[ReceivedStreamMessage, Context("message")]
"""The annotation with which a handler gets its message."""


async def parse_message(raw: Incoming) -> ReceivedStreamMessage:
    """Convert a message for a handler."""
    return _parsed(raw, raw.body if EMPTY not in raw.properties else b"", raw)


async def parse_batch(raw: tuple[Incoming, ...]) -> ReceivedStreamMessage:
    """Convert several messages for one call of a handler; headers and the like are those of the first."""
    bodies = [each.body if EMPTY not in each.properties else b"" for each in raw]
    message = _parsed(raw, bodies, raw[0])
    message.batch_headers = [headers_of(each.properties) for each in raw]
    return message


def _parsed(raw: object, body: object, first: Incoming) -> ReceivedStreamMessage:
    properties = first.properties
    return ReceivedStreamMessage(
        raw_message=raw,
        body=body,
        headers=headers_of(properties),
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID),
        reply_to=properties.get(REPLY_TO) or (REQUEST if REPLY_TO_CLIENT in properties else ""),
        message_id=first.message_id,
    )


def headers_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The user's properties."""
    return {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES and name != EMPTY}


async def decode(message: StreamMessage[Any]) -> Any:
    """Decode the body by its content type."""
    return decode_message(message)


async def decode_batch(message: StreamMessage[Any]) -> Any:
    """Decode the bodies of a batch, each by its content type."""
    return [decode_message(await parse_message(each)) for each in message.raw_message]


class PublishOptions(TypedDict, total=False):
    """Options of a message that is published.

    Attributes:
        tags: one tag for consumers to filter by.
        keys: one or several keys.
        delay_level: 1 (1 s) to 18 (2 h).
        headers: user properties.
        correlation_id: default: a new one.
        reply_to: the topic to which the handler's result is sent.
    """

    tags: str | None
    keys: str | Sequence[str] | None
    delay_level: int
    headers: dict[str, str] | None
    correlation_id: str | None
    reply_to: str


class RocketMQPublishCommand(BatchPublishCommand):
    """A message or batch to publish; created by ``publish`` and from the results of handlers.

    Args:
        body: the first, or only, message.
        bodies: the further messages of a batch.
        topic: the topic to send to.
        tags: this, ``keys`` and ``delay_level``: as in :class:`PublishOptions`.
        timeout_s: how many seconds a request may take.
        delivery: the request that this replies to.
        options: the rest of :class:`PublishOptions`.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        delay_level: int = 0,
        timeout_s: float = 3.0,
        delivery: triomq.aio.Delivery | None = None,
        _publish_type: PublishType = PublishType.PUBLISH,
        **options: Any,
    ) -> None:
        super().__init__(body, *bodies, destination=topic, _publish_type=_publish_type, **options)
        self.tags = tags
        self.keys = keys
        self.delay_level = delay_level
        self.timeout_s = timeout_s
        self.delivery = delivery

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketMQPublishCommand:
        """Create a command from a handler's result."""
        if isinstance(cmd, RocketMQPublishCommand):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


def make_command(config: Any, *bodies: Any, **options: Any) -> RocketMQPublishCommand:
    """Create the command of a call of ``publish`` or ``request``; its correlation id is new by default."""
    correlation_id = options.pop("correlation_id", None) or config.id_generator()
    return RocketMQPublishCommand(*bodies, correlation_id=correlation_id, **options)


def not_connected() -> triomq.errors.InvalidCall:
    """The error of a call that needs the client."""
    return triomq.errors.InvalidCall("the broker is not connected: await broker.connect() or start() first")


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends commands with the client's producer.

    Args:
        parser: the user's parser.
        decoder: the user's decoder.
    """

    uses_server = True
    """Whether messages go to a broker, from which subscribers must pull them."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self.sender: triomq.aio.Producer | None = None

    @property
    def _sender(self) -> triomq.aio.Producer:
        if self.sender is None:
            raise not_connected()
        return self.sender

    async def message(self, cmd: RocketMQPublishCommand) -> triomq.Message:
        """The message of a command."""
        return self._message(cmd, *await self.codec.encode(cmd.body, self.serializer))

    async def messages(self, cmd: RocketMQPublishCommand) -> list[triomq.Message]:
        """The messages of a batch."""
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(cmd.batch_bodies, self.serializer)
        else:
            encoded = [await self.codec.encode(body, self.serializer) for body in cmd.batch_bodies]
        return [self._message(cmd, *each) for each in encoded]

    def _message(self, cmd: RocketMQPublishCommand, data: bytes, content_type: str | None) -> triomq.Message:
        properties = {name: str(value) for name, value in cmd.headers.items() if value is not None}
        own = {CONTENT_TYPE: content_type, CORRELATION_ID: cmd.correlation_id, REPLY_TO: cmd.reply_to}
        properties |= {name: value for name, value in own.items() if value}
        if not data:
            data, properties[EMPTY] = b"\0", "true"
        return triomq.Message(
            cmd.destination,
            data,
            tags=cmd.tags,
            keys=cmd.keys,
            properties=properties,
            delay_level=cmd.delay_level,
        )

    async def publish(self, cmd: RocketMQPublishCommand) -> triomq.SendResult | None:
        """Send the message, or reply with it; returns None for a reply."""
        message = await self.message(cmd)
        if cmd.delivery is not None:
            await cmd.delivery.reply(message.body, properties=message.properties)
            return None
        return await self._sender.send(message)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> triomq.SendResult | None:
        """Send the batch in one request."""
        if not cmd.batch_bodies:
            return None
        return await self._sender.send_batch(await self.messages(cmd))

    async def request(self, cmd: RocketMQPublishCommand) -> Incoming:
        """Send the message, and wait for the reply."""
        message = await self.message(cmd)
        try:
            return incoming(await self._sender.request(message, cmd.timeout_s))
        except triomq.errors.RequestTimeout as error:
            raise TimeoutError(str(error)) from error  # as FastStream's other brokers do
