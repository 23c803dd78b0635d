"""Progress with delayed messages that is taken from a slave."""

from __future__ import annotations

import pytest

from triomq_server.broker.tables.delay_offsets import DelayOffsets


@pytest.mark.parametrize(
    ("received", "taken"),
    [
        (b'{"offsetTable":{1:7}}', {1: 7, 2: 3}),
        (b'{"offsetTable":{1:4,2:2}}', {1: 4, 2: 3}),
        (b'{"offsetTable":{1:4611686018427387904,2:11,9:5}}', {1: 10, 2: 10, 9: 0}),
        (b'{"offsetTable":{1:-5}}', {1: 0, 2: 3}),
    ],
    ids=["further", "not as far", "beyond the messages", "negative"],
)
def test_progress_is_taken_up_to_the_end_of_a_level(received: bytes, taken: dict[int, int]) -> None:
    offsets = DelayOffsets(None)
    offsets.table = {2: 3}
    offsets.take_later(received, lambda level: {1: 10, 2: 10}.get(level, 0))
    assert offsets.table == taken
