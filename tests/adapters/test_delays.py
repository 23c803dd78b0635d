"""The levels of a delay, and messages that arrive too early."""

from __future__ import annotations

import pytest

from triomq.errors import InvalidCall
from triomq_adapters.delays import DUE_PROPERTY, LEVELS_S, delay_level, due_after, remaining_ms

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("remaining", "level"),
    [
        (-5, 0), (0, 0), (1, 1), (999, 1), (1000, 1), (4999, 1), (5000, 2), (59_999, 4), (60_000, 5),
        (7_199_999, 17), (7_200_000, 18), (40 * 86_400_000, 18),
    ],
)  # fmt: skip
def test_the_longest_level_that_is_not_too_long(remaining: int, level: int) -> None:
    assert delay_level(remaining) == level


@pytest.mark.parametrize(("seconds", "hops"), [(0.2, 1), (29, 7), (3600, 1), (5 * 3600 + 1, 4), (40 * 86_400, 480)])
def test_a_wait_is_never_early_and_late_by_less_than_a_second(seconds: float, hops: int) -> None:
    due, now, count = NOW + round(seconds * 1000), NOW, 0
    while level := delay_level(due - now):
        now += LEVELS_S[level - 1] * 1000
        count += 1
    assert 0 <= now - due < 1000
    assert count == hops


@pytest.mark.parametrize(
    ("delay", "due"),
    [(None, None), (0, None), (-3, None), (0.0001, NOW + 1), (2, NOW + 2000), ("1.5", NOW + 1500), (True, NOW + 1000)],
)
def test_when_a_message_is_due(delay: object, due: int | None) -> None:
    assert due_after(delay, NOW) == due


@pytest.mark.parametrize("delay", ["soon", "nan", float("inf"), "", [1], 1e300, 10**400])
def test_a_delay_that_is_no_number_of_seconds(delay: object) -> None:
    with pytest.raises(InvalidCall, match="not a number of seconds"):
        due_after(delay, NOW)


@pytest.mark.parametrize(
    ("due", "remaining"),
    [(None, 0), ("", 0), ("tomorrow", 0), ("-5", 0), ("1" * 5000, 0), ("²", 0), (str(NOW + 7), 7), (str(NOW - 7), -7)],
)
def test_what_is_left_of_a_wait(due: str | None, remaining: int) -> None:
    assert remaining_ms({} if due is None else {DUE_PROPERTY: due}, NOW) == remaining
