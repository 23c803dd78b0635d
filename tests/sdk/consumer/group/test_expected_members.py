"""Which members are expected at a broker that has come back: tables of cases."""

from __future__ import annotations

import pytest

from triomq._consumer.group.expected_members import RETURN_MAX_S, ExpectedMembers, expected_for_s

A, B = "127.0.0.1:1", "127.0.0.1:2"


@pytest.mark.parametrize(("away_s", "expected_s"), [(0, 1), (2, 5), (4.5, 10), (3600, RETURN_MAX_S)])
def test_how_long_members_are_expected(away_s: float, expected_s: float) -> None:
    assert expected_for_s(away_s) == expected_s


@pytest.fixture
def expected() -> ExpectedMembers:
    """Members x and y are known; A was away for 2 s, and has come back at 102 s."""
    found = ExpectedMembers()
    assert found.missing_from(["x", "y"], [A], 99) == []
    found.broker_lost(A, 100)
    found.broker_connected(A, 102)
    return found


@pytest.mark.parametrize(
    ("listed", "addresses", "now", "missing"),
    [
        (["x"], [A], 102, ["y"]),
        ([], [A], 102, ["x", "y"]),
        (["x"], [A], 106.9, ["y"]),
        (["x"], [A], 107, []),
        (["x", "y"], [A], 102, []),
        (["x", "new"], [A], 102, ["y"]),
        (["x"], [B], 102, []),
        (["x"], [A, B], 102, []),
    ],
)
def test_members_of_before(
    expected: ExpectedMembers, listed: list[str], addresses: list[str], now: float, missing: list[str]
) -> None:
    assert expected.missing_from(listed, addresses, now) == missing


def test_a_list_is_incomplete_for_that_time(expected: ExpectedMembers) -> None:
    assert [expected.is_incomplete(A, now) for now in (102, 106.9, 107)] == [True, True, False]
    assert not expected.is_incomplete(B, 102)
    assert (expected.has_come_back(A), expected.has_come_back(B)) == (True, False)


def test_nobody_is_expected_after_all_were_listed(expected: ExpectedMembers) -> None:
    assert expected.missing_from(["x"], [A], 102) == ["y"]
    assert expected.missing_from(["x", "y"], [A], 103) == []
    assert not expected.is_incomplete(A, 103)
    assert expected.missing_from(["x"], [A], 104) == []


def test_a_member_that_leaves_before_all_were_listed_is_expected(expected: ExpectedMembers) -> None:
    """All members decide the same, also those that have not seen it since."""
    assert expected.missing_from(["x"], [A], 102) == ["y"]
    assert expected.missing_from(["y"], [A], 103) == ["x"]
    assert expected.missing_from([], [A], 104) == ["x", "y"]


def test_a_member_is_expected_once(expected: ExpectedMembers) -> None:
    assert expected.missing_from(["x"], [A], 106) == ["y"]
    expected.broker_lost(A, 106)
    expected.broker_connected(A, 106.5)
    assert expected.missing_from(["x"], [A], 106.9) == ["y"]
    assert expected.missing_from(["x"], [A], 107) == []


def test_the_first_of_several_losses_counts(expected: ExpectedMembers) -> None:
    expected.broker_lost(B, 100)
    expected.broker_lost(B, 103)
    expected.broker_connected(B, 104)
    assert expected.missing_from(["x"], [B], 112.9) == ["y"]
    assert expected.missing_from(["x"], [B], 113) == []


def test_a_connection_without_a_loss_is_no_return() -> None:
    found = ExpectedMembers()
    found.broker_connected(A, 100)
    assert found.missing_from(["x", "y"], [A], 100) == []
    assert found.missing_from(["x"], [A], 101) == []
    assert not found.has_come_back(A)
