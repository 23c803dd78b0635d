"""The ledger of committed consumer offsets: an acknowledged commit must not be lost.

What a broker guarantees: a commit is in its memory when it answers, and in its file one `flushConsumerOffsetInterval`
later. So a commit survives unless a broker that was up then is killed before it has written (`lost`). Everything else
holds without exception. Offsets in a node's own table never decrease, whatever it merges and whichever node restarts.
When all nodes run again, the master has every commit that survived, whichever broker took it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import attrs

Key = tuple[str, int]
"""Consumer group and queue id."""


@attrs.frozen
class Commit:
    """An acknowledged commit: when it was requested, and when answered."""

    offset: int
    asked_at: float
    acked_at: float


@attrs.define
class OffsetLedger:
    """All commits, all losses of memory, and the offsets observed on each node.

    Attributes:
        commits: acknowledged ones, by key; within a key offsets only grow.
        losses: since when a node's memory may not have been written, and when it was killed.
        faults: offsets that decreased, and commits that were lost.
        observations: how many offsets were observed.
    """

    commits: dict[Key, list[Commit]] = attrs.field(factory=lambda: defaultdict(list))
    losses: list[tuple[float, float]] = attrs.Factory(list)
    faults: list[str] = attrs.Factory(list)
    observations: int = 0
    _seen: dict[tuple[str, Key], list[tuple[float, int]]] = attrs.field(factory=lambda: defaultdict(list))

    def committed(self, key: Key, offset: int, asked_at: float, acked_at: float) -> None:
        """Record that a broker answered a commit."""
        self.commits[key].append(Commit(offset, asked_at, acked_at))

    def lost(self, node: str, since: float, at: float) -> None:
        """A node was killed at `at`; what it received after `since` may not have been written."""
        self.losses.append((since, at))
        for (name, _), seen in self._seen.items():
            while name == node and seen and seen[-1][0] > since:
                seen.pop()

    def disk_lost(self, node: str) -> None:
        """Record that a node lost its disk."""
        for name, key in list(self._seen):
            if name == node:
                del self._seen[name, key]

    def observe(self, node: str, key: Key, offset: int, at: float) -> None:
        """Record an offset that a node reports; less than before is a fault."""
        self.observations += 1
        seen = self._seen[node, key]
        if seen and offset < seen[-1][1]:
            self.faults.append(
                f"rolled back: {node} has {offset} for {key} at {at:.3f}, at {seen[-1][0]:.3f} it had {seen[-1][1]}"
            )
        elif not seen or offset > seen[-1][1]:
            seen.append((at, offset))

    def newest(self) -> list[Key]:
        """Keys to observe: those in use, and some that were used last."""
        return list(self.commits)[-12:]

    def surviving(self) -> Iterator[tuple[Key, Commit]]:
        """The newest commit of each key that no kill can have taken away."""
        for key, commits in self.commits.items():
            safe = [
                commit
                for commit in commits
                if not any(since < commit.acked_at and commit.asked_at < at for since, at in self.losses)
            ]
            if safe:
                yield key, safe[-1]

    def lacking(self, offsets: dict[Key, int]) -> list[str]:
        """Commits that survived and are not among these offsets."""
        return [
            f"{offsets.get(key, 0)} for {key}, {commit.offset} was committed at {commit.acked_at:.3f}"
            for key, commit in self.surviving()
            if offsets.get(key, 0) < commit.offset
        ]

    def check(self, node: str, offsets: dict[Key, int]) -> None:
        """Check, when all nodes run again, that a node has every commit that survived."""
        self.faults += [f"rolled back: {node} ends with {text}" for text in self.lacking(offsets)]

    @property
    def count(self) -> int:
        """How many commits were acknowledged."""
        return sum(map(len, self.commits.values()))
