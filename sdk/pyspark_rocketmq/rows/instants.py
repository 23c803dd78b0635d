"""Converts the times of records to a column of timestamps. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_KIND: Final = pa.timestamp("us", tz="UTC")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
# A day after Python's earliest date, since `collect()` creates dates in the session's time zone.
EARLIEST_MS: Final = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MS
LATEST_MS: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MS - 1


def instants(times_ms: npt.NDArray[np.int64]) -> pa.Array:
    """Timestamps, null where Spark and Python have none: senders may write any 64 bits.

    Args:
        times_ms: times in milliseconds since 1970.
    """
    if not len(times_ms) or (times_ms.min() >= EARLIEST_MS and times_ms.max() <= LATEST_MS):
        return pa.array(times_ms * 1000, _KIND)
    known = (times_ms >= EARLIEST_MS) & (times_ms <= LATEST_MS)
    return pa.array(np.where(known, times_ms, 0) * 1000, _KIND, mask=~known)
