"""Rates of topics and lags of groups over time, only for those that were viewed recently.

A cluster may have a hundred thousand topics. Those shown on a page are watched for a while; all others cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final, NoReturn

import attrs
import trio
from cachetools import TTLCache

from triomq import MQError

SAMPLE_EVERY_S: Final = 5.0
POINTS_MAX: Final = 360
"""Half an hour."""

WATCHED_MAX: Final = 200
WATCHED_S: Final = 1800.0
"""How long a name is watched after a page showed it."""

AT_ONCE: Final = 8


@attrs.frozen
class Point:
    """A figure at a time, in seconds of trio's clock."""

    at_s: float
    value: float


class Series:
    """The figures of one name.

    Attributes:
        points: the oldest first.
    """

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)

    def add(self, at_s: float, value: float) -> None:
        """Add a figure, unless one has just been added."""
        if not self.points or at_s - self.points[-1].at_s >= 1.0:
            self.points.append(Point(at_s, value))

    @property
    def rate(self) -> float | None:
        """How much the figure grows per second, over the last three; None when it is not known yet."""
        latest = list(self.points)[-3:]
        if len(latest) < 2:
            return None
        return max(0.0, (latest[-1].value - latest[0].value) / (latest[-1].at_s - latest[0].at_s))

    def rates(self) -> list[Point]:
        """The same at each time."""
        points = list(self.points)
        return [
            Point(later.at_s, max(0.0, (later.value - earlier.value) / (later.at_s - earlier.at_s)))
            for earlier, later in pairwise(points)
        ]


class History:
    """What is watched.

    Args:
        read: asks the cluster for the figure of a name now.
    """

    def __init__(self, read: Callable[[str], Awaitable[float | None]]) -> None:
        self._read = read
        self._series: TTLCache[str, Series] = TTLCache(WATCHED_MAX, WATCHED_S, timer=trio.current_time)

    def seen(self, name: str, value: float | None) -> Series:
        """A page shows a name: watch it from now on. Returns what is known of it."""
        series = self._series.get(name) or Series()
        self._series[name] = series  # its time begins again
        if value is not None:
            series.add(trio.current_time(), value)
        return series

    async def run(self) -> NoReturn:
        """Look at what is watched, until cancelled."""
        while True:
            await trio.sleep(SAMPLE_EVERY_S)
            await self.sample()

    async def sample(self) -> None:
        """Look at what is watched now."""
        limit = trio.CapacityLimiter(AT_ONCE)

        async def look(name: str, series: Series) -> None:
            async with limit:
                try:
                    value = await self._read(name)
                except MQError:
                    return  # a page that shows it says why
                if value is not None:
                    series.add(trio.current_time(), value)

        async with trio.open_nursery() as nursery:
            for name, series in list(self._series.items()):
                nursery.start_soon(look, name, series)
