"""Chooses the broker of a set for each queue's next pull (docs/protocol/consumer.md §2).

Brokers suggest a broker id with every answer, per queue: a master that would have to read from disk
sends its reader to a slave, and the slave sends it back.  Pure: addresses, brokers that are down, and the
timer are arguments.  Upstream: ``PullAPIWrapper``, ``MQClientInstance.findBrokerAddressInSubscribe``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import attrs
import trio
from cachetools import TTLCache

from triomq._error_text import shown
from triomq._message.message import MessageQueue
from triomq.errors import InvalidCall
from triomq_protocol.names import MASTER_ID

SUGGESTION_TTL_S: Final = 60.0
"""A suggestion that no answer has confirmed for this time is dropped: the master knows best where to read now."""

SUGGESTIONS_MAX: Final = 10_000
"""The most queues whose suggestions a consumer remembers; others follow the suggestion of their next answer."""

SILENT_MAX: Final = 1_000
"""The most silent brokers that a consumer remembers."""

SILENT_S: Final = 5.0
"""How long a broker that has not answered in time is skipped while another one is available."""


class ReadPreference(enum.Enum):
    """Which brokers to pull from."""

    SUGGESTED = "suggested"
    """The default: from the broker that brokers suggest, or from another one if it cannot be reached."""

    MASTER = "master"
    """Only from the master, which has the newest messages."""

    SLAVE = "slave"
    """Only from slaves, to relieve the master."""

    PREFER_SLAVE = "prefer_slave"
    """From a slave; from the master only if no slave can be reached."""


@attrs.frozen
class OnlyBroker:
    """A preference for only the broker with a given id in each set.

    Args:
        broker_id: the id; 0 for masters.
    """

    broker_id: int

    @property
    def value(self) -> str:
        """Its text in errors, like a named preference's."""
        return f"broker id {self.broker_id}"


Preference = ReadPreference | OnlyBroker


