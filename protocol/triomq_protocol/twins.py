"""Chooses between a compiled module and the Python code next to it.

A compiled module that was built from an older source is not used: its callers have changed with the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Twins(NamedTuple):
    """The result of the import.

    Attributes:
        pure: whether this process uses only Python, because `TRIOMQ_PURE` is set.
        built: whether all modules exist and were built from their present sources.
        used: whether they are used.
        state: the same in a word: used, unwanted, missing or stale.
        fault: the fault of existing modules, and its remedy; empty if there is none.
    """

    pure: bool
    built: bool
    used: bool
    state: str
    fault: str


def choose_twins(
    load: Callable[[], Mapping[str, object]], versions: Mapping[str, int], environ: Mapping[str, str]
) -> Twins:
    """Import compiled modules, and decide whether they are used.

    Args:
        load: imports and returns them by name; ImportError if they were not built.
        versions: `VERSION` of each, as stated in its present source.
        environ: the environment's variables; `TRIOMQ_PURE=1` selects only Python.
    """
    pure = environ.get("TRIOMQ_PURE", "") not in ("", "0")
    try:
        modules = load()
    except ImportError:
        return Twins(pure, built=False, used=False, state="missing", fault="")
    stale = [name for name, version in versions.items() if getattr(modules[name], "VERSION", None) != version]
    if stale:
        fault = (
            f"{', '.join(stale)}: compiled from an older source and not used, Python does the work more slowly; install "
            f"again, in a source tree with `pip install -e .`"
        )
        return Twins(pure, built=False, used=False, state="stale", fault=fault)
    return Twins(pure, built=True, used=not pure, state="unwanted" if pure else "used", fault="")
