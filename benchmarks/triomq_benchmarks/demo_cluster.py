"""The quickstart's cluster: one child process that starts a name server, a master and a slave, each a process of its own.

Whatever happens here, nothing is left over: the child ends when its standard input does, its nodes end with it, and the
temporary directory is removed last.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.frame import FrameDecoder
from triomq_protocol.requests.route import KVTable

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
ASK_LIMIT_S = 5.0


class ClusterError(Exception):
    """The cluster did not start, or a node did not answer; the text says which and why."""


@attrs.frozen
class DemoNode:
    """One process of the cluster."""

    name: str
    role: str
    pid: int
    address: str
    directory: str


@attrs.frozen
class DemoCluster:
    """A running cluster.

    Attributes:
      name_servers: what a client is opened with.
      ready_s: seconds from the start of the child, its interpreter included, to the last node that was ready to serve.
      nodes: its processes by name.
      process: the child that started them.
    """

    name_servers: str
    ready_s: float
    nodes: dict[str, DemoNode]
    process: trio.Process = attrs.field(repr=False)

    def kill(self, name: str) -> None:
        """SIGKILL: the node gets no chance to say or write anything more."""
        os.kill(self.nodes[name].pid, signal.SIGKILL)

    async def start(self, name: str) -> None:
        """Start a node that was killed, on the same directory and port.

        Raises:
          ClusterError: it was not ready in time, or said why it cannot be.
        """
        assert self.process.stdin is not None
        while (ended := await _event(self.process, "ended")) is not None and ended["name"] != name:
            pass  # another one, that is to stay down
        if ended is None:
            raise ClusterError(f"{name} was not killed, so it cannot be started again")
        await self.process.stdin.send_all(f"start {name}\n".encode())
        event = await _event(self.process, "started")
        if event is None or event["name"] != name:
            raise ClusterError(f"{name} was not ready again after {READY_LIMIT_S:g} s")
        self.nodes[name] = DemoNode(**{field.name: event[field.name] for field in attrs.fields(DemoNode)})


@asynccontextmanager
async def open_demo_cluster(
    *,
    masters: int = 1,
    slaves: int = 1,
    sync_replication: bool = False,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[DemoCluster]:
    """Run a cluster for as long as the block lasts, in a temporary directory.

    Args:
      masters: broker sets.
      slaves: of each master.
      sync_replication: whether sends wait for a slave.
      settings: RocketMQ keys of all brokers.

    Raises:
      ClusterError: it was not ready in time, or said why it cannot be.
    """
    with tempfile.TemporaryDirectory(prefix="triomq-quickstart-", ignore_cleanup_errors=True) as directory:
        command = [
            sys.executable, "-m", "triomq_server", "cluster", "--json", "--control", "--directory", directory,
            "--masters", str(masters), "--slaves", str(slaves), *(["--sync-replication"] if sync_replication else []),
            *(f"--set={key}={value}" for key, value in (settings or {}).items()),
        ]  # fmt: skip
        log = Path(directory) / "cluster.log"
        with log.open("wb") as errors:
            # A session of its own: a terminal's Ctrl-C is for us, and we then stop the cluster in order.
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        try:
            yield await _ready(process, log)
        finally:
            with trio.CancelScope(shield=True):
                await _stop(process)


async def _ready(process: trio.Process, log: Path) -> DemoCluster:
    """Read the child's lines until it says that it is ready."""
    event = await _event(process, "ready")
    if event is None:
        raise ClusterError(f"the cluster was not ready after {READY_LIMIT_S:g} s: {_end_of(log)}")
    nodes = [DemoNode(**node) for node in event["nodes"]]
    return DemoCluster(event["name_servers"], event["ready_s"], {node.name: node for node in nodes}, process)


async def _event(process: trio.Process, wanted: str) -> dict[str, Any] | None:
    """The child's next event of a kind; None if it does not come in time. What else the child says meanwhile is dropped."""
    assert process.stdout is not None
    received = b""
    with trio.move_on_after(READY_LIMIT_S):
        while True:
            data = await process.stdout.receive_some()
            received += data
            *lines, received = received.split(b"\n")
            for line in lines:
                event: dict[str, Any] = json.loads(line)
                if event["event"] == wanted:
                    return event
                if event["event"] == "error":
                    raise ClusterError(f"the cluster could not start: {event['error']}")
            if not data:
                break
    return None


def _end_of(log: Path) -> str:
    """What the child's errors end with."""
    return log.read_text(errors="replace")[-2000:]


async def _stop(process: trio.Process) -> None:
    """End its standard input and wait; SIGTERM and SIGKILL are for a child that does not hear."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        with trio.move_on_after(STOP_LIMIT_S):
            await process.wait()
            break
        if number is not None:
            process.send_signal(number)
    await process.stdout.aclose()


async def ask(address: str, command: Command) -> Command:
    """One request to one node, whatever the routes say, on a link of its own.

    Raises:
      ClusterError: no answer within five seconds.
    """
    host, _, port = address.rpartition(":")
    decoder = FrameDecoder()
    try:
        with trio.fail_after(ASK_LIMIT_S):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(command.encode())
                while data := await stream.receive_some():
                    for answer in decoder.feed(data):
                        return answer
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise ClusterError(f"{address} does not answer: {error!r}") from error
    raise ClusterError(f"{address} closed the link without an answer")


async def max_offset(address: str, topic: str, queue_id: int) -> int:
    """The end of a queue on one node; 0 where the node does not know the topic."""
    fields = {"topic": topic, "queueId": str(queue_id)}
    answer = await ask(address, Command.request(RequestCode.GET_MAX_OFFSET, fields=fields))
    return int((answer.fields or {})["offset"]) if answer.code == ResponseCode.SUCCESS else 0


async def knows_topic(address: str, topic: str) -> bool:
    """Whether a node has the topic's configuration, without which it serves no pull of it."""
    answer = await ask(address, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    return f'"{topic}":'.encode() in answer.body


async def log_bytes(address: str) -> int:
    """How many bytes of commit log a broker holds."""
    answer = await ask(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    if answer.code != ResponseCode.SUCCESS:
        raise ClusterError(f"{address} does not say how long its log is: code {answer.code}, {answer.remark}")
    table = KVTable.decode(answer.body).table
    return int(table["commitLogMaxOffset"]) - int(table["commitLogMinOffset"])
