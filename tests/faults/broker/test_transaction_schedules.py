"""The first schedules of `transaction_schedules`, and the pure part of it.

More of them: ``TRIOMQ_TRANSACTION_SCHEDULES=200``, or the program itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from transaction_producer import decisions
from transaction_schedules import PAIRS, kills_of, run_schedules

SCHEDULES = int(os.environ.get("TRIOMQ_TRANSACTION_SCHEDULES", "3"))


def test_every_schedule_kills_broker_and_producer() -> None:
    schedules = [kills_of(seed) for seed in range(200)]
    assert schedules == [kills_of(seed) for seed in range(200)]
    for kills in schedules:
        assert any(kill.broker for kill in kills)
        assert any(kill.producer for kill in kills)
    shapes = {tuple((kill.broker, kill.producer) for kill in kills) for kills in schedules}
    assert len(shapes) == 4


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, {}),
        ("", {}),
        ("0/1 COMMIT\n0/2 ROLLBACK\n", {"0/1": "COMMIT", "0/2": "ROLLBACK"}),
        ("0/1 COMMIT\n0/2 ROLL", {"0/1": "COMMIT"}),
    ],
)
def test_decisions_of_a_file(tmp_path: Path, text: str | None, found: dict[str, str]) -> None:
    file = tmp_path / "decisions.txt"
    if text is not None:
        file.write_text(text)
    assert decisions(file) == found


@pytest.mark.slow
def test_committed_messages_are_delivered_and_no_others(tmp_path: Path, figures: Callable[[str], None]) -> None:
    totals = run_schedules(tmp_path, 0, SCHEDULES, PAIRS["ours"])
    figures(f"transactions: {totals}")
    assert not totals.lost
    assert not totals.false
    assert totals.schedules == SCHEDULES
