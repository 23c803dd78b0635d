"""What happens often is logged now and then: how often, and to whom, since it was last logged."""

from __future__ import annotations

from typing import Final

import trio

LOG_EVERY_S: Final = 10.0
"""How often one thing is logged at most."""

NAMES_SHOWN: Final = 5
"""How many topics or peers one line names."""


class Repeats:
    """Counts one thing that may happen often."""

    def __init__(self) -> None:
        self._next_log = -float("inf")
        self._count = 0
        self._names: set[str] = set()

    def add(self, name: str) -> tuple[int, str] | None:
        """Count it once.

        Args:
            name: the topic or peer concerned.

        Returns:
            When it is time to log: how often since the last time, and some of the names; else None.
        """
        self._count += 1
        if len(self._names) <= NAMES_SHOWN:
            self._names.add(name)
        now = trio.current_time()
        if now < self._next_log:
            return None
        self._next_log = now + LOG_EVERY_S
        shown = sorted(self._names)
        names = ", ".join(shown[:NAMES_SHOWN]) + (" and others" if len(shown) > NAMES_SHOWN else "")
        count = self._count
        self._count = 0
        self._names.clear()
        return count, names
