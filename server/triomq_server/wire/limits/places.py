"""Places: the connections that a listener may have at one time, shared between hosts.

While there is room, every connection gets a place. When all places are taken, the host with the most connections gives
up the one that has been idle longest for a host that has fewer: a single host cannot keep all others out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import trio

_LISTED: Final = 64
"""So many of a host's idlest connections are looked for at once: to look for one takes as long."""


class Active(Protocol):
    """A link, as a place knows it."""

    active_at: float


class Place(msgspec.Struct, eq=False):
    """The place of one connection.

    Attributes:
        host: of the peer.
        end: ends the connection, without waiting.
        since: trio's time when it was taken.
        link: the connection's link; None before there is one.
        given: it has been given back.
    """

    host: str
    end: Callable[[], None]
    since: float = msgspec.field(default_factory=trio.current_time)
    link: Active | None = None
    given: bool = False

    @property
    def active_at(self) -> float:
        """Trio's time of the last byte, or of the connection itself."""
        return self.since if self.link is None else self.link.active_at


class _Host(msgspec.Struct, eq=False):
    name: str
    places: set[Place] = msgspec.field(default_factory=set)
    idlest: list[Place] = msgspec.field(default_factory=list)
    """Idlest places when they were listed, the idlest of all at the end."""
    listed_at: float = 0.0

    def pop_idlest(self) -> Place:
        while self.idlest:
            place = self.idlest.pop()
            if not place.given and place.active_at <= self.listed_at:
                return place
        self.listed_at = trio.current_time()
        self.idlest = heapq.nsmallest(_LISTED, self.places, key=lambda place: place.active_at)[::-1]
        return self.idlest.pop()


class Places:
    """The places of one listener.

    Args:
        most: how many there are.

    Attributes:
        taken: how many are taken.
        closed: called with the host of a connection that has been ended for another host.
    """

    def __init__(self, most: int) -> None:
        self.taken = 0
        self.closed: Callable[[str], None] = lambda _: None
        self._most = most
        self._hosts: dict[str, _Host] = {}
        self._by_count: dict[int, dict[_Host, None]] = {}
        self._largest = 0
        """The most places that a host has."""

    def take(self, host: str, end: Callable[[], None]) -> Place | None:
        """A place for a connection of a host; None if all are taken, and no host has two more than this one.

        Args:
            host: of the peer.
            end: ends the connection without waiting; see `Place`.
        """
        if self.taken >= self._most and not self._make_room(host):
            return None
        place = Place(host, end)
        entry = self._hosts.get(host)
        if entry is None:
            entry = self._hosts[host] = _Host(host)
        entry.places.add(place)
        self._moved(entry, len(entry.places) - 1)
        self.taken += 1
        return place

    def give(self, place: Place) -> None:
        """The connection has ended; safe to repeat."""
        if place.given:
            return
        place.given = True
        entry = self._hosts[place.host]
        entry.places.remove(place)
        self._moved(entry, len(entry.places) + 1)
        self.taken -= 1
        if not entry.places:
            del self._hosts[place.host]

    def _moved(self, entry: _Host, before: int) -> None:
        """Note that a host has one place more or one less."""
        after = len(entry.places)
        if before:
            del self._by_count[before][entry]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[entry] = None
        if after > self._largest or (before == self._largest and before not in self._by_count):
            self._largest = after

    def _make_room(self, host: str) -> bool:
        entry = self._hosts.get(host)
        if self._largest <= (len(entry.places) if entry is not None else 0) + 1:
            return False
        crowd = next(iter(self._by_count[self._largest]))
        place = crowd.pop_idlest()
        place.end()
        self.give(place)
        self.closed(crowd.name)
        return True
