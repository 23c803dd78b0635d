"""Creates message ids for thousands of rows at once, as a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from triomq._companions import UniqueKeys

_COUNTER_VALUES: Final = 0x10000
"""The number of values of an id's last four digits; each may be used once per millisecond."""
_ONCE: Final = 4096
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.array([12, 8, 4, 0])


class MessageIds:
    """Creates the message ids of one task.

    Args:
        keys: numbers the ids; used by this object only.
        clock: wall clock, ms since 1970.
    """

    def __init__(self, keys: UniqueKeys, clock: Callable[[], int]) -> None:
        self._keys = keys
        self._clock = clock
        self._now_ms = 0
        self._used = 0

    def column(self, count: int) -> pa.LargeStringArray:
        """Create `count` new ids, at least one."""
        made = [self._some(min(_ONCE, count - begin)) for begin in range(0, count, _ONCE)]
        text = np.concatenate(made)
        offsets = np.arange(count + 1, dtype=np.int64) * text.shape[1]
        return pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)], 0)

    def _some(self, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        stamp, first = self._keys.reserve(count, self._time_for(count))
        ids = np.empty((count, len(stamp) + len(_SHIFTS)), np.uint8)
        ids[:, : len(stamp)] = np.frombuffer(stamp.encode(), np.uint8)
        numbers = (first + np.arange(count)) % _COUNTER_VALUES
        ids[:, len(stamp) :] = _DIGITS[(numbers[:, np.newaxis] >> _SHIFTS) & 0xF]
        return ids

    def _time_for(self, count: int) -> int:
        """The time in the next `count` ids: now, or the next millisecond in which the counter does not wrap around."""
        now_ms = max(self._clock(), self._now_ms)
        if now_ms == self._now_ms and self._used + count > _COUNTER_VALUES:
            now_ms += 1
        if now_ms != self._now_ms:
            self._now_ms = now_ms
            self._used = 0
        self._used += count
        return now_ms
