"""The table of a pull's outcome: code and next broker by status, role and lag (docs/protocol/broker-api.md §5.3,
docs/protocol/ha.md §8)."""

from __future__ import annotations

import pytest

from triomq_server.broker.requests.suggestion import PullOutcome, pull_outcome
from triomq_server.store import ReadStatus as S

HOME, SLOW = 5, 7


def outcome(
    status: S, offset: int = 3, *, lags: bool = False, slave_read: bool = True, final: bool = True
) -> PullOutcome:
    return pull_outcome(status, offset, lags=lags, slave_read=slave_read, home_id=HOME, slow_id=SLOW, final=final)


@pytest.mark.parametrize(
    ("status", "offset", "on_master", "on_slave"),
    [
        (S.FOUND, 3, 0, 0),
        (S.NO_MATCHED_MESSAGE, 3, 20, 20),
        (S.MESSAGE_WAS_REMOVING, 3, 20, 20),
        (S.OFFSET_FOUND_NULL, 3, 19, 19),
        (S.OFFSET_OVERFLOW_ONE, 3, 19, 19),
        (S.NO_MESSAGE_IN_QUEUE, 0, 19, 19),
        (S.NO_MESSAGE_IN_QUEUE, 3, 21, 20),
        (S.OFFSET_TOO_SMALL, 3, 21, 20),
        (S.OFFSET_TOO_SMALL, -5, 21, 20),
        (S.OFFSET_OVERFLOW_BADLY, 3, 21, 20),
    ],
)
def test_code_by_status_and_role(status: S, offset: int, on_master: int, on_slave: int) -> None:
    assert outcome(status, offset, final=True).code == on_master
    assert outcome(status, offset, final=False).code == on_slave


@pytest.mark.parametrize(
    ("slave_read", "lags", "broker_id"),
    [(False, False, 0), (False, True, 0), (True, False, HOME), (True, True, SLOW)],
)
@pytest.mark.parametrize("final", [True, False])
def test_next_broker(slave_read: bool, lags: bool, broker_id: int, final: bool) -> None:
    assert outcome(S.FOUND, slave_read=slave_read, lags=lags, final=final).broker_id == broker_id


@pytest.mark.parametrize("slave_read", [True, False])
def test_slave_sends_impossible_offsets_to_the_master(slave_read: bool) -> None:
    """The slave may only be behind; the master decides, whatever slaveReadEnable is."""
    answered = outcome(S.OFFSET_OVERFLOW_BADLY, slave_read=slave_read, lags=True, final=False)
    assert answered == PullOutcome(20, HOME, offset_moved=False)


def test_an_event_only_where_the_broker_decides() -> None:
    assert outcome(S.OFFSET_TOO_SMALL, final=True).offset_moved
    assert not outcome(S.OFFSET_TOO_SMALL, final=False).offset_moved
    assert not outcome(S.FOUND, final=True).offset_moved
