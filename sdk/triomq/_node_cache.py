"""Which broker of a set serves each queue's next pull (consumer.md §2).

Brokers suggest a broker id with every answer, per queue: a master that would have to read from disk
sends its reader to a slave, and the slave sends it back.  Pure: addresses and what is down are
arguments.  Upstream: ``PullAPIWrapper``, ``MQClientInstance.findBrokerAddressInSubscribe``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import attrs

from triomq._message import MessageQueue

MASTER = 0


SUGGESTION_TTL_S: Final = 60.0
"""A suggestion that no answer has confirmed for so long is dropped: the master knows best where to read now."""

UNWELL_S: Final = 5.0
"""How long a broker that has not answered in time is passed over as long as another one is left."""


class ReadPreference(enum.Enum):
    """From whom to pull."""

    SUGGESTED = "suggested"
    """The default. As the brokers suggest, and from whoever is left when that one cannot be reached."""

    MASTER = "master"
    """From the master and nobody else: what was sent a moment ago is there."""

    SLAVE = "slave"
    """From slaves and nobody else: the master is spared."""

    PREFER_SLAVE = "prefer_slave"
    """From a slave; from the master only when no slave can be reached."""


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
        return self.broker_id != MASTER


_node = lru_cache(1024)(Node)


def find(
    addresses: Mapping[int, str],
    broker_id: int,
    *,
    only_this: bool = False,
    slaves_first: bool = False,
    is_down: Callable[[str], bool] | None = None,
) -> Node | None:
    """The address for a wanted broker id, or the nearest one (consumer.md §2.3).

    First the wanted id, for a slave then the next id, then any by ascending id.  An address that is known
    to be down is passed over as long as another is left; if all are down, the first choice is returned.

    Args:
        addresses: broker id -> address, of one broker name.
        broker_id: the wanted id.
        only_this: no other id than the wanted one, or a slave's next, will do.
        slaves_first: of the others, the master comes last.
        is_down: whether an address could not be reached a moment ago.
    """
    wanted = [broker_id] if broker_id == MASTER else [broker_id, broker_id + 1]
    if not only_this:
        wanted += sorted(addresses, key=lambda each: (slaves_first and each == MASTER, each))
    nodes = [_node(addresses[each], each) for each in wanted if each in addresses]
    for node in nodes:
        if is_down is None or not is_down(node.address):
            return node
    return nodes[0] if nodes else None


class NodeCache:
    """The brokers' last suggestion for each queue, and who did not answer lately; one per consumer, never shared between groups.

    Args:
        preference: whether the suggestions are followed.
    """

    def __init__(self, preference: ReadPreference = ReadPreference.SUGGESTED) -> None:
        self.preference = preference
        self._suggested: dict[MessageQueue, tuple[int, float]] = {}
        self._unwell: dict[str, float] = {}

    def allowed(self, addresses: Mapping[int, str]) -> Mapping[int, str]:
        """Those of a broker's addresses that the preference admits."""
        if self.preference is ReadPreference.MASTER:
            return {each: address for each, address in addresses.items() if each == MASTER}
        if self.preference is ReadPreference.SLAVE:
            return {each: address for each, address in addresses.items() if each != MASTER}
        return addresses

    def choose(
        self, queue: MessageQueue, addresses: Mapping[int, str], now: float, *, skip: Callable[[str], bool]
    ) -> Node | None:
        """Whom to pull from next; None when the preference admits nobody.

        Args:
            queue: what is pulled.
            addresses: broker id -> address, of the queue's broker name.
            now: trio's clock.
            skip: whether an address is passed over as long as another is left.
        """

        if not self._unwell and self.preference is ReadPreference.SUGGESTED and queue not in self._suggested:
            # Nearly all pulls: nothing is to be weighed up.
            master = addresses.get(MASTER)
            if master is not None and not skip(master):
                return _node(master, MASTER)

        def down(address: str) -> bool:
            return skip(address) or self.is_unwell(address, now)

        slaves_first = self.preference is ReadPreference.PREFER_SLAVE
        wanted = self.wanted(queue, now)
        return find(self.allowed(addresses), wanted, slaves_first=slaves_first, is_down=down)

    def wanted(self, queue: MessageQueue, now: float = 0.0) -> int:
        """The broker id the next pull of a queue should go to; the master until somebody suggested otherwise."""
        if self.preference is ReadPreference.MASTER:
            return MASTER
        suggested, until = self._suggested.get(queue, (MASTER, now))
        if now > until:
            self.forget(queue)
            suggested = MASTER
        if self.preference is ReadPreference.SUGGESTED:
            return suggested
        return suggested or 1

    def stays(self, node: Node, suggested: int) -> bool:
        """Whether the broker that has just answered, and suggested this one, would be chosen again without any doubt."""
        return not self._unwell and self.preference is ReadPreference.SUGGESTED and node.broker_id == suggested

    def suggest(self, queue: MessageQueue, broker_id: int, now: float = 0.0) -> None:
        """Remember what an answer suggested: after every parsed answer, whatever its status."""
        if broker_id == MASTER:
            # Nothing remembered is the same as the master, and costs nothing.
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = (broker_id, now + SUGGESTION_TTL_S)

    def note_silence(self, address: str, now: float) -> None:
        """A broker did not answer in time: for a while, others are asked first."""
        self._unwell[address] = now + UNWELL_S

    def note_answer(self, address: str) -> None:
        """A broker answered."""
        if self._unwell:
            self._unwell.pop(address, None)

    def is_unwell(self, address: str, now: float) -> bool:
        """Whether a broker was silent a moment ago."""
        until = self._unwell.get(address)
        if until is None:
            return False
        if now < until:
            return True
        del self._unwell[address]
        return False

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue: it failed there, or its route changed."""
        self._suggested.pop(queue, None)

    def forget_gone(self, topic: str, addresses: Mapping[str, Mapping[int, str]]) -> None:
        """Drop suggestions that point to brokers a topic's new route does not have."""
        for queue, (broker_id, _) in list(self._suggested.items()):
            if queue.topic == topic and broker_id not in addresses.get(queue.broker_name, {}):
                del self._suggested[queue]

    def __len__(self) -> int:
        return len(self._suggested)
