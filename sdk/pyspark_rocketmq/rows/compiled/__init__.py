"""Compiled twins: `records` of `stored_frames` and `property_columns`, which create the columns of pull answers, and
`row_keys` of the module of that name.

An installation without a C compiler does not have them, an archive of `--py-files` cannot hold them, and `TRIOMQ_PURE=1`
leaves them unused; then numpy and Python do the same work. They are written in Cython and import none of the other
packages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from triomq_protocol.twins import choose_twins

VERSIONS = {
    "records": 2625687943,
    "row_keys": 1772709530,
}
"""`VERSION` of each source, which `tests/test_compiled.py` compares with its text."""


def _load() -> Mapping[str, object]:
    from pyspark_rocketmq.rows.compiled import records, row_keys

    return {"records": records, "row_keys": row_keys}


PURE, BUILT, USED, STATE, FAULT = choose_twins(_load, VERSIONS, os.environ)
"""See `triomq_protocol.twins.Twins`."""

if FAULT:
    logging.getLogger(__name__).warning("%s", FAULT)
