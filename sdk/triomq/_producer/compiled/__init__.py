"""The compiled twin of `plain_sends`: sends with a callback that share requests, from the message to its callback.

An installation without a C compiler does not have it, and `TRIOMQ_PURE=1` leaves it unused; then Python does the same
work. The module is written in Cython, knows nothing of the other packages, and gets all it needs as arguments.
"""

from __future__ import annotations

import os

PURE = os.environ.get("TRIOMQ_PURE", "") not in ("", "0")
"""Whether this process was told to use Python alone."""

try:
    from triomq._producer.compiled import sends  # noqa: F401
except ImportError:  # no compiler where this was installed
    BUILT = False
else:
    BUILT = True

USED = BUILT and not PURE
"""Whether the compiled module is used."""

STATE = "used" if USED else "unwanted" if BUILT else "missing"
"""The same for `triomq doctor`."""
