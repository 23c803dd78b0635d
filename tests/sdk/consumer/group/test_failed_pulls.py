"""Failed pulls: a warning for the first of a topic's queues at a broker, which may be another one when that has ended."""

from __future__ import annotations

import logging

import pytest

from triomq import MessageQueue
from triomq._consumer.group.failed_pulls import FailedPulls
from triomq.errors import ConnectFailed, LinkLost

A0, A1, B0, OTHER = (MessageQueue(*each) for each in (("T", "a", 0), ("T", "a", 1), ("T", "b", 0), ("U", "a", 0)))
LOST, AWAY = LinkLost("pull"), ConnectFailed("pull")


@pytest.mark.parametrize(
    ("failures", "warnings"),
    [
        ([(A0, LOST), (A0, LOST), (A0, AWAY), (A1, LOST)], [True, False, False, False]),
        ([(A0, LOST), (B0, LOST), (OTHER, LOST), (A1, AWAY)], [True] * 4),
        ([(A0, LOST), (A0, None), (A0, LOST)], [True, True]),
        (
            [(A0, LOST), (A1, LOST), (A0, None), (A0, LOST), (A1, None), (A0, None), (A1, LOST)],
            [True, False, False, True],
        ),
        ([(A0, None), (A0, LOST)], [True]),
    ],
)
async def test_what_is_a_warning(autojump_clock, caplog, monkeypatch, failures, warnings):
    monkeypatch.setattr("triomq._transport.peer_log.LOG_EVERY_S", 0)
    caplog.set_level(logging.INFO)
    failed = FailedPulls()
    for queue, error in failures:
        if error is None:
            failed.end(queue)
        else:
            failed.note(queue, error)
    assert [record.levelno == logging.WARNING for record in caplog.records] == warnings


async def test_a_failure_that_is_not_worth_a_warning_leaves_it_to_the_next(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    failed = FailedPulls()
    failed.note(A0, LOST, may_warn=False)
    failed.note(A0, LOST)
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    failed.end(A0)
    assert not failed._kinds
    assert not failed._queues
