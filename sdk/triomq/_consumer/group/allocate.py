"""Assigns queues to the members of a group, by pure rules that every member computes alike
(docs/protocol/consumer.md §11.4).

Members do not communicate: each computes the whole group's shares from the same two lists and takes its own.  So every
member must use the same rule.  All rules except :class:`Sticky` give exactly the results of Java's
``AllocateMessageQueue…`` classes, so that Java and Python members can share a group.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

import attrs

from triomq._arguments.kinds import check_callback
from triomq._error_text import shown
from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq.errors import InvalidCall

VIRTUAL_NODES: Final = 10
"""Places of each member on the ring of :class:`ConsistentHash`, as in Java's default."""


STICKY_KEPT: Final = 16
"""The most inputs, one for each topic, whose shares :class:`Sticky` keeps."""


class AllocateStrategy(Protocol):
    """A strategy that shares queues out among the members of a group; a plug point.

    Pure and quick: called by every member with the same lists, it must give shares that do not overlap.
    """

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        """The share of one member.

        Args:
            client_id: the member; for some time after a route's change also others, which may have its queues still.
            queues: all queues of one topic, sorted by broker name and queue id; at least one.
            members: client ids of the whole group, sorted as Java sorts text; at least one.

        Returns:
            Its queues; none if it is not a member.
        """


def sorted_queues(queues: Collection[MessageQueue]) -> list[MessageQueue]:
    """Sort queues in the order every member must use: topic, broker name, then queue ids as numbers."""
    return sorted(queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker_name), queue.queue_id))


def sorted_members(members: Collection[str]) -> list[str]:
    """Sort members in the order every member must use: by UTF-16 code units, as Java compares text."""
    return sorted(members, key=java_order)


def java_order(text: str) -> bytes:
    """A key that sorts texts as Java's ``String.compareTo`` does."""
    return text.encode("utf-16-be", "surrogatepass")


