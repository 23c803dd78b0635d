"""Limits log lines that peers can cause at will: one of each kind now and then, with the number of omitted lines."""

from __future__ import annotations

import logging
from typing import Final

import attrs
import trio

from triomq._error_text import one_line

LOG_EVERY_S: Final = 10.0
"""The shortest time between two lines of one kind for one peer."""

PEERS_APART: Final = 64
"""Kinds of lines and peers that are counted separately; lines of further peers are counted together."""

TEXT_CHARS_MAX: Final = 500
"""The most characters of a line."""


@attrs.define
class _Counted:
    """One kind of line of one peer.

    Attributes:
        next_s: when a line may be written again, on trio's clock.
        left_out: number of lines that were not written since the last one.
    """

    next_s: float = -float("inf")
    left_out: int = 0


class PeerLog:
    """Logs lines that peers cause.

    Args:
        log: the logger.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counted: dict[tuple[str, object, str], _Counted] = {}

    def write(
        self, level: int, peer: str, message: str, *args: object, kind: object = None, failure: Exception | None = None
    ) -> None:
        """Write a line, or count it for the next one of its kind.

        Args:
            level: a level of `logging`.
            peer: address of the peer that caused it; the line begins with it.
            message: the line, with places for `args`; each message is a kind.
            args: the values for the places.
            kind: further distinguishes lines with this message; it must have few values.
            failure: an error of this client, whose traceback is written with the line.
        """
        if not self._log.isEnabledFor(level):
            return
        key = message, kind, peer
        if key not in self._counted and len(self._counted) >= PEERS_APART:
            key = message, kind, ""
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = _Counted()
        now = trio.current_time()
        if now < counted.next_s:
            counted.left_out += 1
            return
        left_out, counted.left_out = counted.left_out, 0
        counted.next_s = now + LOG_EVERY_S
        text = one_line(message % args, TEXT_CHARS_MAX)
        more = f" (and {left_out} more like it since the last such line)" if left_out else ""
        self._log.log(level, "%s %s%s", peer, text, more, exc_info=failure)
