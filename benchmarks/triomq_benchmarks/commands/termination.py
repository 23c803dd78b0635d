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
    """Let SIGTERM raise in the block what SIGINT does there; the process ends with `TERMINATED` then."""
    terminated = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        handler = signal.getsignal(signal.SIGINT)  # trio's own while its loop runs
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # ignored, as in the background jobs of a shell
            sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if terminated:
            sys.exit(TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
