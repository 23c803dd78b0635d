"""What a seed makes of a cluster, and what its run showed."""

from __future__ import annotations

import random
from collections import Counter

import attrs


@attrs.frozen
class Setting:
    """What a seed makes of the cluster.

    Attributes:
      synchronous: SYNC_MASTER: SEND_OK promises that a slave has the message.
      flush: SYNC_FLUSH: SEND_OK promises that the master's disk has it.
      slaves: how many.
      disk_lost: at the end the master is gone with its disk, and a slave takes its place.
      power: the master's machine may lose its power, which leaves it what it had forced to its disk: perhaps less than
          a
        slave has.
      returns: the master that is gone with its disk comes back as the master, with an empty one; only then a slave
          takes
        its place, by order and while it runs.
      succession: at the end a slave takes the master's place, and the old master comes back as a slave, perhaps with
        messages that its successor has not.
    """

    synchronous: bool
    flush: bool
    slaves: int
    disk_lost: bool
    power: bool
    succession: bool
    returns: bool = False

    @classmethod
    def drawn(cls, chance: random.Random) -> Setting:
        synchronous = chance.random() < 0.6
        flush = chance.random() < 0.4
        power = flush and chance.random() < 0.5
        disk_lost = synchronous and not power and chance.random() < 0.4
        succession = not power and not disk_lost and chance.random() < 0.3
        slaves = chance.choice((1, 1, 2))
        returns = disk_lost and chance.random() < 0.5
        return cls(synchronous, flush, slaves, disk_lost, power, succession, returns)


@attrs.frozen
class Outcome:
    """What a seed showed; `digest` is equal for equal runs."""

    seed: int
    setting: Setting
    acknowledged: int
    refused: int
    statuses: Counter[str]
    stored: int
    read: int
    virtual_s: float
    events: list[str]
    faults: list[str]
    commits: int
    digest: str


_NAMED = {
    "lost": "lost",
    "duplicated": "duplicated offsets",
    "order": "order violations",
    "rolled back": "offsets rolled back",
}


def counts(found: Counter[str]) -> str:
    """For the last line of a run."""
    others = sum(found.values()) - sum(found[kind] for kind in _NAMED)
    return ", ".join([*(f"{name} {found[kind]}" for kind, name in _NAMED.items()), f"others {others}"])


def kinds(faults: list[str]) -> Counter[str]:
    """How many faults of each kind: lost, duplicated, order, ..."""
    words = ("lost", "duplicated", "order", "changed", "histories", "rolled back", "stuck")
    return Counter(next((word for word in words if f"{word}:" in fault or word in fault), "other") for fault in faults)
