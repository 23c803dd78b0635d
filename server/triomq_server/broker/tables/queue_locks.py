"""Queue locks of orderly consumers: the client of a group that may consume a queue now.

In memory only, per broker, never replicated: docs/protocol/broker-api.md §11 (upstream: RebalanceLockManager). Pure:
the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable

from triomq_protocol.requests import MessageQueue

LOCK_LIVE_MS = 60_000
"""A lock not refreshed for longer than this may be taken by another client."""

MOST_LOCKS = 100_000
"""Of all groups; a client is granted no new lock beyond them, and asks again later."""

MOST_BYTES = 64 << 20
"""Of the names of topics, brokers and clients of all locks, four for each character: 167 characters for each of
MOST_LOCKS."""

SCANS_PER_LIFE = 20
"""How often expired locks are searched for while a lock exists; checking all of them takes up to 10 ms."""


class LockTable:
    """Locks by group and queue; the queue counts with the broker name the client sent.

    Args:
        live_ms: how long a lock lives without being refreshed.
        most: how many there may be.
        most_bytes: how long their names may be, together.
    """

    def __init__(self, live_ms: int = LOCK_LIVE_MS, most: int = MOST_LOCKS, most_bytes: int = MOST_BYTES) -> None:
        self._live_ms = live_ms
        self._most = most
        self._most_bytes = most_bytes
        self._count = 0
        self.kept_bytes = 0
        """Of the names of all locks."""
        self._next_scan_ms = 0
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def __len__(self) -> int:
        """How many locks there are, expired ones included until they are looked for."""
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock the queues that are free, expired or already held by this client (which refreshes them).

        Returns:
            The queues that the client now holds.
        """
        held = self._groups.get(group, {})
        granted = []
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] != client_id and now_ms - owner[1] <= self._live_ms:
                continue
            more_bytes = _bytes_of(queue, client_id) - (0 if owner is None else _bytes_of(queue, owner[0]))
            if more_bytes > 0 and self.kept_bytes + more_bytes > self._most_bytes:
                continue
            if owner is None:
                if self._count >= self._most:
                    continue
                self._count += 1
            self.kept_bytes += more_bytes
            held[queue] = (client_id, now_ms)
            granted.append(queue)
        if held:
            self._groups[group] = held
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the queues that this client holds; ignore the others."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
                self._count -= 1
                self.kept_bytes -= _bytes_of(queue, client_id)
        if not held:
            del self._groups[group]

    def drop_expired(self, now_ms: int) -> None:
        """Forget locks that were not refreshed in time, so that groups without members do not stay in memory.

        Every request calls this, so it checks the locks only now and then.
        """
        if now_ms < self._next_scan_ms:
            return
        self._next_scan_ms = now_ms + self._live_ms // SCANS_PER_LIFE
        for group, held in list(self._groups.items()):
            for queue in [queue for queue, (_, since_ms) in held.items() if now_ms - since_ms > self._live_ms]:
                client_id, _ = held.pop(queue)
                self._count -= 1
                self.kept_bytes -= _bytes_of(queue, client_id)
            if not held:
                del self._groups[group]


def _bytes_of(queue: MessageQueue, client_id: str) -> int:
    """The bytes of a lock's names, at most."""
    return 4 * (len(queue.topic) + len(queue.broker_name) + len(client_id))
