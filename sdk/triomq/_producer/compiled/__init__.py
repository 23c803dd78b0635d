"""The compiled twin of `plain_sends`: sends with a callback that share requests, from the message to its callback.

An installation without a C compiler does not have it, and `TRIOMQ_PURE=1` leaves it unused; then Python does the same
work. The module is written in Cython, imports none of the other packages, and receives everything as arguments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from triomq_protocol.twins import choose_twins

VERSIONS = {
    "sends": 988070735,
}
"""`VERSION` of each source, which `tests/test_compiled.py` compares with its text."""


def _load() -> Mapping[str, object]:
    from triomq._producer.compiled import sends

    return {"sends": sends}


PURE, BUILT, USED, STATE, FAULT = choose_twins(_load, VERSIONS, os.environ)
"""See `triomq_protocol.twins.Twins`."""

if FAULT:
    logging.getLogger(__name__).warning("%s", FAULT)
