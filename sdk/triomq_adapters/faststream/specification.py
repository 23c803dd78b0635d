"""What AsyncAPI shows of subscribers and publishers."""

from __future__ import annotations

from typing import Any

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec


def _schema(shown: Any, kind: type[Any], description: str | None, extra: str = "") -> dict[str, Any]:
    """The description of a subscriber or publisher for AsyncAPI."""
    message = Message(title=f"{shown.name}:Message", payload=resolve_payloads(shown.get_payloads(), extra))
    operation = Operation(message=message, bindings=None)
    return {shown.name: kind(address=shown.address, description=description, operation=operation, bindings=None)}


class _OfTopic:
    """The topic that is described."""

    topic = ""
    _outer_config: Any

    @property
    def address(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.topic}"


class RocketMQSubscriberSpecification(_OfTopic, SubscriberSpecification[Any, Any]):
    """The description of a subscriber."""

    @property
    def channel_labels(self) -> list[str]:
        """The parts of its name."""
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """The entry in AsyncAPI."""
        return _schema(self, SubscriberSpec, self.description)


class RocketMQPublisherSpecification(_OfTopic, PublisherSpecification[Any, Any]):
    """The description of a publisher."""

    @property
    def name(self) -> str:
        """Its title, or else a name made of the topic."""
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """The entry in AsyncAPI."""
        return _schema(self, PublisherSpec, self.config.description_, "Publisher")
