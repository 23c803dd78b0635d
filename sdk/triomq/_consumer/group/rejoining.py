"""A member's return to its group after a lost connection to a broker.

A broker removes a member from its groups when their connection ends, and other members may take over its queues:
after a network failure, or while this process is stopped or the machine is suspended.  So with every lost connection the
member's queues are in doubt, and no offset is committed until it has rejoined: heartbeats are answered, a later
rebalance has left the queue here, and the group's offset has been read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from triomq._cluster.routes import Routes
from triomq._consumer.group.rebalance import Rebalance
from triomq._consumer.group.shares import RETRY_AFTER_S
from triomq._transport.link import Link
from triomq._transport.links import Links


class Rejoining:
    """Reports to the brokers after every lost connection, and then rebalances.

    Args:
        routes: where brokers are.
        links: the links to brokers.
        rebalance: the member's.
        doubt: puts the member's queues in doubt; returns whether others may take them over.
        report: tells the brokers that the member is there; awaited before the rebalance.

    Attributes:
        doubted_s: when the queues were last put in doubt, on trio's clock.
    """

    def __init__(
        self,
        routes: Routes,
        links: Links,
        rebalance: Rebalance,
        *,
        doubt: Callable[[], bool],
        report: Callable[[], Awaitable[None]],
    ) -> None:
        self._routes = routes
        self._links = links
        self._rebalance = rebalance
        self._doubt = doubt
        self._report = report
        self.doubted_s = 0.0
        self._cut_off: set[str] = set()
        """The addresses of brokers that were lost and are not connected again."""
        self._losses = 0
        self._must_rejoin = trio.Event()
        self._certain_from: int | None = 0
        """The first round of the rebalance that began after the member has rejoined; None: it has not."""
        links.lost.append(self._link_lost)
        links.opened.append(self._link_opened)

    def close(self) -> None:
        """Follow the links no more."""
        self._links.lost.remove(self._link_lost)
        self._links.opened.remove(self._link_opened)

    @property
    def is_certain(self) -> bool:
        """Whether the current round of the rebalance began after the member has rejoined."""
        return self._certain_from is not None and self._rebalance.rounds >= self._certain_from

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """After every lost connection, report to the brokers, then rebalance."""
        while True:
            await self._must_rejoin.wait()
            self._must_rejoin = trio.Event()
            losses = self._losses
            await self._report()
            if losses == self._losses:
                self._certain_from = self._rebalance.rounds + 1
                self._rebalance.wake()
            else:
                await trio.sleep(RETRY_AFTER_S)

    def _link_lost(self, link: Link) -> None:
        if any(link.address in broker.values() for broker in self._routes.broker_addresses().values()):
            self._cut_off.add(link.address)
            self._losses += 1
            self._begin()

    def _link_opened(self, link: Link) -> None:
        # Again, and before anything is sent: this broker does not know the queues that were taken meanwhile.
        if link.address in self._cut_off:
            self._cut_off.discard(link.address)
            self._begin()

    def _begin(self) -> None:
        if self._doubt():
            self._certain_from = None
            self.doubted_s = trio.current_time()
            self._must_rejoin.set()
