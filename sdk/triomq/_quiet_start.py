"""Ctrl-C while the command ``triomq`` is still being imported, which takes half a second: it ends without a traceback.

``triomq.__main__`` comes too late for that: it is imported after the package.  Programs that only use the package keep
their own way of saying so.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import TracebackType


def is_command(arguments: list[str]) -> bool:
    """Whether these are the arguments of the command itself: ``.../bin/triomq ...`` or ``python -m triomq ...``.

    Args:
        arguments: of the interpreter (``sys.orig_argv``).
    """
    for place, text in enumerate(arguments[1:], 2):
        if text == "-m":
            return arguments[place : place + 1] == ["triomq"]
        if not text.startswith("-"):
            return PurePath(text).name in ("triomq", "triomq.exe", "triomq-script.py")
    return False


def _silent(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


if is_command(sys.orig_argv):
    # Only the words are missing: the process ends by the interrupt, which shells show as 130.
    sys.excepthook = _silent
