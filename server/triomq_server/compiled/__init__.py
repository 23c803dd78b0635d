"""Compiled twins of the hottest paths: they write the same bytes as the Python code that they replace.

An installation without a C compiler has none of them, and `TRIOMQ_PURE=1` leaves them unused; then Python does the same
work. The modules are written in Cython, import none of the other packages, and get all they need as arguments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from triomq_protocol.twins import choose_twins

VERSIONS = {
    "directories": 1194164424,
    "index": 3076496704,
    "pulls": 7800533,
    "recovery": 2128356156,
    "replay": 2481523216,
    "sends": 185927876,
}
"""`VERSION` of each source, which `tests/test_compiled.py` compares with its text and that of what it includes."""


def _load() -> Mapping[str, object]:
    from triomq_server.compiled import directories, index, pulls, recovery, replay, sends

    return {
        "directories": directories,
        "index": index,
        "pulls": pulls,
        "recovery": recovery,
        "replay": replay,
        "sends": sends,
    }


PURE, BUILT, USED, STATE, FAULT = choose_twins(_load, VERSIONS, os.environ)
"""See `triomq_protocol.twins.Twins`."""

if FAULT:
    logging.getLogger(__name__).warning("%s", FAULT)
