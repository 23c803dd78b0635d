"""Transactions while broker and producer are killed: our broker and the real one take turns on one store.

More of them: ``TRIOMQ_TRANSACTION_SCHEDULES=200``, or
``python tests/faults/broker/transaction_schedules.py --pair mixed --schedules 200``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transaction_schedules import PAIRS, run_schedules

SCHEDULES = int(os.environ.get("TRIOMQ_TRANSACTION_SCHEDULES", "2"))


def test_committed_messages_are_delivered_and_no_others(java: Any, tmp_path: Path, capsys: Any) -> None:
    assert java
    totals = run_schedules(tmp_path, 0, SCHEDULES, PAIRS["mixed"])
    with capsys.disabled():
        print(f"\ntransactions, mixed: {totals}")
    assert not totals.lost
    assert not totals.false
    assert totals.schedules == SCHEDULES
