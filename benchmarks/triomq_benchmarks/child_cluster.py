"""A cluster as child processes, for code that runs no event loop: Spark's drivers, and tests of the data source.

The same `triomq_server cluster --control` as in `demo_cluster.py`, driven by plain calls.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .processes import Child, ChildError

READY_LIMIT_S = 60.0


class ChildCluster(Child):
    """A running cluster; made by :func:`open_child_cluster`.

    Attributes:
        name_servers: what a client is opened with.
        nodes: name -> what the cluster says of each process: its role, pid, address and directory.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        super().__init__("cluster", argv, log, pipes=True)
        self._unread = b""
        self.name_servers = ""
        self.nodes: dict[str, dict[str, Any]] = {}

    def wait_ready(self) -> None:
        """Wait until every node serves.

        Raises:
            ChildError: one does not, or not in time.
        """
        event = self._event("ready")
        self.name_servers = event["name_servers"]
        self.nodes = {node["name"]: node for node in event["nodes"]}

    def named(self, role: str) -> str:
        """The name of the first node of a role: `namesrv`, `master` or `slave`."""
        return next(name for name, node in sorted(self.nodes.items()) if node["role"] == role)

    def kill_node(self, name: str) -> None:
        """SIGKILL, and wait until it is known to be gone."""
        self._command(f"kill {name}", "ended", name)

    def start_node(self, name: str) -> None:
        """Start a node again, on the same directory and port."""
        self.nodes[name] = self._command(f"start {name}", "started", name)

    def _command(self, text: str, wanted: str, name: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()
        while True:
            event = self._event(wanted)
            if event["name"] == name:
                return event

    def _event(self, wanted: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.perf_counter() + READY_LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._unread:
                    line, _, self._unread = self._unread.partition(b"\n")
                    event: dict[str, Any] = json.loads(line)
                    if event["event"] == wanted:
                        return event
                    if event["event"] == "error":
                        raise ChildError(f"the cluster says: {event['error']}")
                if not selector.select(max(0.0, deadline - time.perf_counter())):
                    raise self.failure(f"did not say {wanted!r} within {READY_LIMIT_S:g} s")
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self.failure("ended")
                self._unread += data


@contextmanager
def open_child_cluster(*options: str, directory: Path | None = None) -> Iterator[ChildCluster]:
    """Run a cluster for as long as the block lasts.

    Args:
        options: of `triomq cluster`, like `--masters=2`.
        directory: where its files go, and stay; by default they are gone at the end.

    Raises:
        ChildError: it was not ready in time, or said why it cannot be.
    """
    with tempfile.TemporaryDirectory(prefix="triomq-cluster-", ignore_cleanup_errors=True) as scratch:
        home = directory if directory is not None else Path(scratch)
        argv = [
            sys.executable, "-m", "triomq_server", "cluster", "--json", "--control",
            f"--directory={home / 'cluster'}", *options,
        ]  # fmt: skip
        with ChildCluster(argv, home / "cluster.log") as cluster:
            cluster.wait_ready()
            yield cluster
