"""The compiled twin of `stored_frames` and `property_columns`: it makes the same columns of pull answers.

An installation without a C compiler does not have it, an archive of `--py-files` cannot hold it, and `TRIOMQ_PURE=1`
leaves it unused; then numpy does the same work. The module is written in Cython and knows nothing of the other packages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from triomq_protocol.twins import choose_twins

VERSIONS = {
    "records": 1203110890,
}
"""`VERSION` of each source, which `tests/test_compiled.py` compares with its text."""


def _load() -> Mapping[str, object]:
    from pyspark_rocketmq.rows.compiled import records

    return {"records": records}


PURE, BUILT, USED, STATE, FAULT = choose_twins(_load, VERSIONS, os.environ)
"""See `triomq_protocol.twins.Twins`."""

if FAULT:
    logging.getLogger(__name__).warning("%s", FAULT)
