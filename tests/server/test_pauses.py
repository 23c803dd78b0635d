"""Pauses grow with each failure, up to their limit, and start again after a success."""

from __future__ import annotations

import pytest

from triomq_server.pauses import Pauses


@pytest.mark.parametrize(
    ("first_s", "longest_s", "expected"),
    [
        (1.0, 60.0, [1, 2, 4, 8, 16, 32, 60, 60]),
        (0.5, 10.0, [0.5, 1, 2, 4, 8, 10, 10]),
        (5.0, 5.0, [5, 5]),
    ],
)
def test_pauses_double_up_to_a_limit(first_s: float, longest_s: float, expected: list[float]) -> None:
    pauses = Pauses(first_s, longest_s)
    assert [pauses.next_s() for _ in expected] == expected
    pauses.reset()
    assert [pauses.next_s() for _ in expected[:3]] == expected[:3]
