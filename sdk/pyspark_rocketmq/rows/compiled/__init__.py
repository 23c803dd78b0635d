"""The compiled twin of `stored_frames` and `property_columns`: it makes the same columns of pull answers.

An installation without a C compiler does not have it, an archive of `--py-files` cannot hold it, and `TRIOMQ_PURE=1`
leaves it unused; then numpy does the same work. The module is written in Cython and knows nothing of the other packages.
"""

from __future__ import annotations

import os

PURE = os.environ.get("TRIOMQ_PURE", "") not in ("", "0")
"""Whether this process was told to use Python alone."""

try:
    from pyspark_rocketmq.rows.compiled import records  # noqa: F401
except ImportError:  # no compiler where this was installed, or imported from an archive
    BUILT = False
else:
    BUILT = True

USED = BUILT and not PURE
"""Whether the compiled module is used."""
