"""Garbage collection of commands: what their imports make stays, so that looking for garbage in it finds nothing."""

from __future__ import annotations

import gc
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
    """Exclude the imports in the block from all garbage collections, in the process of a command.

    The full collections at the interpreter's end, too, otherwise visit the 100,000 objects of the imports: that took a
    quarter of the processor time of short commands.
    """
    with without_collections():
        yield
        gc.freeze()
