"""The clients of Go and Node as processes: their commands and output."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from triomq_benchmarks.clusters.builds import built, cache_folder, digest, find_tool

HERE = Path(__file__).parent
LIMIT_S = 240.0


def go_command() -> list[str]:
    """Build the client around client-go; return the command that starts it. Raises ToolUnavailableError."""
    go, sources = find_tool("go"), sorted((HERE / "go").iterdir())
    folder = cache_folder(f"go-interop-{digest(sources)}")
    argv = [go, "build", "-o", "client", "."]
    built(folder, argv, "building the client around client-go", sources=sources, cwd=folder)
    return [str(folder / "client")]


def node_command() -> list[str]:
    """Install ali-ons beside its client; return the command that starts that. Raises ToolUnavailableError."""
    node, npm = find_tool("node"), find_tool("npm")
    sources = sorted((HERE / "node").iterdir())
    folder = cache_folder(f"node-interop-{digest(sources)}")
    argv = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    built(folder, argv, "installing ali-ons", sources=sources, cwd=folder)
    return [node, str(folder / "client.js")]


@attrs.frozen
class Running:
    """A client that runs; its output is a file, so that a test may look at any time."""

    process: subprocess.Popen[bytes]
    log: Path

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What it has printed so far of one kind."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def bodies(self, kind: str) -> list[str]:
        return [event["body"] for event in self.events(kind)]

    def until(self, good: Callable[[], object]) -> None:
        """Wait while it runs. AssertionError with what it printed if it ends or takes too long."""
        end = time.monotonic() + LIMIT_S
        while not good():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.05)

    def finish(self) -> Running:
        """Wait for its end, which must be a good one."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, (code, self.log.read_text()[-4000:])
        return self


@contextmanager
def running(command: list[str], operation: str, log: Path, **options: object) -> Iterator[Running]:
    """Start a client, and kill it at the end of the block if it still runs."""
    with log.open("wb") as out:
        process = subprocess.Popen([*command, operation, json.dumps(options)], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Running(process, log)
    finally:
        process.kill()
        process.wait()
