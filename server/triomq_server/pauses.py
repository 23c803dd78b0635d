"""The pauses between attempts that fail: each twice as long as the one before, up to a limit. Pure: nothing waits here."""

from __future__ import annotations


class Pauses:
    """The pauses of one thing that is tried again and again.

    Args:
        first_s: the first one, in seconds.
        longest_s: none is longer.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The pause after an attempt that failed, in seconds."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """An attempt succeeded: the next pause is the first again."""
        self._next_s = self._first_s
