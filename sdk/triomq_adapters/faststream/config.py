"""The state that a broker shares with its subscribers and publishers."""

from __future__ import annotations

from faststream._internal.configs import BrokerConfig

import triomq.aio
from triomq_adapters.faststream.messages import not_connected


class RocketMQBrokerConfig(BrokerConfig):
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
            raise not_connected()
        return self.client
