"""Which queues a member should have, and when that is worked out again: tables of cases."""

from __future__ import annotations

import pytest

import triomq
from triomq._consumer.group.allocate import Average
from triomq._consumer.group.shares import (
    Moves,
    Share,
    duplicate_ids,
    pause_after_round,
    plan_moves,
    work_out_share,
)

Q = [triomq.MessageQueue("T", "broker-a", number) for number in range(8)]


def test_moves_are_the_difference() -> None:
    assert plan_moves({Q[0], Q[1]}, [Q[2], Q[1]]) == Moves(revoke=(Q[0],), assign=(Q[2],))
    assert plan_moves(set(), []) == Moves((), ())
    # In the order of numbers, not of texts.
    high = [triomq.MessageQueue("T", "b", 10), triomq.MessageQueue("T", "b", 9)]
    assert plan_moves(set(), high).assign == (high[1], high[0])


def test_a_stuck_queue_is_taken_again() -> None:
    assert plan_moves({Q[0], Q[1]}, [Q[0], Q[1]], {Q[1]}) == Moves(revoke=(Q[1],), assign=(Q[1],))


@pytest.mark.parametrize(
    ("queues", "members", "was_absent", "share"),
    [
        (None, ["me"], False, Share(None)),
        ([], ["me"], False, Share(None)),
        (Q[:2], None, False, Share(None)),
        (Q[:2], [], False, Share(None)),
        (Q[:2], ["me"], False, Share((Q[0], Q[1]))),
        (Q[1::-1], ["you", "me"], False, Share((Q[0],))),
        # Listed twice, by its old link and its new one: otherwise nobody would consume its second share.
        (Q[:2], ["me", "me"], False, Share((Q[0], Q[1]))),
        (Q[:4], ["you", "me", "you", "me"], False, Share((Q[0], Q[1]))),
        (Q[:2], ["you"], False, Share(None, is_member=False)),
        (Q[:2], ["you"], True, Share((), is_member=False)),
    ],
)
def test_missing_information_changes_nothing(queues, members, was_absent, share) -> None:
    assert work_out_share("me", queues, members, Average(), was_absent=was_absent) == share


def fails(*_args):
    raise ZeroDivisionError


def fails_in_its_second_step(_client_id, queues, _members):
    yield queues[0]
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "strategy",
    [
        fails,
        fails_in_its_second_step,
        lambda *_args: None,
        lambda *_args: [Q[0], "broker-a:1"],
        lambda *_args: [0, 1],
        lambda *_args: {"T": 0},
    ],
)
def test_a_failing_strategy_changes_nothing(strategy) -> None:
    share = work_out_share("me", Q, ["me"], strategy, was_absent=False)
    assert share == Share(None)
    assert share.failure is not None


def test_a_strategy_may_be_a_generator() -> None:
    def even(_client_id, queues, _members):
        yield from queues[::2]

    assert work_out_share("me", Q, ["me"], even, was_absent=False) == Share(tuple(Q[::2]))


def test_duplicates_are_found() -> None:
    assert duplicate_ids(["a", "b", "a", "c", "b", "a"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("done", "missing_since", "pause_s"),
    [
        (False, [], 1),
        (False, [0], 1),
        (True, [], 20),
        (True, [100], 1),
        (True, [95], 5),
        (True, [0, 93, 40], 7),
        (True, [0], 20),
    ],
)
def test_pauses_between_rounds(done, missing_since, pause_s) -> None:
    assert pause_after_round(20, done=done, now=100, missing_since=missing_since) == pause_s
    assert pause_after_round(0.5, done=done, now=100, missing_since=missing_since) == 0.5


@pytest.mark.parametrize(
    ("done", "missing_since", "unlisted_since", "pause_s"),
    [
        (False, [], [0], 1),
        (True, [], [100], 1),
        (True, [], [97], 3),
        (True, [], [0], 5),
        (True, [], [0, 98], 2),
        (True, [98], [0], 2),
        (True, [0], [97], 3),
    ],
)
def test_pauses_while_members_are_not_listed(done, missing_since, unlisted_since, pause_s) -> None:
    options = {"done": done, "missing_since": missing_since, "unlisted_since": unlisted_since}
    assert pause_after_round(20, now=100, **options) == pause_s
    assert pause_after_round(0.5, now=100, **options) == 0.5
