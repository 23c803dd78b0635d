"""The ids of many rows are numbered as single ones are, and none is made twice."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark_rocketmq.rows.message_ids import MessageIds
from triomq._cluster.identity import UniqueKeys

NOW_MS = 1_790_000_000_000


@pytest.mark.parametrize("ip", ["192.168.1.7", "fe80::1"])
def test_they_are_numbered_as_single_ids_are(ip: str) -> None:
    keys = UniqueKeys(ip, lambda: NOW_MS)
    before = keys.next(NOW_MS)
    column = MessageIds(keys, lambda: NOW_MS).column(5000)
    column.validate(full=True)
    ids = column.to_pylist()
    after = keys.next(NOW_MS)
    stamp = before[:-4]
    assert [before, *ids, after] == [f"{stamp}{number:04X}" for number in range(5002)]


def test_no_id_is_repeated_when_the_clock_stops_or_goes_back() -> None:
    times = iter([NOW_MS] * 40 + [NOW_MS - 5000] * 40 + [NOW_MS + 1] * 40 + [NOW_MS + 2] * 1000)
    made = MessageIds(UniqueKeys("127.0.0.1", lambda: NOW_MS), lambda: next(times))
    ids = [each for count in (200_000, 1, 70_000, 131_072) for each in made.column(count).to_pylist()]
    assert len(set(ids)) == len(ids) == 401_073
