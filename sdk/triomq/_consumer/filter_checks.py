"""Asks brokers to check a filter before it is subscribed (docs/protocol/consumer.md §2.2, §6.1; code 46)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from triomq._cluster.heartbeats import Heartbeats
from triomq._cluster.routes import Routes
from triomq._message.subscription import SQL92_VERSION, Subscription
from triomq._transport.answers import checked
from triomq._transport.link import Link
from triomq._transport.links import Links
from triomq.errors import ConnectFailed, UnsupportedRequest
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import CheckClientConfigBody
from triomq_protocol.wire.command import Command

CHECK_TIMEOUT_S: Final = 3.0
"""How long a broker may take (``mqClientApiTimeout``)."""


class FilterChecks:
    """Checks filters for one client.

    Args:
        client_id: the id under which brokers know the client.
        routes: where topics live.
        links: the links to brokers.
        heartbeats: their answers contain the brokers' versions.
        chance: chooses the broker to ask.
    """

    def __init__(
        self, client_id: str, routes: Routes, links: Links, heartbeats: Heartbeats, chance: random.Random
    ) -> None:
        self._client_id = client_id
        self._routes = routes
        self._links = links
        self._heartbeats = heartbeats
        self._chance = chance

    async def check(self, group: str, subscription: Subscription) -> None:
        """Make sure that a topic's brokers support a subscription's filter.

        Raises:
            UnsupportedRequest: a broker is too old.
            SubscriptionRefused: the expression cannot be parsed.
            BrokerFault: such filters are switched off there.
            MQError: no broker could be asked.
        """
        route = await self._routes.for_subscribing(subscription.topic)
        # Versions arrive in answers to heartbeats, and a broker that was not known before may not have received one.
        await self._heartbeats.beat()
        brokers = route.one_of_each_broker(self._links.is_down)
        for address in brokers:
            link = self._links.ready(address)
            if link is not None and link.peer_version < SQL92_VERSION:
                raise UnsupportedRequest(
                    f"the broker does not filter topic {subscription.topic} by {subscription.kind}", address=address
                )
        self._chance.shuffle(brokers)
        others = [each for of_set in route.addresses.values() for each in of_set.values() if each not in brokers]
        link = await self._first_reachable([*brokers, *others])
        body = CheckClientConfigBody(
            client_id=self._client_id, group=group, subscription_data=subscription.data(self._routes.namespace)
        ).encode()
        answer = await link.request(Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body), CHECK_TIMEOUT_S)
        checked(answer, f"the filter {subscription.expression!r} of topic {subscription.topic}", link.address)

    async def _first_reachable(self, addresses: Sequence[str]) -> Link:
        for address in addresses[:-1]:
            try:
                return await self._links.get(address)
            except ConnectFailed:
                continue
        return await self._links.get(addresses[-1])
