"""Servers in processes that a test kills and starts again on the same directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

LIMIT_S = 120
"""How long a start may take, or anything else that a test waits for."""

SMALL_FILES = {
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceWarningLevelRatio": "0.99",
    "diskSpaceCleanForciblyRatio": "0.98",
}
"""Settings of a broker whose log and queues go on to a new file often, so that kills hit that too."""


@asynccontextmanager
async def server(log: Path, *arguments: str) -> AsyncIterator[trio.Process]:
    """A server process that has reported that it is ready; killed at the end of the block at the latest."""
    with log.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "triomq_server", *arguments, "--json"], stdout=subprocess.PIPE, stderr=errors
        )
    output = process.stdout
    assert output is not None
    try:
        with trio.fail_after(LIMIT_S):
            line = await output.receive_some()
        assert line, f"{arguments[0]} did not start: {log.read_text()[-2000:]}"  # noqa: ASYNC240
        assert json.loads(line)["event"] == "ready"
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await output.aclose()
