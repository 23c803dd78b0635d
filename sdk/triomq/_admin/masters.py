"""Requests to single masters: those of a topic, and the answer of one of them."""

from __future__ import annotations

from triomq._admin.topics import ADMIN_TIMEOUT_S
from triomq._cluster.routes import Routes
from triomq._transport.answers import checked
from triomq._transport.links import Links
from triomq.errors import BrokerNotFound
from triomq_protocol.names import MASTER_ID
from triomq_protocol.wire.command import Command


async def masters_of(routes: Routes, topic: str) -> tuple[dict[str, str], list[str]]:
    """The topic's masters by broker name, and the names of the broker sets that have none."""
    route = await routes.for_subscribing(topic)
    found = {name: addresses[MASTER_ID] for name, addresses in route.addresses.items() if MASTER_ID in addresses}
    if not found:
        names = sorted(route.addresses)
        have = "has" if len(names) == 1 else "have"
        raise BrokerNotFound(f"no master of {', '.join(names)}, which {have} topic {topic}, is registered")
    return found, sorted(route.addresses.keys() - found.keys())


async def ask_broker(links: Links, address: str, request: Command, what: str) -> Command:
    """The answer of one broker.

    Raises:
        MQError: it refuses, or cannot be reached.
    """
    link = await links.get(address, patient=False)
    return checked(await link.request(request, ADMIN_TIMEOUT_S), what, address)
