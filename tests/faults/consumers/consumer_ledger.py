"""Records what was acknowledged to senders and what handlers did, and checks that the two agree."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import attrs

LOCK_RULE_S = 30.0
"""How long a member relies on its last successful lock (docs/protocol/consumer.md §7): the longest that two may work in
one queue."""

Queue = tuple[str, int]
"""Broker name and queue id."""


@attrs.define(slots=True, eq=False)
class Handling:
    """One call of a handler."""

    member: str
    queue: Queue
    offset: int
    key: bytes
    begin_s: float
    end_s: float | None = None
    done: bool = False
    """It returned; failed, cancelled and killed ones are not done."""


@attrs.define(slots=True, eq=False)
class Owning:
    """The ownership of one queue by one member."""

    member: str
    queue: Queue
    begin_s: float
    end_s: float = float("inf")


class Ledger:
    """Everything that happened, by the virtual clock."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[Queue, int]] = {}
        self.handlings: list[Handling] = []
        self.ownings: list[Owning] = []
        self.broker_starts_s: list[float] = []

    # -- facts

    def begin(self, member: str, queue: Queue, offset: int, key: bytes, now: float) -> Handling:
        """A handler was called."""
        handling = Handling(member, queue, offset, key, now)
        self.handlings.append(handling)
        return handling

    def own(self, member: str, queue: Queue, now: float) -> None:
        """A member was assigned a queue."""
        self.ownings.append(Owning(member, queue, now))

    def disown(self, member: str, now: float, queue: Queue | None = None) -> None:
        """A member gave up a queue, or ended and so gave up all of them."""
        for each in self.ownings:
            if each.member == member and each.end_s > now and queue in (None, each.queue):
                each.end_s = now

    # -- questions

    def unhandled(self) -> set[bytes]:
        """Acknowledged messages that no handler has completed."""
        return self.acknowledged.keys() - {each.key for each in self.handlings if each.done}

    def owners(self, now: float) -> dict[Queue, list[str]]:
        """Queue -> who has it now."""
        found: dict[Queue, list[str]] = defaultdict(list)
        for each in self.ownings:
            if each.begin_s <= now < each.end_s:
                found[each.queue].append(each.member)
        return found

    def repeats(self) -> int:
        """Handlings beyond the first of each message."""
        return sum(count - 1 for count in Counter(each.key for each in self.handlings if each.done).values())

    # -- faults

    def order_faults(self) -> list[str]:
        """Ordered: when a handler begins, everything before it in the queue has been handled once."""
        places: dict[Queue, list[tuple[int, bytes]]] = defaultdict(list)
        for key, (queue, offset) in self.acknowledged.items():
            places[queue].append((offset, key))
        first_done: dict[bytes, float] = {}
        for each in self.handlings:
            if each.done and each.end_s is not None:
                first_done[each.key] = min(each.end_s, first_done.get(each.key, float("inf")))
        faults = []
        for queue, stored in places.items():
            stored.sort()
            done_by = [(offset, first_done.get(key, float("inf"))) for offset, key in stored]
            latest: dict[int, float] = {}
            so_far = 0.0
            for offset, done_s in done_by:
                latest[offset] = so_far  # when everything before was done
                so_far = max(so_far, done_s)
            faults += [
                f"order: {each.member} began {queue} {each.offset} at {each.begin_s:.3f}, what is before it was done at "
                f"{latest[each.offset]:.3f}"
                for each in self.handlings
                if each.queue == queue and each.begin_s < latest.get(each.offset, 0.0)
            ]
        return faults

    def overlap_faults(self) -> list[str]:
        """Ordered: two members work in one queue only in the time that a broker's restart, which loses locks,
        allows."""
        faults = []
        for queue, calls in self._by_queue().items():
            calls.sort(key=lambda each: each.begin_s)
            for before, after in itertools.pairwise(calls):
                end_s = before.end_s if before.end_s is not None else before.begin_s
                if after.member != before.member and after.begin_s < end_s and not self._locks_were_lost(after.begin_s):
                    faults.append(
                        f"doubled: {before.member} until {end_s:.3f} and {after.member} from {after.begin_s:.3f} work in {queue}"
                    )
        return faults

    def doubled_s(self) -> float:
        """The longest time for which a queue had two owners."""
        longest = 0.0
        owned: dict[Queue, list[Owning]] = defaultdict(list)
        for each in self.ownings:
            owned[each.queue].append(each)
        for periods in owned.values():
            periods.sort(key=lambda each: each.begin_s)
            for index, one in enumerate(periods):
                for other in periods[index + 1 :]:
                    if other.member != one.member:
                        longest = max(longest, min(one.end_s, other.end_s) - other.begin_s)
        return longest

    def _by_queue(self) -> dict[Queue, list[Handling]]:
        found: dict[Queue, list[Handling]] = defaultdict(list)
        for each in self.handlings:
            found[each.queue].append(each)
        return found

    def _locks_were_lost(self, now: float) -> bool:
        return any(start_s <= now <= start_s + LOCK_RULE_S for start_s in self.broker_starts_s)
