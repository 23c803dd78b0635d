"""Decisions on a half message when the check reaches it: the table of cases."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_server.broker.transactions.decisions import (
    Action,
    HalfState,
    Limits,
    check_times,
    counts_unasked,
    decide,
    immunity_ms,
    is_later_copy,
    naming_first,
    number,
)

HOUR = 3_600_000
NOW = 1_000 * HOUR
LIMITS = Limits(time_out_ms=6000, check_max=15, reserved_hours=72, interval_ms=60_000)


def half(age_ms: int, **fields: Any) -> HalfState:
    return HalfState(**{"born_ms": NOW - age_ms, **fields})


@pytest.mark.parametrize(
    ("state", "action"),
    [
        # By age.
        (half(0), Action.WAIT),
        (half(5999), Action.WAIT),
        (half(6000), Action.CHECK),
        (half(72 * HOUR), Action.CHECK),
        (half(72 * HOUR + 1), Action.DISCARD),
        (half(-1), Action.CHECK),
        (half(-HOUR), Action.CHECK),
        # By the number of checks.
        (half(HOUR, check_times=14), Action.CHECK),
        (half(HOUR, check_times=15), Action.DISCARD),
        (half(0, check_times=15), Action.DISCARD),
        (half(HOUR, check_times=-1), Action.CHECK),
        # The producer wants more time, or less.
        (half(6000, immunity_ms=10_000), Action.RENEW),
        (half(9999, immunity_ms=10_000), Action.RENEW),
        (half(10_000, immunity_ms=10_000), Action.CHECK),
        (half(1000, immunity_ms=1000), Action.CHECK),
        (half(0, immunity_ms=0), Action.CHECK),
        (half(-5, immunity_ms=1000), Action.CHECK),
        (half(80 * HOUR, immunity_ms=100 * HOUR), Action.DISCARD),
        # No longer than until 4.9.7 gives it up.
        (half(15 * 60_000 - 1, immunity_ms=(1 << 40) * 1000), Action.RENEW),
        (half(15 * 60_000, immunity_ms=(1 << 40) * 1000), Action.CHECK),
        (half(-(10**11), immunity_ms=(1 << 40) * 1000), Action.CHECK),
        (half(-(10**11), immunity_ms=(1 << 40) * 1000, check_times=15), Action.DISCARD),
        # Ended: nothing else counts.
        (half(HOUR, ended=True), Action.PASS),
        (half(100 * HOUR, ended=True, check_times=99), Action.PASS),
        (half(0, ended=True), Action.PASS),
    ],
)
def test_decide(state: HalfState, action: Action) -> None:
    assert decide(state, now_ms=NOW, limits=LIMITS) is action


def test_a_limit_of_no_checks_gives_up_after_the_first() -> None:
    limits = Limits(time_out_ms=6000, check_max=0, reserved_hours=72, interval_ms=60_000)
    assert decide(half(HOUR), now_ms=NOW, limits=limits) is Action.CHECK
    assert decide(half(HOUR, check_times=0), now_ms=NOW, limits=limits) is Action.DISCARD


@pytest.mark.parametrize(
    ("limits", "longest_ms"),
    [
        (LIMITS, 900_000),
        (Limits(time_out_ms=6000, check_max=0, reserved_hours=72, interval_ms=60_000), 6000),
        (Limits(time_out_ms=6000, check_max=3, reserved_hours=72, interval_ms=500), 6000),
    ],
)
def test_the_longest_time_that_a_producer_may_want(limits: Limits, longest_ms: int) -> None:
    assert limits.immunity_max_ms == longest_ms


@pytest.mark.parametrize(("mute_rounds", "counted"), [(0, False), (1, False), (3, False), (4, True), (1000, True)])
def test_rounds_of_a_group_that_takes_nothing_count_after_the_first_ones(mute_rounds: int, counted: bool) -> None:
    assert counts_unasked(mute_rounds) is counted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("+7", 7),
        ("-7", -7),
        ("", -1),
        ("x", -1),
        ("1.5", -1),
        (" 1", -1),
        ("٣", -1),
        ("9" * 19, -1),
        ("-", -1),
    ],
)
def test_numbers(text: str, value: int) -> None:
    assert number(text) == value
    assert check_times({"TRANSACTION_CHECK_TIMES": text}) == value


def test_properties_that_are_absent() -> None:
    assert check_times({}) is None
    assert immunity_ms({}, 6000) is None


@pytest.mark.parametrize(("text", "value"), [("30", 30_000), ("0", 0), ("soon", 6000), ("-1", 6000), ("-2", -2000)])
def test_immunity(text: str, value: int) -> None:
    assert immunity_ms({"CHECK_IMMUNITY_TIME_IN_SECONDS": text}, 6000) == value


TIMES, FIRST = "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"


@pytest.mark.parametrize(
    ("newer", "older", "expected"),
    [
        ({TIMES: "1"}, {}, True),
        ({TIMES: "3"}, {TIMES: "2"}, True),
        ({FIRST: "7"}, {}, True),
        ({FIRST: "7", TIMES: "1"}, {FIRST: "7"}, True),
        ({FIRST: "5"}, {FIRST: "5"}, True),
        # Two transactions.
        ({}, {}, False),
        ({TIMES: "1"}, {TIMES: "1"}, False),
        ({TIMES: "1"}, {TIMES: "2"}, False),
        ({}, {TIMES: "1"}, False),
        ({FIRST: "6"}, {}, False),
        ({FIRST: "6"}, {FIRST: "5"}, False),
        ({FIRST: "6", TIMES: "2"}, {FIRST: "5", TIMES: "1"}, False),
        ({TIMES: "2"}, {FIRST: "5", TIMES: "1"}, False),
        # Resumed by an operator.
        ({TIMES: "0"}, {TIMES: "15"}, False),
        ({FIRST: "5", TIMES: "0"}, {FIRST: "5", TIMES: "15"}, False),
    ],
)
def test_what_can_only_be_a_later_copy(newer: dict[str, str], older: dict[str, str], expected: bool) -> None:
    assert is_later_copy(newer, older, 7) is expected


@pytest.mark.parametrize("half", [{}, {TIMES: "2"}, {FIRST: "5"}, {FIRST: "5", TIMES: "2"}])
def test_a_copy_that_names_the_first_is_known_for_one(half: dict[str, str]) -> None:
    copy = naming_first(half, 7)
    assert copy == {**half, FIRST: half.get(FIRST, "7")}
    assert is_later_copy(copy, half, 7)
