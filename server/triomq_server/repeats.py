"""Logs frequent events now and then: how often they happened since the last line, and to whom."""

from __future__ import annotations

import logging
from typing import Final

import trio

LOG_EVERY_S: Final = 10.0
"""Minimum interval between two log lines about the same event."""

NAMES_SHOWN: Final = 5
"""Maximum number of topics or peers named in one line."""


HOSTS_APART: Final = 64
"""Number of hosts whose lines are counted separately; lines of all other hosts are counted together."""


class Repeats:
    """Counts one frequent event."""

    def __init__(self) -> None:
        self._next_log = -float("inf")
        self._count = 0
        self._names: set[str] = set()

    def add(self, name: str) -> tuple[int, str] | None:
        """Count one occurrence.

        Args:
            name: the topic or peer that it concerns.

        Returns:
            If it is time to log: the number of occurrences since the last time, and some of the names; else None.
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


class PeerLog:
    """Log lines that peers can cause without limit: each kind is written at most once in ten seconds per host.

    Args:
        log: the logger to write to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._repeats: dict[tuple[str, object, str], Repeats] = {}

    def write(
        self,
        level: int,
        peer: str,
        message: str,
        *args: object,
        kind: object = None,
        exc_info: BaseException | None = None,
    ) -> None:
        """Write a line with the peer as its field ``address``, or only count it for the next line of its kind.

        Args:
            level: a level of `logging`.
            peer: `ip:port` of the peer that caused the line.
            message: the line, with placeholders for `args`; each message is a kind.
            args: the values for the placeholders.
            kind: distinguishes lines with the same message; it must have few different values.
            exc_info: an error whose traceback is written with the line.
        """
        host = peer.rpartition(":")[0]
        key = message, kind, host
        if key not in self._repeats and len(self._repeats) >= HOSTS_APART:
            key = message, kind, ""
        repeats = self._repeats.get(key)
        if repeats is None:
            repeats = self._repeats[key] = Repeats()
        due = repeats.add(host)
        if due is None:
            return
        count, hosts = due
        if count == 1:
            self._log.log(level, message, *args, exc_info=exc_info, extra={"address": peer})
        else:
            self._log.log(
                level, f"{message} (and %d more like it since the last such line, of %s)", *args, count - 1, hosts,
                exc_info=exc_info, extra={"address": peer},
            )  # fmt: skip
