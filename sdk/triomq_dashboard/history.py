"""Rates of topics and lags of groups over time, only for those that were viewed recently.

A cluster may have a hundred thousand topics. Those shown on a page are watched for a while; all others are not queried.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final, NoReturn

import attrs
import trio
from cachetools import TTLCache

from triomq import MQError

log = logging.getLogger("triomq.dashboard")

SAMPLE_EVERY_S: Final = 5.0
POINTS_MAX: Final = 360
"""The most figures per name: half an hour of them."""

WATCHED_MAX: Final = 200
WATCHED_S: Final = 1800.0
"""How long a name is watched after a page showed it, in seconds."""

AT_ONCE: Final = 8


@attrs.frozen
class Figure:
    """A figure of a name, and the brokers whose parts it sums up.

    A figure with another broker's part is no growth.
    """

    value: float
    brokers: frozenset[str] = frozenset()


@attrs.frozen
class Point:
    """A figure at a time, in seconds of trio's clock, and the brokers whose parts it sums up."""

    at_s: float
    value: float
    brokers: frozenset[str] = frozenset()


class Series:
    """The figures of one name.

    Attributes:
        points: the figures, oldest first.
    """

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)

    def add(self, at_s: float, value: float, brokers: frozenset[str] = frozenset()) -> None:
        """Add a figure, unless one was added just before."""
        if not self.points or at_s - self.points[-1].at_s >= 1.0:
            self.points.append(Point(at_s, value, brokers))

    @property
    def rate(self) -> float | None:
        """The growth of the figure per second, over the last three of the same brokers; None if not known yet."""
        latest = list(self.points)[-3:]
        while latest and latest[0].brokers != latest[-1].brokers:
            del latest[0]
        if len(latest) < 2:
            return None
        return max(0.0, (latest[-1].value - latest[0].value) / (latest[-1].at_s - latest[0].at_s))

    def rates(self) -> list[Point]:
        """The rate at each time, except where brokers came or went."""
        points = list(self.points)
        return [
            Point(later.at_s, max(0.0, (later.value - earlier.value) / (later.at_s - earlier.at_s)))
            for earlier, later in pairwise(points)
            if earlier.brokers == later.brokers
        ]


class History:
    """The figures of all watched names.

    Args:
        read: queries the cluster for the current figure of a name; its second argument is what `topic_stats` calls `silent`.
    """

    def __init__(self, read: Callable[[str, dict[str, str]], Awaitable[Figure | None]]) -> None:
        self._read = read
        self._series: TTLCache[str, Series] = TTLCache(WATCHED_MAX, WATCHED_S, timer=trio.current_time)
        self._failing = False

    def seen(self, name: str, figure: Figure | None) -> Series:
        """Record that a page shows a name, watch it from now on, and return its figures so far."""
        series = self._series.get(name) or Series()
        self._series[name] = series  # its time starts again
        if figure is not None:
            series.add(trio.current_time(), figure.value, figure.brokers)
        return series

    async def run(self) -> NoReturn:
        """Query the watched names regularly, until cancelled."""
        while True:
            await trio.sleep(SAMPLE_EVERY_S)
            await self.sample()

    async def sample(self) -> None:
        """Query the watched names once. Errors other than the cluster's are logged, the first of those in a row."""
        limit = trio.CapacityLimiter(AT_ONCE)
        failures: list[Exception] = []
        silent: dict[str, str] = {}  # else each name would wait for a broker that hangs

        async def look(name: str, series: Series) -> None:
            async with limit:
                try:
                    figure = await self._read(name, silent)
                except MQError:
                    return  # a page that shows it states why
                except Exception as error:  # noqa: BLE001 - the pages work without figures over time; it is logged
                    failures.append(error)
                    return
                if figure is not None:
                    series.add(trio.current_time(), figure.value, figure.brokers)

        async with trio.open_nursery() as nursery:
            for name, series in list(self._series.items()):
                nursery.start_soon(look, name, series)
        if failures and not self._failing:
            log.error("figures over time cannot be read for %d names", len(failures), exc_info=failures[0])
        self._failing = bool(failures)
