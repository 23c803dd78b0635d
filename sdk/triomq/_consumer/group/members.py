"""Who the members of a group are, and which queues they have: asked of brokers."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio

from triomq._cluster.routes import Routes
from triomq._consumer.group.expected_members import ExpectedMembers
from triomq._message.message import MessageQueue
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.answers import checked, short_body_of
from triomq._transport.link import Link
from triomq._transport.links import Links
from triomq._transport.peer_log import PeerLog
from triomq.errors import MQError, RequestTimeout
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ConsumerIdList,
    GetConsumerListByGroupRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
)
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.rebalance")

STILL_HAVE_TIMEOUT_S: Final = 1.0
"""How long another member may take to say which queues it has; one that does not answer gets no more time."""

MEMBERS_TIMEOUT_S: Final = 3.0
"""How long a broker may take to list the members (``mqClientApiTimeout``)."""

SILENT_S: Final = 20.0
"""For how long a broker that let a request time out is asked last, or not at all."""


class Members:
    """Asks brokers for the members of a group.

    Args:
        group: the group's name.
        routes: where topics live.
        links: the links to brokers.
        chance: chooses the broker to ask.
    """

    def __init__(self, group: str, routes: Routes, links: Links, chance: random.Random) -> None:
        self._group = group
        self._routes = routes
        self._links = links
        self._chance = chance
        self._lines = PeerLog(log)  # a round is repeated every second, and may ask all brokers for each topic
        self._silent_since: dict[str, float] = {}
        """When a broker has last let a request time out, on trio's clock."""
        self._round_s = 0.0
        """When this round began, on trio's clock."""
        self._listed: dict[str, list[str]] = {}
        """Broker -> the members that it has listed in this round, when all were asked."""
        self._expected = ExpectedMembers()
        self.expects_more = False
        """Whether the members that were returned last include some that are expected."""

    def begin_round(self) -> None:
        """Begin another round: in each, a broker that is silent is waited for once, and not at each topic; and when all
        brokers are asked, each is asked once."""
        self._round_s = trio.current_time()
        self._listed.clear()

    @contextmanager
    def following(self, topics: Callable[[], Collection[str]]) -> Iterator[None]:
        """Have the routes of these topics refreshed when the connection to one of their brokers is lost."""

        def lost(link: Link) -> None:
            self._expected.broker_lost(link.address, trio.current_time())
            # The first connection to a broker belongs to no loss before, although others of the topic have been lost.
            again = not link.has_received and self._expected.has_come_back(link.address)
            for topic in topics():
                self._routes.note_cut_off(topic, link.address, again=again)

        def opened(link: Link) -> None:
            self._expected.broker_connected(link.address, trio.current_time())
            for topic in topics():
                self._routes.note_connected(topic, link.address)

        self._links.lost.append(lost)
        self._links.opened.append(opened)
        try:
            yield
        finally:
            self._links.lost.remove(lost)
            self._links.opened.remove(opened)

    async def of(self, topic: str) -> list[str] | None:
        """The group's client ids, from the first broker of the topic that answers; None if none does.

        The first broker to ask is chosen at random, as upstream does, to spread the load.
        """
        try:
            route = await self._routes.for_subscribing(topic)
        except MQError as error:
            log.info("no members of %s for %s: %s", self._group, topic, error.reason)
            return None
        # Slaves know the members too: they are asked if no master of the topic answers.
        addresses = route.one_of_each_broker(self._links.is_down)
        self._chance.shuffle(addresses)
        others = [each for of_set in route.addresses.values() for each in of_set.values() if each not in addresses]
        for address in sorted([*addresses, *others], key=self._asked_last):
            if self._silent_since.get(address, -math.inf) >= self._round_s:
                continue
            try:
                return self._with_expected(await self._ask(address), [address])
            except MQError as error:
                self._lines.write(
                    logging.INFO,
                    address,
                    "did not list the members of %s: %s",
                    self._group,
                    error.reason,
                    kind=type(error),
                )
        return None

    async def of_all_brokers(self, topic: str) -> list[str] | None:
        """The group's client ids from all brokers of a topic together, or as :meth:`of` if none answers.

        Brokers that have just come into the route list only the members that have noticed.
        """
        route = self._routes.known(topic)
        addresses = route.one_of_each_broker(self._links.is_down) if route is not None else []
        found: Counter[str] = Counter()
        answered: list[str] = []

        @trio.lowlevel.enable_ki_protection
        async def ask(address: str) -> None:
            nonlocal found
            try:
                listed = self._listed.get(address)
                if listed is None:
                    listed = self._listed[address] = await self._ask(address)
            except MQError as error:
                log.debug("%s did not list the members of %s: %s", address, self._group, error.reason)
            else:
                found |= Counter(listed)  # one that is listed twice by a broker stays so
                answered.append(address)

        async with open_plain_nursery() as nursery:
            for address in addresses:
                if not (self._links.is_down(address) or self._is_silent(address)):
                    nursery.start_soon(ask, address)
        listed = list(found.elements())
        return self._with_expected(listed, answered) if listed else await self.of(topic)

    def _with_expected(self, listed: list[str], addresses: Collection[str]) -> list[str]:
        """The members that brokers list, with those that are expected there."""
        expected = self._expected.missing_from(listed, addresses, trio.current_time())
        self.expects_more = bool(expected)
        if expected:
            self._lines.write(
                logging.INFO,
                next(iter(addresses)),
                "has come back and lists %d members of %s; %d more are expected",
                len(set(listed)),
                self._group,
                len(expected),
            )
        return [*listed, *expected]

    async def still_have(self, owners: Mapping[MessageQueue, str]) -> set[MessageQueue]:
        """Those of some queues that certain members have still; one that does not say so has none.

        Args:
            owners: queue -> the member.
        """
        found: set[MessageQueue] = set()

        @trio.lowlevel.enable_ki_protection
        async def ask(member: str, queues: Collection[MessageQueue]) -> None:
            found.update((await self._queues_of(member, next(iter(queues)))).intersection(queues))

        # At each queue's broker, since a member may not know the others.
        asked: defaultdict[tuple[str, str, str], list[MessageQueue]] = defaultdict(list)
        for queue, member in owners.items():
            asked[member, queue.broker_name, queue.topic].append(queue)
        # Around all, since a connection may have to be opened first.
        with trio.move_on_after(STILL_HAVE_TIMEOUT_S):
            async with open_plain_nursery() as nursery:
                for (member, _, _), queues in asked.items():
                    nursery.start_soon(ask, member, queues)
        return found

    async def _queues_of(self, member: str, queue: MessageQueue) -> set[MessageQueue]:
        """What a member has of a queue's topic, as far as it says so to the queue's broker."""
        namespace, route = self._routes.namespace, self._routes.known(queue.topic)
        address = route.master(queue.broker_name) if route is not None else None
        if address is None or self._is_silent(address):
            return set()
        header = GetConsumerStatusRequest(topic=namespace.wrap(queue.topic), group=self._group, client_addr=member)
        try:
            link = await self._links.get(address)
            request = Command.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
            answer = await link.request(request, STILL_HAVE_TIMEOUT_S)
            what = f"the queues of {member}"
            table = short_body_of(GetConsumerStatusBody, checked(answer, what, address), what, address).consumer_table
        except MQError as error:
            log.debug("%s does not say which queues %s has: %s", address, member, error)
            return set()
        return {namespace.unwrap_queue(each) for each in table.get(member, ())}

    def _asked_last(self, address: str) -> tuple[bool, bool]:
        """A key to sort by: one that is silent would be waited for at each topic, and one that has just come back does not
        list all members yet."""
        return self._is_silent(address), self._expected.is_incomplete(address, trio.current_time())

    def _is_silent(self, address: str) -> bool:
        since = self._silent_since.get(address)
        return since is not None and trio.current_time() - since < SILENT_S

    async def _ask(self, address: str) -> list[str]:
        header = GetConsumerListByGroupRequest(consumer_group=self._group)
        request = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        try:
            link = await self._links.get(address)
            answer = await link.request(request, MEMBERS_TIMEOUT_S)
        except RequestTimeout:
            self._silent_since[address] = trio.current_time()
            raise
        what = f"the members of group {self._group}"
        return short_body_of(ConsumerIdList, checked(answer, what, address), what, address).consumer_id_list