def read_preference_of(value: ReadPreference | str | int) -> Preference:
    """The preference for a name or a broker id.

    Raises:
        InvalidCall: there is no preference of this name, or no broker can have the id.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise InvalidCall(f"read_preference is {shown(value)}, and a broker's id is at least 0")
        return OnlyBroker(value)
    try:
        return ReadPreference(value)
    except ValueError:
        known = ", ".join(each.value for each in ReadPreference)
        raise InvalidCall(f"no read_preference {shown(value)}; there are {known}, and broker ids") from None


@attrs.frozen
class Node:
    """A broker found for a pull.

    Args:
        address: ``host:port``.
        broker_id: 0 for a master.
    """

    address: str
    broker_id: int

    @property
    def is_slave(self) -> bool:
        """Whether offsets must not be committed there."""
        return self.broker_id != MASTER_ID


_node = lru_cache(1024)(Node)


def find(
    addresses: Mapping[int, str],
    broker_id: int,
    *,
    only_this: bool = False,
    slaves_first: bool = False,
    is_down: Callable[[str], bool] | None = None,
) -> Node | None:
    """The address for a wanted broker id, or the nearest one (docs/protocol/consumer.md §2.3).

    First the wanted id, for a slave then the next id, then any by ascending id.  An address that is known
    to be down is skipped while another is available; if all are down, the first choice is returned.

    Args:
        addresses: broker id -> address, of one broker name.
        broker_id: the wanted id.
        only_this: accept only the wanted id, or for a slave the next one.
        slaves_first: try the master last among the others.
        is_down: whether an address could not be reached a moment ago.
    """
    wanted = [broker_id] if broker_id == MASTER_ID else [broker_id, broker_id + 1]
    if not only_this:
        wanted += sorted(addresses, key=lambda each: (slaves_first and each == MASTER_ID, each))
    nodes = [_node(addresses[each], each) for each in wanted if each in addresses]
    for node in nodes:
        if is_down is None or not is_down(node.address):
            return node
    return nodes[0] if nodes else None


class NodeCache:
    """The brokers' last suggestion for each queue, and the brokers that were recently silent.

    One per consumer, never shared between groups.

    Args:
        preference: decides whether the suggestions are followed.
        timer: the clock by which suggestions and silence expire.
    """

    def __init__(
        self,
        preference: Preference = ReadPreference.SUGGESTED,
        timer: Callable[[], float] = trio.current_time,
    ) -> None:
        self.preference = preference
        self._suggested: TTLCache[MessageQueue, int] = TTLCache(SUGGESTIONS_MAX, SUGGESTION_TTL_S, timer)
        self._silent: TTLCache[str, bool] = TTLCache(SILENT_MAX, SILENT_S, timer)
        # Whether nothing was recorded since both were found empty: almost always, and then no pull reads them.
        self._empty = True

    def allowed(self, addresses: Mapping[int, str]) -> Mapping[int, str]:
        """The addresses of a broker that the preference admits."""
        if self.preference is ReadPreference.MASTER:
            return {each: address for each, address in addresses.items() if each == MASTER_ID}
        if self.preference is ReadPreference.SLAVE:
            return {each: address for each, address in addresses.items() if each != MASTER_ID}
        if isinstance(self.preference, OnlyBroker):
            return {each: address for each, address in addresses.items() if each == self.preference.broker_id}
        return addresses

    def choose(self, queue: MessageQueue, addresses: Mapping[int, str], *, skip: Callable[[str], bool]) -> Node | None:
        """The broker to pull from next; None if the preference admits none.

        Args:
            queue: the queue to pull.
            addresses: broker id -> address, of the queue's broker name.
            skip: whether to skip an address while another is available.
        """
        if self._empty and self.preference is ReadPreference.SUGGESTED:
            # Almost all pulls: there is nothing to compare.
            master = addresses.get(MASTER_ID)
            if master is not None and not skip(master):
                return _node(master, MASTER_ID)

        def down(address: str) -> bool:
            return skip(address) or self.is_silent(address)

        self._empty = not self._suggested and not self._silent
        slaves_first = self.preference is ReadPreference.PREFER_SLAVE
        return find(self.allowed(addresses), self.wanted(queue), slaves_first=slaves_first, is_down=down)

    def others(self, node: Node, addresses: Mapping[int, str]) -> list[Node]:
        """The other brokers that the preference admits, in the order in which they are asked.

        Args:
            node: the broker that was asked.
            addresses: broker id -> address, of the queue's broker name.
        """
        slaves_first = self.preference is ReadPreference.PREFER_SLAVE
        allowed = self.allowed(addresses)
        ids = sorted(allowed, key=lambda each: (slaves_first and each == MASTER_ID, each))
        return [_node(allowed[each], each) for each in ids if allowed[each] != node.address]

    def wanted(self, queue: MessageQueue) -> int:
        """The broker id the next pull of a queue should go to; the master as long as nothing else was suggested."""
        if self.preference is ReadPreference.MASTER:
            return MASTER_ID
        if isinstance(self.preference, OnlyBroker):
            return self.preference.broker_id
        suggested = self._suggested.get(queue, MASTER_ID)
        if self.preference is ReadPreference.SUGGESTED:
            return suggested
        return suggested or 1

    def stays(self, node: Node, suggested: int) -> bool:
        """Whether the broker that has just answered, and suggested this id, would certainly be chosen again."""
        return (
            node.broker_id == suggested
            and self.preference is ReadPreference.SUGGESTED
            and (self._empty or not self._silent)
        )

    def suggest(self, queue: MessageQueue, broker_id: int) -> None:
        """Record the suggestion of an answer: called after every parsed answer, whatever its status."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
            self._empty = False
        elif not self._empty:
            # No record means the master, and costs nothing.
            self._suggested.pop(queue, None)

    def record_silence(self, address: str) -> None:
        """Record that a broker did not answer in time: for a while, others are asked first."""
        self._silent[address] = True
        self._empty = False

    def record_answer(self, address: str) -> None:
        """Record that a broker answered."""
        if not self._empty:
            self._silent.pop(address, None)

    def is_silent(self, address: str) -> bool:
        """Whether a broker recently failed to answer."""
        return address in self._silent

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue's suggestion: a pull failed there, or its route changed."""
        self._suggested.pop(queue, None)

    def forget_gone(self, topic: str, addresses: Mapping[str, Mapping[int, str]]) -> None:
        """Drop suggestions of brokers that a topic's new route does not have."""
        for queue in list(self._suggested):
            if queue.topic == topic and self._suggested.get(queue) not in addresses.get(queue.broker_name, {}):
                self.forget(queue)

    def __len__(self) -> int:
        return len(self._suggested)
