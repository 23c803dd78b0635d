"""Imports of commands: what they make stays, so that looking for garbage in it finds nothing, and Ctrl-C ends them at
their end."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collections in the block, nearly all of whose objects stay.

    A hundred of them took a twentieth of the processor time of a broker's start, and with very many queues a quarter.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Exclude the imports in the block from all garbage collections, and from Ctrl-C and other signals that raise
    KeyboardInterrupt, in the process of a command.

    The full collections at the interpreter's end, too, otherwise visit the 100,000 objects of the imports: that took a
    quarter of the processor time of short commands. A KeyboardInterrupt within an import may be lost, since Python's
    import locks drop it, and msgspec crashes at one while it prepares a decoder; it is raised at the end of the block.
    """
    with without_collections(), _without_interrupts():
        yield
        gc.freeze()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    raising = {number for number in ending if callable(signal.getsignal(number))}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, raising)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
