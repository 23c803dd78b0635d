"""SIGKILL at any moment: what was reported as flushed is stored, in order, and no record is partial."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from triomq_server.store import MessageStore, open_store
from triomq_server.wire import to_the_end

LIVES = 5
KILLS_PER_LIFE = 4
SEED = 20261121


@pytest.mark.slow
@pytest.mark.parametrize("life", range(LIVES))
async def test_killed_repeatedly(
    life: int, tmp_path: Path, writer: ModuleType, inspect: Callable[[MessageStore], dict[tuple[int, int], int]]
) -> None:
    seed = SEED + life
    chance = random.Random(seed)
    acknowledged: dict[tuple[int, int], int] = {}
    next_number = 1
    for turn in range(KILLS_PER_LIFE):
        said = await write_and_kill(tmp_path, f"{seed}{turn}", next_number, chance.uniform(0.0, 0.3))
        acknowledged.update(said)
        async with open_store(writer.config(str(tmp_path))) as store:
            assert not store.recovery_report.clean
            found = inspect(store)
            lost = {k: n for k, n in acknowledged.items() if found.get(k) != n}
            assert not lost, f"seed {seed}, round {turn}: {lost}"
            for number in chance.sample(sorted(found.values()), min(50, len(found))):
                assert len(to_the_end(store.query("T", f"k{number}", 10, 0, 1 << 60)).records) >= 1, (
                    f"seed {seed}, round {turn}"
                )
            next_number = max(found.values(), default=0) + 1
    assert len(acknowledged) > 100


async def write_and_kill(root: Path, seed: str, first: int, wait_s: float) -> dict[tuple[int, int], int]:
    """Let the writer write for a while, kill it, and return what it had reported."""
    command = [sys.executable, str(Path(__file__).parent / "writer.py"), str(root), seed, str(first)]
    output = bytearray()

    async def read(process: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        started = False
        async for chunk in process.stdout:
            output.extend(chunk)
            if not started:
                started = True
                task_status.started()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            await nursery.start(read, process)
            await trio.sleep(wait_s)
            process.send_signal(signal.SIGKILL)
            await process.wait()
    said = {}
    for line in output[: output.rfind(b"\n") + 1].decode().splitlines():
        queue_id, offset, number = map(int, line.split())
        said[queue_id, offset] = number
    return said
