"""The short form of `planted_faults.py`: each kind twice on a virtual clock, and some in runs of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_kinds import BY_NAME, KINDS
from real_runs import run_really
from virtual_runs import run_virtually

REAL = ("kill -9 of the broker", "SIGSTOP of the name server", "log went back")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_cause_is_named(kind: object, seed: int, tmp_path: Path) -> None:
    decision = run_virtually(kind.name, seed, tmp_path)  # type: ignore[attr-defined]
    assert kind.is_named(decision), decision  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
async def test_the_cause_is_named_of_real_processes(name: str, tmp_path: Path) -> None:
    decision = await run_really(name, 1, tmp_path)
    assert BY_NAME[name].is_named(decision), decision


def test_no_fault_has_no_cause(tmp_path: Path) -> None:
    decision = run_virtually("nothing", 1, tmp_path)
    assert decision.passed, decision
    assert not any(kind.is_named(decision) for kind in KINDS)
