"""Which broker of a set serves each queue's next pull (consumer.md §2).

Brokers suggest a broker id with every answer, per queue: a master that would have to read from disk
sends its reader to a slave, and the slave sends it back.  Pure: addresses and what is down are
arguments.  Upstream: ``PullAPIWrapper``, ``MQClientInstance.findBrokerAddressInSubscribe``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import attrs

from triomq._message import MessageQueue

MASTER = 0


class ReadPreference(enum.Enum):
    """From whom to pull when the broker's suggestion is not to be followed."""

    SUGGESTED = "suggested"
    """As the brokers suggest: the default."""

    MASTER = "master"
    """From the master; from a slave only when the master cannot be reached."""

    SLAVE = "slave"
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


def find(
    addresses: Mapping[int, str],
    broker_id: int,
    *,
    only_this: bool = False,
    is_down: Callable[[str], bool] | None = None,
) -> Node | None:
    """The address for a wanted broker id, or the nearest one (consumer.md §2.3).

    First the wanted id, for a slave then the next id, then any by ascending id.  An address that is known
    to be down is passed over as long as another is left; if all are down, the first choice is returned.

    Args:
        addresses: broker id -> address, of one broker name.
        broker_id: the wanted id.
        only_this: no other id than the wanted one, or a slave's next, will do.
        is_down: whether an address could not be reached a moment ago.
    """
    wanted = [broker_id] if broker_id == MASTER else [broker_id, broker_id + 1]
    if not only_this:
        wanted += sorted(addresses)
    nodes = [Node(addresses[each], each) for each in wanted if each in addresses]
    for node in nodes:
        if is_down is None or not is_down(node.address):
            return node
    return nodes[0] if nodes else None


class NodeCache:
    """The brokers' last suggestion for each queue; one per consumer, never shared between groups.

    Args:
        preference: whether the suggestions are followed.
    """

    def __init__(self, preference: ReadPreference = ReadPreference.SUGGESTED) -> None:
        self.preference = preference
        self._suggested: dict[MessageQueue, int] = {}

    def wanted(self, queue: MessageQueue) -> int:
        """The broker id the next pull of a queue should go to; the master until somebody suggested otherwise."""
        if self.preference is ReadPreference.MASTER:
            return MASTER
        suggested = self._suggested.get(queue, MASTER)
        if self.preference is ReadPreference.SLAVE:
            return suggested or 1
        return suggested

    def suggest(self, queue: MessageQueue, broker_id: int) -> None:
        """Remember what an answer suggested: after every parsed answer, whatever its status."""
        if broker_id == MASTER:
            # Nothing remembered is the same as the master, and costs nothing.
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = broker_id

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue: it failed there, or its route changed."""
        self._suggested.pop(queue, None)

    def forget_gone(self, topic: str, addresses: Mapping[str, Mapping[int, str]]) -> None:
        """Drop suggestions that point to brokers a topic's new route does not have."""
        for queue, broker_id in list(self._suggested.items()):
            if queue.topic == topic and broker_id not in addresses.get(queue.broker_name, {}):
                del self._suggested[queue]

    def __len__(self) -> int:
        return len(self._suggested)
