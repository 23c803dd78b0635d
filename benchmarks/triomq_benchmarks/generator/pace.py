"""The lateness of a producer's messages that the generator causes, without the broker's back-pressure.

An open loop that is late measures itself. But a producer whose permitted sends are all unanswered must wait, and this
delay does not count; neither does that of the following messages, until the producer has caught up. Pure.
"""

from __future__ import annotations


class Pace:
    """The lateness of one producer, in the caller's unit."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed = 0
        """How late the producer is because it was held back earlier."""

    def arrive(self, late: int) -> int:
        """Record that the producer is at its next message.

        Args:
            late: now, minus the instant at which this message was meant to be sent.

        Returns:
            How much of that is the generator's own doing.
        """
        if late <= self._owed:
            # Catching up: what is left of the lateness comes from having been held back.
            self._owed = max(0, late)
            return 0
        return late - self._owed

    def held(self, length: int) -> None:
        """The producer had to wait so long for answers before it could send."""
        self._owed += length
