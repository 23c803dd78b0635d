"""Logs exceptions of handlers: a handler that fails for every message must not fill the log with one traceback."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

import attrs
import trio

from triomq._message.log_fields import message_fields
from triomq._message.received import ReceivedMessage

log = logging.getLogger("triomq.consumer")

PERIOD_S: Final = 10.0
"""The shortest time between two tracebacks of one kind of failure."""

LINES_MAX: Final = 10
"""Lines about one kind of failure in a period, the one with the traceback included; more are counted."""

KINDS_APART: Final = 64
"""Kinds of failures that are counted separately; further ones are counted together."""

_Kind = tuple[type[BaseException], str, int]
"""The type of the exception, and its file and line."""


@attrs.define
class _Period:
    """The lines written about one kind of failure since its last traceback.

    Attributes:
        began_s: when that traceback was written, on trio's clock.
        lines: number of lines, the first included.
        left_out: number of failures that were only counted.
    """

    began_s: float = -float("inf")
    lines: int = 0
    left_out: int = 0


class FailureLog:
    """Logs the failures of one consumer's handlers."""

    def __init__(self) -> None:
        self._periods: dict[_Kind | None, _Period] = {}

    def write(self, what: str, message: ReceivedMessage, more: str, error: BaseException) -> None:
        """Log a failure: with its traceback, in a line, or only at DEBUG, depending on earlier failures of its kind.

        Args:
            what: the text before the message.
            message: the message.
            more: the text after it.
            error: the exception.
        """
        period = self._period(error)
        now = trio.current_time()
        fields = message_fields(message)
        if now >= period.began_s + PERIOD_S:
            left_out = (
                f" (and {period.left_out} more failures like it since the last such line)" if period.left_out else ""
            )
            period.began_s, period.lines, period.left_out = now, 1, 0
            log.error("%s %r%s%s", what, message, more, left_out, exc_info=error, extra=fields)
            return
        level = logging.ERROR
        if period.lines < LINES_MAX:
            period.lines += 1
        else:
            period.left_out += 1
            level = logging.DEBUG
        log.log(level, "%s %r%s, as others before: %r", what, message, more, error, extra=fields)

    def _period(self, error: BaseException) -> _Period:
        kind: _Kind | None = (type(error), *_place(error.__traceback__))
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
