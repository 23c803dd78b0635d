"""Strangers send hostile bytes to all ports of real servers, while two well-behaved clients go on.

TRIOMQ_SEED sets the seed. `python tests/faults/hostile/hostile_traffic.py --minutes 60` does it for longer, with figures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_frames import FrameMaker, Kind
from hostile_traffic import run

SEED = int(os.environ.get("TRIOMQ_SEED", "5"))
FRAMES = 4000
LOOP_MOST_MS = 1000.0
"""Processor time of a server's loop between a probe and its answer. It is no duration: a busy machine adds nothing, and
one at a quarter of the speed four times as much. The loop may serve others in between, each for 50 ms at most."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads processor times from /proc")
async def test_hostile_traffic_harms_no_one(tmp_path: Path, figures: Callable[[str], None]) -> None:
    result = await run(tmp_path, SEED, frames=FRAMES, cpu=0.5)
    figures(
        f"hostile traffic, seed {SEED}: {result.sent['frames']} frames, {sum(result.sent['closed'].values())} connections "
        f"closed by servers; {result.acknowledged} sends of others: {result.hostile['sends']}"
    )
    assert result.faults() == []
    # Large tables and batches are rare.
    assert set(result.sent["kinds"]) >= set(Kind) - {Kind.MANY, Kind.LARGE_BATCH}
    assert result.sent["reports"]
    assert {"flood", "slow", "mute", "half frame", "burst", "report"} <= set(result.sent["connections"])
    probes = result.hostile["probes"]
    assert all(each["count"] for each in probes.values())
    assert [each["unanswered"] for each in probes.values()] == [0, 0, 0]
    assert max(each["most_loop_ms"] for each in probes.values()) < LOOP_MOST_MS


def test_a_seed_repeats_its_frames() -> None:
    one, other, another = (FrameMaker(seed) for seed in (SEED, SEED, SEED + 1))
    frames = [one.one() for _ in range(300)]
    assert frames == [other.one() for _ in range(300)]
    assert frames != [another.one() for _ in range(300)]
    assert one.report() == other.report()
