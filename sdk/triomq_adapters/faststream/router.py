"""Routers: the subscribers and publishers of one module of a program, which a broker includes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from faststream._internal.broker import BrokerRouter
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream._internal.constants import EMPTY as UNSET
from faststream.middlewares import AckPolicy

from triomq_adapters.faststream.config import RocketMQBrokerConfig
from triomq_adapters.faststream.endpoints import Endpoints


class RocketMQRouter(Endpoints, BrokerRouter[Any, Any]):
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
        config = RocketMQBrokerConfig(
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
