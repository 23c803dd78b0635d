"""How long it takes to store and to read messages: the figures of RocketMQ's `StoreStatsService`.

Most calls take less than 1 ms. These are not counted one by one: they are the calls that remain.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable

SLOW_S = 0.001
"""Calls that take less have a time of 0 ms."""

WINDOW_MS = 60_000

_SPANS_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""The ms at which each span of `StoreTimes.distribution` ends; longer calls are in an additional last one."""
_SPAN_NAMES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip
_LONGEST_MS = 10_001
"""Longer calls are counted as if they had taken so long."""

_BOUNDS_MS = (
    *range(1, 21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10), *range(250, 501, 50),
    *range(600, 1001, 100), *range(2000, 10_001, 1000),
)  # fmt: skip
"""The largest ms in each class of `StoreTimes.latency_ms`, likewise."""


class StoreTimes:
    """Times of puts and gets.

    A put that waits for disk or slave takes until these have the message. The spans of `distribution` and `latency_ms`
    are the last whole minute, as RocketMQ's are.

    Args:
        now: a clock in seconds.

    Attributes:
        waits: whether puts wait for disk or slave. Then it is their waits that are counted.
        longest_put_ms, longest_get_ms: since the start.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.waits = False
        self.longest_put_ms = self.longest_get_ms = 0
        self._slow: Counter[int] = Counter()
        self._spans = [0] * len(_SPAN_NAMES)
        self._classes = [0] * (len(_BOUNDS_MS) + 1)
        self._window_ends_ms = 0
        self._puts = 0

    def appended(self, duration_s: float, puts: int) -> None:
        """So many puts took so long, at least `SLOW_S`, to append their messages."""
        self.longest_put_ms = max(self.longest_put_ms, int(duration_s * 1000))
        if not self.waits:
            self._slow[min(int(duration_s * 1000), _LONGEST_MS)] += puts

    def waited(self, duration_s: float, puts: int) -> None:
        """So many puts waited so long for disk or slave."""
        duration_ms = int(duration_s * 1000)
        self.longest_put_ms = max(self.longest_put_ms, duration_ms)
        if duration_ms:
            self._slow[min(duration_ms, _LONGEST_MS)] += puts

    def read(self, duration_s: float) -> None:
        """A get took so long, at least `SLOW_S`."""
        self.longest_get_ms = max(self.longest_get_ms, int(duration_s * 1000))

    def sample(self, now_ms: int, all_puts: Callable[[], int]) -> None:
        """Begin the next minute if it is time; called once a second.

        Args:
            now_ms: any clock that is never set.
            all_puts: the number of puts since the start.
        """
        if now_ms < self._window_ends_ms:
            return
        puts = all_puts()
        if self._window_ends_ms:
            self._count_window(puts - self._puts)
        else:
            self._slow.clear()  # of puts before the first minute
        self._puts = puts
        self._window_ends_ms = now_ms + WINDOW_MS

    def _count_window(self, puts: int) -> None:
        """The slow calls of the last minute, and the others of so many puts, into spans and classes."""
        slow, self._slow = self._slow, Counter()
        slow[0] = max(0, puts - slow.total())
        self._spans = [0] * len(self._spans)
        self._classes = [0] * len(self._classes)
        for duration_ms, count in slow.items():
            self._spans[bisect_right(_SPANS_MS, duration_ms)] += count
            self._classes[bisect_left(_BOUNDS_MS, duration_ms)] += count

    def distribution(self) -> dict[str, int]:
        """How many puts took how long."""
        return dict(zip(_SPAN_NAMES, self._spans, strict=True))

    def latency_ms(self, part: float) -> float:
        """The time in which this part of the puts ended, at the most, as RocketMQ estimates it: evenly within a class."""
        rank = int(sum(self._classes) * part)
        lower_ms = passed = 0
        for upper_ms, count in zip(_BOUNDS_MS, self._classes, strict=False):
            if rank <= passed + count:
                return lower_ms + ((upper_ms - lower_ms) * (rank - passed) / count if count else 0.0)
            passed += count
            lower_ms = upper_ms
        return float(lower_ms)
