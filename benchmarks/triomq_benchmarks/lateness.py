"""Who is to blame for a late send: the generator that could not keep up, or the broker that held it back.

An open loop that is late measures itself.  But a producer whose permitted sends are all unanswered must wait, and is
then late through no fault of its own; the messages behind it are too, until it has caught up.  `Pace` keeps the two
apart, message by message; `generator_is_late` is the rule by which a run does not count.  Pure.
"""

from __future__ import annotations

from hdrh.histogram import HdrHistogram

TELLING_SHARE = 0.1
"""Lateness below this share of the latency that is measured does not change the picture."""


class Pace:
    """The lateness of one producer, in the unit of whoever calls."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed = 0
        """How late the producer is because it was held back earlier."""

    def arrive(self, late: int) -> int:
        """The producer has come to its next message.

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


def generator_is_late(lateness: HdrHistogram, intended_to_ack: HdrHistogram, limit_ms: float) -> str | None:
    """Whether the generator was too slow for the figures to count.

    It was if the 99th percentile of its own lateness is above `limit_ms` and also above a tenth of the 99th percentile
    of the latency that was measured.

    Args:
        lateness: the generator's own, in microseconds; back-pressure is not in it.
        intended_to_ack: what was measured; may be empty, for one-way sends.
        limit_ms: of the workload.

    Returns:
        None if it was in time, otherwise a sentence with the figures.
    """
    late_ms = lateness.get_value_at_percentile(99) / 1000 if lateness.get_total_count() else 0.0
    measured_ms = intended_to_ack.get_value_at_percentile(99) / 1000 if intended_to_ack.get_total_count() else 0.0
    allowed_ms = max(limit_ms, TELLING_SHARE * measured_ms)
    if late_ms <= allowed_ms:
        return None
    return (
        f"the load generator was too slow, not the broker: 1 % of the messages were sent more than {late_ms:.1f} ms "
        f"after their instant although the broker held nothing back (allowed: {allowed_ms:.1f} ms). "
        "Lower the rate, add producers and workers (--engine processes --workers N), or use a machine with more free cores"
    )
