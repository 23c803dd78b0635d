"""SIGTERM ends a benchmark as Ctrl-C does: with the processes and files that it has started and written."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit code, as shells have it."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise in the block what SIGINT does there; the process ends with `TERMINATED` then.

    SIGINT raises KeyboardInterrupt in the block, also where a shell has it ignored, as in its background jobs: only so
    does trio take care that it comes at a place where it may.
    """
    terminated = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        handler = signal.getsignal(signal.SIGINT)  # trio's own while its loop runs
        assert callable(handler)
        handler(signal.SIGINT, frame)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if not callable(before[signal.SIGINT]):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if terminated:
            sys.exit(TERMINATED)
        raise
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that Python has not installed
                signal.signal(number, handler)
