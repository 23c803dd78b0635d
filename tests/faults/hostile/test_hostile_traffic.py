"""A hostile process sends to all ports of real servers, while two well-behaved clients continue.

TRIOMQ_SEED sets the seed. `python tests/faults/hostile/hostile_traffic.py --minutes 60` does it for longer, with
figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hostile_frames import FrameMaker, Kind
from hostile_traffic import run
from timed_server import TimedTurns, read_turns

SEED = int(os.environ.get("TRIOMQ_SEED", "5"))
FRAMES = 4000
TURN_MOST_MS = 200.0
"""Processor time of one turn of a server's loop: 50 ms on a machine that is four times as fast as the slowest."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads processor times from /proc")
async def test_hostile_traffic_affects_no_other_client(tmp_path: Path, figures: Callable[[str], None]) -> None:
    # Large tables and batches are rare.
    kinds = set(Kind) - {Kind.MANY, Kind.LARGE_BATCH}
    result = await run(tmp_path, SEED, frames=FRAMES, kinds=kinds, cpu=0.5)
    figures(
        f"hostile traffic, seed {SEED}: {result.sent['frames']} frames, {sum(result.sent['closed'].values())} connections "
        f"closed by servers; longest turns {[each['longest_ms'] for each in result.turns.values()]} ms; {result.acknowledged} sends of others: {result.hostile['sends']}"
    )
    assert result.faults(TURN_MOST_MS) == []
    assert set(result.sent["kinds"]) >= kinds
    assert result.sent["reports"]
    assert {"flood", "slow", "mute", "half frame", "burst", "report", "filters", "member"} <= set(
        result.sent["connections"]
    )
    probes = result.hostile["probes"]
    assert all(each["count"] for each in probes.values())
    assert [each["unanswered"] for each in probes.values()] == [0, 0, 0]
    assert set(result.turns) == {"name server", "master", "slave"}


def test_a_seed_repeats_its_frames() -> None:
    one, other, another = (FrameMaker(seed) for seed in (SEED, SEED, SEED + 1))
    frames = [one.one() for _ in range(300)]
    assert frames == [other.one() for _ in range(300)]
    assert frames != [another.one() for _ in range(300)]
    assert one.report() == other.report()


@pytest.mark.skipif(sys.platform == "win32", reason="has no profiling timer")
def test_each_long_turn_of_a_loop_is_written_with_what_ran(tmp_path: Path) -> None:
    written = tmp_path / "turns.jsonl"

    def compute_for(cpu_s: float) -> None:
        end = time.thread_time() + cpu_s
        while time.thread_time() < end:
            json.dumps([0] * 100)

    async def compute() -> None:
        for _ in range(5):  # five turns
            compute_for(0.005)
            await trio.lowlevel.checkpoint()
        compute_for(0.06)
        await trio.sleep(0.001)
        time.sleep(0.02)  # noqa: ASYNC251 - takes no processor time

    with written.open("w") as file:
        turns = TimedTurns(file)
        turns.start()
        try:
            trio.run(compute, instruments=[turns])
        finally:
            turns.stop()
    (long,) = [turn for turn in read_turns(written) if turn.cpu_s > 0.04]
    assert long.cpu_s >= 0.06
    assert "compute_for" in long.text()
