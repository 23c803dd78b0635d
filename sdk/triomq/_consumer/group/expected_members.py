"""Which members of a group are expected at brokers that have just come back, and do not list them yet.

A broker that has restarted lists the members in the order in which they dial it again. The first ones would see themselves
alone, and take the queues of the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

RETURN_MAX_S: Final = 10.0
"""How long the members of before are expected at most after a broker has come back: they dial it at pauses of up to 5 s,
or every 3 s."""


def expected_for_s(away_s: float) -> float:
    """How long the members of before are expected at a broker that was away: their pauses between dials have grown as
    the time that it was away has."""
    return min(1.0 + 2 * away_s, RETURN_MAX_S)


class ExpectedMembers:
    """The members of before that brokers do not list yet; all times are in seconds, on one clock."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        """The members by the last list, with those that are expected."""
        self._lost_s: dict[str, float] = {}
        """Broker -> when its connection was lost."""
        self._incomplete_until: dict[str, float] = {}
        """Broker that has come back -> until when its list may be incomplete."""
        self._expected_until: dict[str, float] = {}
        """Member that a broker does not list -> until when it is expected."""

    def broker_lost(self, address: str, now: float) -> None:
        """Note that the connection to a broker was lost."""
        self._lost_s.setdefault(address, now)

    def broker_connected(self, address: str, now: float) -> None:
        """Note that a connection to a broker was opened."""
        lost_s = self._lost_s.pop(address, None)
        if lost_s is not None:
            self._incomplete_until[address] = now + expected_for_s(now - lost_s)

    def has_come_back(self, address: str) -> bool:
        """Whether a broker was ever lost and has come back."""
        return address in self._incomplete_until

    def is_incomplete(self, address: str, now: float) -> bool:
        """Whether a broker has come back so recently that it may not list all members."""
        return now < self._incomplete_until.get(address, -math.inf)

    def missing_from(self, listed: Collection[str], addresses: Collection[str], now: float) -> list[str]:
        """The members that are expected although they are not listed; there are none if one of the brokers was not away.

        Args:
            listed: the members that the brokers list.
            addresses: the brokers.
            now: the time.
        """
        until_s = min(self._incomplete_until.get(address, -math.inf) for address in addresses)
        missing = self._known.difference(listed)
        if not missing and len(addresses) == 1 and now < until_s:
            # All are back. Who leaves or ends from now on is not expected: its queues need an owner at once.
            (address,) = addresses
            self._incomplete_until[address] = now
        # A member is expected once: a connection that is lost again and again must not keep one that has ended.
        self._expected_until = {member: self._expected_until.get(member, until_s) for member in missing}
        expected = sorted(member for member in missing if now < self._expected_until[member])
        self._known = {*listed, *expected}
        return expected
