"""Seeded faults around a consumer group: nothing is lost, order is kept, no queue has two owners for long.

TRIOMQ_CONSUMER_SIMULATIONS sets how many seeds, TRIOMQ_SEED the first one; a failure prints its seed, and
`python tests/faults/consumers/consumer_simulation.py --first SEED -v` repeats it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import pytest
from consumer_ledger import Ledger
from consumer_simulation import kinds, simulate

from triomq._consumer.push.membership import PushMembership
from triomq._message.message import MessageQueue

SEEDS = int(os.environ.get("TRIOMQ_CONSUMER_SIMULATIONS", "40"))
SHARE = 10
"""Seeds per test."""
FIRST = int(os.environ.get("TRIOMQ_SEED", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, SHARE))
def test_nothing_is_lost_and_order_is_kept(first: int, figures: Callable[[str], None]) -> None:
    begin = time.perf_counter()
    outcomes = [simulate(seed) for seed in range(first, min(first + SHARE, FIRST + SEEDS))]
    failed = [each for each in outcomes if each.faults]
    figures(
        f"{len(outcomes)} consumer schedules from seed {first}, {sum(len(each.events) for each in outcomes)} events, "
        f"{sum(each.acknowledged for each in outcomes)} acknowledged, {sum(each.handled for each in outcomes)} handled, "
        f"{sum(each.repeats for each in outcomes)} repeats, {len(failed)} failed, {time.perf_counter() - begin:.0f} s"
    )
    lines = [f"seed {each.seed} {each.setting}: {dict(kinds(each.faults))} {each.faults[:3]}" for each in failed]
    assert not failed, "\n".join(lines)


def test_a_seed_repeats_itself() -> None:
    assert simulate(3) == simulate(3)


def test_a_member_that_does_not_wait_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit's own test: queues are committed to the end of what was pulled when they are given up."""

    async def revoked(self: PushMembership, queues: Sequence[MessageQueue], /) -> Sequence[MessageQueue]:
        for queue in queues:
            offset = self.engine.queues[queue].next_offset
            self.engine.stop(queue)
            self.positions.update(queue, offset, increase_only=True)
            await self.positions.persist([queue])
            self.positions.forget(queue)
        return queues

    monkeypatch.setattr(PushMembership, "revoked", revoked)
    faults = (fault for seed in range(60) for fault in simulate(seed).faults)
    assert any("lost" in fault for fault in faults)


def test_the_ledger_detects_a_broken_order() -> None:
    ledger = Ledger()
    queue = ("broker-a", 0)
    ledger.acknowledged = {b"one": (queue, 0), b"two": (queue, 1)}
    late = ledger.begin("m", queue, 1, b"two", 1.0)
    late.end_s, late.done = 2.0, True
    early = ledger.begin("m", queue, 0, b"one", 2.0)
    early.end_s, early.done = 3.0, True
    assert len(ledger.order_faults()) == 1
    other = ledger.begin("n", queue, 1, b"two", 2.5)
    other.end_s, other.done = 4.0, True
    assert len(ledger.overlap_faults()) == 1
    ledger.broker_starts_s.append(2.0)
    assert not ledger.overlap_faults()
    assert not ledger.unhandled()
    assert ledger.repeats() == 1
