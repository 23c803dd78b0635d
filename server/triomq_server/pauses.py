"""The pauses between attempts that fail: each twice as long as the one before, up to a limit. Pure: nothing waits here."""

from __future__ import annotations


class Pauses:
    """Growing pauses between repeated attempts.

    Args:
        first_s: the first pause, in seconds.
        longest_s: the upper bound of every pause, in seconds.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The pause after a failed attempt, in seconds."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Start with the first pause again, after an attempt that succeeded."""
        self._next_s = self._first_s
