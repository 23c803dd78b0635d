"""The signals that end a command in order: what it has started is stopped, what it knows is written or committed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def ending_signals() -> tuple[signal.Signals, ...]:
    """Ctrl-C, SIGTERM, and SIGHUP, which is sent when a terminal is closed, unless `nohup` has it ignored."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


@contextmanager
def interrupted_by_signals(*, keep_ignoring: bool = False) -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise in the block like SIGINT; the process then ends with 128 plus the signal's number,
    as in shells.

    SIGINT raises KeyboardInterrupt in the block, even if a shell ignores it, as in its background jobs: only then does
    trio raise it at a safe place.

    Args:
        keep_ignoring: a SIGINT that is ignored still has no effect: it is blocked.
    """
    ended_by: int | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal ended_by
        ended_by = number
        handler = signal.getsignal(signal.SIGINT)  # trio's own while its loop runs
        assert callable(handler)
        handler(signal.SIGINT, frame)

    before = {number: signal.getsignal(number) for number in ending_signals()}
    blocked = {signal.SIGINT} if keep_ignoring and before[signal.SIGINT] is signal.SIG_IGN else set()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    if not callable(before[signal.SIGINT]):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in before:
        if number != signal.SIGINT:
            signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if ended_by is not None:
            sys.exit(128 + ended_by)
        raise
    finally:
        for number, handler in before.items():
            if handler is not None:  # a handler that Python has not installed cannot be restored
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # after that: an ignored signal that waits is dropped


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Have signals with a handler of Python wait for the end of the block: one that raises within it would lose what the
    block returns, such as a process that has been started. They stay unblocked, since processes inherit that."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs here
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in ending_signals()}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda number, _frame: waiting.append(number))
        yield
    finally:
        for number, handler in reversed(before.items()):  # SIGINT is the last: it may raise here
            signal.signal(number, handler)
        for each in waiting:
            signal.raise_signal(each)