def check_inputs(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> bool:
    """Whether this member takes part in the allocation.

    Raises:
        InvalidCall: an input is empty, which Java also refuses.
    """
    if not client_id:
        raise InvalidCall("the client id is empty, so that no queues can be allocated to it")
    if not queues:
        raise InvalidCall("there are no queues to allocate; check that the topic can be read")
    if not members:
        raise InvalidCall("there are no members to allocate queues to; check the consumer group's heartbeats")
    return client_id in members


@attrs.frozen
class Average:
    """``AVG``, the default: each member takes adjacent queues, the first members one more if they do not divide evenly."""

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        """The share of one member."""
        if not check_inputs(client_id, queues, members):
            return []
        index, rest = members.index(client_id), len(queues) % len(members)
        has_more = rest > 0 and index < rest
        size = 1 if len(queues) <= len(members) else len(queues) // len(members) + has_more
        start = index * size if has_more else index * size + rest
        return list(queues[start : start + size])


@attrs.frozen
class AverageByCircle:
    """``AVG_BY_CIRCLE``: queues are dealt out one by one, round after round."""

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        """The share of one member."""
        if not check_inputs(client_id, queues, members):
            return []
        return list(queues[members.index(client_id) :: len(members)])


@attrs.frozen
class ConsistentHash:
    """``CONSISTENT_HASH``: members are placed on a ring of MD5 values, a queue belongs to the next one.

    Args:
        virtual_nodes: places of each member on the ring; the same number for all members of the group.
    """

    virtual_nodes: int = attrs.field(default=VIRTUAL_NODES, validator=attrs.validators.ge(1))

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        """The share of one member."""
        if not check_inputs(client_id, queues, members):
            return []
        # If two members share a place, the later one keeps it, as in Java's sorted map.
        ring = {_ring_place(f"{each}-{number}"): each for each in members for number in range(self.virtual_nodes)}
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            return ring[places[bisect.bisect_left(places, _ring_place(str(queue))) % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _ring_place(key: str) -> int:
    digest = hashlib.md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _queues(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    # A class as the converter has no type arguments: mypy would refuse every list that users pass.
    return tuple(queues)


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen
class ByConfig:
    """``CONFIG``: this member takes a fixed list of queues, regardless of other members.

    Nothing checks that the lists of members do not overlap.

    Args:
        queues: the list, of one or more topics.
    """

    queues: tuple[MessageQueue, ...] = attrs.field(converter=_queues)

    def __call__(
        self, _client_id: str, queues: Sequence[MessageQueue], _members: Sequence[str], /
    ) -> list[MessageQueue]:
        """The share of one member."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self.queues if queue.topic in topics]


@attrs.frozen
class MachineRoom:
    """``MACHINE_ROOM``: only queues of brokers called ``room@name`` in one of these machine rooms are shared out.

    Args:
        rooms: the machine rooms of this group's members.
    """

    rooms: frozenset[str] = attrs.field(converter=_names)

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        """The share of one member."""
        if not check_inputs(client_id, queues, members):
            return []
        kept = [queue for queue in queues if self._is_kept(queue)]
        index, (size, rest) = members.index(client_id), divmod(len(kept), len(members))
        share = kept[index * size : (index + 1) * size]
        return share + (kept[len(members) * size + index :][:1] if index < rest else [])

    def _is_kept(self, queue: MessageQueue) -> bool:
        parts = queue.broker_name.rstrip("@").split("@")  # as Java's `split`, which drops empty parts at the end
        return len(parts) == 2 and parts[0] in self.rooms


@attrs.frozen
class MachineRoomNearby:
    """``MACHINE_ROOM_NEARBY``: a machine room's queues go to its own members; those of rooms without members to all.

    Args:
        inner: assigns the queues within a machine room.
        room_of_broker: broker name -> room, never empty.
        room_of_client: client id -> room, never empty.
    """

    inner: AllocateStrategy
    room_of_broker: Callable[[str], str]
    room_of_client: Callable[[str], str]

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        """The share of one member."""
        if not check_inputs(client_id, queues, members):
            return []
        queues_of: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            queues_of[_room(self.room_of_broker, queue.broker_name)].append(queue)
        members_of: dict[str, list[str]] = defaultdict(list)
        for member in members:
            members_of[_room(self.room_of_client, member)].append(member)
        room = _room(self.room_of_client, client_id)
        share = list(self.inner(client_id, queues_of[room], members_of[room])) if room in queues_of else []
        for other in sorted(queues_of.keys() - members_of.keys(), key=java_order):
            share += self.inner(client_id, queues_of[other], members)
        return share


def check_strategy(strategy: AllocateStrategy | None) -> None:
    """Raise :class:`InvalidCall` unless a user's strategy is callable and not async."""
    if isinstance(strategy, type):
        raise InvalidCall(f"allocate is the class {strategy.__name__}; give an object of it, or a function")
    check_callback("allocate", strategy, plain=True)


def hashes_names(strategy: AllocateStrategy) -> bool:
    """Whether a rule hashes the names of queues, itself or within machine rooms: in a namespace all members must hash
    the names as brokers know them."""
    while isinstance(strategy, MachineRoomNearby):
        strategy = strategy.inner
    return isinstance(strategy, ConsistentHash)


def in_namespace(strategy: AllocateStrategy, namespace: Namespace) -> AllocateStrategy:
    """A strategy for queues as the client names them: what is hashed must be what Java's members of the group hash."""
    if not namespace.name or not hashes_names(strategy):
        return strategy

    def share(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        return [*map(namespace.unwrap_queue, strategy(client_id, namespace.wrap_queues(queues), members))]

    share.__qualname__ = type(strategy).__name__  # for the log, where it fails
    return share


def _room(room_of: Callable[[str], str], name: str) -> str:
    room = room_of(name)
    if not room:
        raise InvalidCall(
            f"the machine room of {shown(name)} is empty; the resolver must name one for every broker and client"
        )
    return room


@attrs.frozen
class Sticky:
    """A strategy for groups of Python members only: shares are even, and a join or leave moves few queues.

    Every pair of queue and member has a weight that depends only on their names; pairs are chosen heaviest first
    while the member may take more (rendezvous hashing with limits).  No two shares differ by more than one queue.
    When a member or a queue comes or goes, that takes time for each pair: a second for 4,000 queues and 100 members.
    """

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        """The share of one member."""
        if not check_inputs(client_id, queues, members):
            return []
        owners = _sticky_owners(tuple(queues), tuple(dict.fromkeys(members)))
        return [queue for queue in queues if owners[queue] == client_id]


# Every round has the same input until a member or a queue comes or goes, and there is a weight for each pair.
@lru_cache(STICKY_KEPT)
def _sticky_owners(queues: tuple[MessageQueue, ...], members: tuple[str, ...]) -> Mapping[MessageQueue, str]:
    size, rest = divmod(len(queues), len(members))
    texts = [f"\0{queue}".encode("utf-8", "replace") for queue in queues]
    pairs: list[tuple[bytes, MessageQueue, str]] = []
    for member in members:
        hashed = hashlib.blake2b(member.encode("utf-8", "replace"), digest_size=8)
        for queue, text in zip(queues, texts, strict=True):
            weight = hashed.copy()
            weight.update(text)
            pairs.append((weight.digest(), queue, member))
    pairs.sort(reverse=True)
    owners: dict[MessageQueue, str] = {}
    loads = dict.fromkeys(members, 0)
    for _, queue, member in pairs:
        if queue in owners or loads[member] > size or (loads[member] == size and not rest):
            continue
        rest -= loads[member] == size
        loads[member] += 1
        owners[queue] = member
    return owners
