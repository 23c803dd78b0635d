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
        """Delay of the producer that is left from earlier back-pressure."""

    def arrive(self, late: int) -> int:
        """Record that the producer has reached its next message.

        Args:
            late: the current time minus the time at which this message was due.

        Returns:
            The part of the delay that the generator itself caused.
        """
        if late <= self._owed:
            # Catching up: the remaining delay is a result of back-pressure.
            self._owed = max(0, late)
            return 0
        return late - self._owed

    def held(self, length: int) -> None:
        """Record that the producer had to wait for answers for this time before it could send."""
        self._owed += length
