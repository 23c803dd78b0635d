"""The settings that a seed chooses for a cluster, and the result of its run."""

from __future__ import annotations

import random
from collections import Counter

import attrs


@attrs.frozen
class Setting:
    """The settings that a seed chooses for the cluster.

    Attributes:
        synchronous: SYNC_MASTER: SEND_OK guarantees that a slave has the message.
        flush: SYNC_FLUSH: SEND_OK guarantees that the master's disk has it.
        slaves: how many.
        disk_lost: in the final phase the master loses its disk, and a slave replaces it.
        power: the master's machine may lose its power and keep only what was forced to its disk: perhaps less than a
                slave has.
        returns: the master that lost its disk restarts as the master, with an empty one; only then a slave replaces it,
                on command and without a restart.
        succession: in the final phase a slave replaces the master, and the old master restarts as a slave, perhaps with
                messages that its successor lacks.
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
        power = flush and chance.random() < 0.7
        disk_lost = synchronous and not power and chance.random() < 0.4
        succession = not power and not disk_lost and chance.random() < 0.3
        slaves = chance.choice((1, 1, 2))
        returns = disk_lost and chance.random() < 0.5
        return cls(synchronous, flush, slaves, disk_lost, power, succession, returns)


@attrs.frozen
class Outcome:
    """The result of a seed; `digest` is equal for equal runs."""

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
    """Counts of faults by kind, for the last line of a run."""
    others = sum(found.values()) - sum(found[kind] for kind in _NAMED)
    return ", ".join([*(f"{name} {found[kind]}" for kind, name in _NAMED.items()), f"others {others}"])


def kinds(faults: list[str]) -> Counter[str]:
    """How many faults of each kind: lost, duplicated, order, ..."""
    words = ("lost", "duplicated", "order", "changed", "histories", "rolled back", "stuck")
    return Counter(next((word for word in words if f"{word}:" in fault or word in fault), "other") for fault in faults)
