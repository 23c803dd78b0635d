"""A FastStream broker: subscribers are members of consumer groups, publishers send to topics.

::

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

A handler that returns has consumed its message; when it raises, the message is delivered again later, and is a dead letter of the
group after 16 times. ``TestRocketMQBroker`` runs handlers without a server.
"""

from triomq_adapters.faststream.broker import RocketMQBroker
from triomq_adapters.faststream.messages import PublishOptions, RocketMQMessage
from triomq_adapters.faststream.publisher import RocketMQPublisher
from triomq_adapters.faststream.router import RocketMQRoute, RocketMQRoutePublisher, RocketMQRouter
from triomq_adapters.faststream.subscriber import RocketMQSubscriber
from triomq_adapters.faststream.testing import TestRocketMQBroker

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
