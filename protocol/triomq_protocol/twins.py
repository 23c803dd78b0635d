"""Whether a compiled module does the work, or the Python code beside it.

A compiled module that an older source was made into is not used: what calls it has changed with its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Twins(NamedTuple):
    """What was found at import.

    Attributes:
        pure: whether this process uses Python alone, as `TRIOMQ_PURE` asks.
        built: whether all modules are there, made of their present sources.
        used: whether they are used.
        state: the same in a word: used, unwanted, missing or stale.
        fault: what is wrong with modules that are there, and what to do; empty if nothing is.
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
        load: imports and returns them by name; ImportError where there was no compiler.
        versions: `VERSION` of each, as its present source states it.
        environ: the environment's variables; `TRIOMQ_PURE=1` asks for Python alone.
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
