"""The ledger of committed consumer offsets: what consumers were told is committed must not be forgotten.

What a broker promises: a commit is in its memory when it answers, and in its file one `flushConsumerOffsetInterval`
later. So a commit survives unless a broker that was up then is killed before it has written (`lost`). Everything else
holds without exception. A node's own table never falls, whatever it merges and whichever node comes back. When all
nodes are back, the master has every commit that survived, whichever broker took it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import attrs

Key = tuple[str, int]
"""Consumer group and queue id."""


@attrs.frozen
class Commit:
    """An acknowledged commit: when it was asked for, and when answered."""

    offset: int
    asked_at: float
    acked_at: float


@attrs.define
class OffsetLedger:
    """All commits, all losses of memory, and how far each node was seen to have them.

    Attributes:
      commits: acknowledged ones, by key; within a key offsets only grow.
      losses: from when on a node's memory may not have been written, and when it was killed.
      faults: tables that fell, and commits that were forgotten.
      looks: how often a node told an offset.
    """

    commits: dict[Key, list[Commit]] = attrs.field(factory=lambda: defaultdict(list))
    losses: list[tuple[float, float]] = attrs.Factory(list)
    faults: list[str] = attrs.Factory(list)
    looks: int = 0
    _seen: dict[tuple[str, Key], list[tuple[float, int]]] = attrs.field(factory=lambda: defaultdict(list))

    def committed(self, key: Key, offset: int, asked_at: float, acked_at: float) -> None:
        """A broker has answered a commit."""
        self.commits[key].append(Commit(offset, asked_at, acked_at))

    def lost(self, node: str, since: float, at: float) -> None:
        """A node was killed at `at`; what it learned after `since` may not have been written."""
        self.losses.append((since, at))
        for (name, _), seen in self._seen.items():
            while name == node and seen and seen[-1][0] > since:
                seen.pop()

    def burnt(self, node: str) -> None:
        """A node has lost its disk."""
        for name, key in list(self._seen):
            if name == node:
                del self._seen[name, key]

    def observe(self, node: str, key: Key, offset: int, at: float) -> None:
        """A node tells its offset: not less than it told before."""
        self.looks += 1
        seen = self._seen[node, key]
        if seen and offset < seen[-1][1]:
            self.faults.append(
                f"rolled back: {node} has {offset} for {key} at {at:.3f}, at {seen[-1][0]:.3f} it had {seen[-1][1]}"
            )
        elif not seen or offset > seen[-1][1]:
            seen.append((at, offset))

    def newest(self) -> list[Key]:
        """Keys worth a look: those in use, and some that are not any more."""
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
        """Everybody is back: this node has every commit that survived."""
        self.faults += [f"rolled back: {node} ends with {text}" for text in self.lacking(offsets)]

    @property
    def count(self) -> int:
        """How many commits were acknowledged."""
        return sum(map(len, self.commits.values()))
