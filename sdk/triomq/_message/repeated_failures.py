"""Logs exceptions of users' functions that are called for each message: one that fails each time must not fill the log
with tracebacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

import attrs

PERIOD_S: Final = 10.0
"""The shortest time between two tracebacks of one kind of failure."""

LINES_MAX: Final = 10
"""Lines about one kind of failure in a period, the one with the traceback included; more are counted."""

KINDS_APART: Final = 64
"""Kinds of failures that are counted separately; further ones are counted together."""

_Kind = tuple[type[BaseException] | None, str, int]
"""The type of the exception, and its file and line."""


@attrs.define
class _Period:
    """The lines written about one kind of failure since its last traceback.

    Attributes:
        began_s: when that traceback was written, on the log's clock.
        lines: number of lines, the first included.
        left_out: number of failures that were only counted.
    """

    began_s: float = -float("inf")
    lines: int = 0
    left_out: int = 0


class RepeatedFailures:
    """Logs the failures of one function, or of one consumer's handlers.

    Args:
        log: the logger.
        clock: returns the time in seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._periods: dict[_Kind | None, _Period] = {}

    def note(
        self, error: BaseException | None, text: str, *args: object, fields: Mapping[str, object] | None = None
    ) -> None:
        """Log a failure: with its traceback, in a line, or only at DEBUG, depending on earlier failures of its kind.

        Args:
            error: the exception; None: the function has returned something that cannot be used.
            text: the line, with places for `args`.
            args: the values for the places.
            fields: fields of the record.
        """
        period = self._period(error)
        now = self._clock()
        if now >= period.began_s + PERIOD_S:
            left_out = (
                f" (and {period.left_out} more failures like it since the last such line)" if period.left_out else ""
            )
            period.began_s, period.lines, period.left_out = now, 1, 0
            self._log.error(f"{text}%s", *args, left_out, exc_info=error, extra=fields)
            return
        level = logging.ERROR
        if period.lines < LINES_MAX:
            period.lines += 1
        else:
            period.left_out += 1
            level = logging.DEBUG
        if error is None:
            self._log.log(level, f"{text}, as before", *args, extra=fields)
        else:
            self._log.log(level, f"{text}, as others before: %r", *args, error, extra=fields)

    def _period(self, error: BaseException | None) -> _Period:
        kind: _Kind | None = None, "", 0
        if error is not None:
            kind = (type(error), *_place(error.__traceback__))
        if kind not in self._periods and len(self._periods) >= KINDS_APART:
            kind = None
        return self._periods.setdefault(kind, _Period())


def _place(trace: TracebackType | None) -> tuple[str, int]:
    """File and line of the innermost frame."""
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
