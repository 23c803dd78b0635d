"""Compiled twins of the hottest paths: they write the same bytes as the Python code that they stand in for.

An installation without a C compiler has none of them, and `TRIOMQ_PURE=1` leaves them unused; then Python does the same
work. The modules are written in Cython, know nothing of the other packages, and get all they need as arguments.
"""

from __future__ import annotations

import os

PURE = os.environ.get("TRIOMQ_PURE", "") not in ("", "0")
"""Whether this process was told to use Python alone."""

try:
    from triomq_server.compiled import index, sends  # noqa: F401
except ImportError:  # no compiler where this was installed
    BUILT = False
else:
    BUILT = True

USED = BUILT and not PURE
"""Whether the compiled modules are used."""

STATE = "used" if USED else "unwanted" if BUILT else "missing"
"""The same for operators, in a broker's runtime information."""
