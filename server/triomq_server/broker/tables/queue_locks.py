"""Queue locks of orderly consumers: which client of a group may consume a queue now.

In memory only, per broker, never replicated: docs/protocol/broker-api.md §11 (upstream: RebalanceLockManager). Pure:
the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable

from triomq_protocol.requests import MessageQueue

LOCK_LIVE_MS = 60_000
"""A lock not refreshed for longer than this may be taken by another client."""


class LockTable:
    """Locks by group and queue; the queue counts with the broker name the client sent.

    Args:
        live_ms: how long a lock lives without being refreshed.
    """

    def __init__(self, live_ms: int = LOCK_LIVE_MS) -> None:
        self._live_ms = live_ms
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock what is free, expired or already this client's (which refreshes it).

        Returns:
            Those of the queues which the client holds now.
        """
        held = self._groups.get(group, {})
        granted = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or now_ms - owner[1] > self._live_ms:
                held[queue] = (client_id, now_ms)
                granted.append(queue)
        if held:
            self._groups[group] = held
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of the queues that this client holds."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
        if not held:
            del self._groups[group]

    def drop_expired(self, now_ms: int) -> None:
        """Forget locks whose owners have not refreshed them in time, so that gone groups do not stay in memory."""
        for group, held in list(self._groups.items()):
            for queue in [queue for queue, (_, since_ms) in held.items() if now_ms - since_ms > self._live_ms]:
                del held[queue]
            if not held:
                del self._groups[group]
