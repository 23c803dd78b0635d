"""A name server, a master and a slave in separate processes, and the operating system's figures for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio
from timed_server import Turn, read_turns

from triomq_server.ports import free_ports

NAME_SERVER, MASTER, SLAVE = "name server", "master", "slave"
BROKER_SET = "innocent-set"
READY_S = 60.0
STOP_S = 30.0
_SETTINGS = {
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "brokerName": BROKER_SET,
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "enablePropertyFilter": "true",
    # Whether a disk is too full is not what is tried here.
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceWarningLevelRatio": "0.99",
}


@attrs.frozen
class Sample:
    """One server at one moment.

    Attributes:
        anonymous_bytes: resident memory that is not a file: what the process itself needs.
    """

    resident_bytes: int
    anonymous_bytes: int
    descriptors: int
    threads: int
    log_bytes: int
    cpu_s: float


@attrs.define
class Server:
    """A running server."""

    name: str
    port: int
    process: trio.Process
    log: Path
    turns_file: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def turns_since(self, begun_at: float) -> list[Turn]:
        """The turns of its loop of `timed_server.NOTED_S` or more, longest first, since a time of `time.monotonic`."""
        turns = [turn for turn in read_turns(self.turns_file) if turn.ended_at - turn.cpu_s >= begun_at]
        return sorted(turns, key=lambda turn: turn.cpu_s, reverse=True)

    def sample(self) -> Sample:
        """What it uses now. Raises OSError if it has ended."""
        process = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        times = (process / "stat").read_text().rpartition(")")[2].split()
        return Sample(
            resident_bytes=int(status["VmRSS"].split()[0]) * 1024,
            anonymous_bytes=int(status["RssAnon"].split()[0]) * 1024,
            descriptors=len(os.listdir(process / "fd")),
            threads=int(status["Threads"]),
            log_bytes=self.log.stat().st_size,
            cpu_s=(int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
        )

    def faults(self) -> list[str]:
        """Lines of its log that report a fault of the server's own, a hundred at most."""
        found: list[str] = []
        with self.log.open(errors="replace") as lines:
            for line in lines:
                if len(found) < 100 and (" CRITICAL " in line or line.startswith(("Traceback", "  + Exception"))):
                    found.append(line.rstrip())
        return found

    def levels(self) -> dict[str, int]:
        """How many lines of each level its log has."""
        found: Counter[str] = Counter()
        with self.log.open(errors="replace") as lines:
            for line in lines:
                found[(line.split(" ", 3) + [""] * 3)[2][:10]] += 1
        return {level: found[level] for level in ("INFO", "WARNING", "ERROR", "CRITICAL")}


@attrs.frozen
class Servers:
    """The three, and their replication port."""

    name_server: Server
    master: Server
    slave: Server
    ha_port: int

    @property
    def all(self) -> list[Server]:
        return [self.name_server, self.master, self.slave]

    @property
    def ports(self) -> list[int]:
        """Where clients connect: every broker has two ports."""
        brokers = (self.master.port, self.slave.port)
        return [self.name_server.port, *brokers, *(port - 2 for port in brokers)]


@asynccontextmanager
async def running_servers(directory: Path) -> AsyncIterator[Servers]:
    """Three servers in new folders of `directory`; stopped by SIGTERM at the end of the block, killed at the latest."""
    names, master, slave = free_ports(3)
    async with AsyncExitStack() as stack:

        async def start(name: str, command: str, port: int, settings: dict[str, str]) -> Server:
            home = directory / name.replace(" ", "-")
            home.mkdir()
            config = home / "server.conf"
            lines = {"listenPort": str(port), **settings}
            config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
            return await stack.enter_async_context(_server(name, command, port, config))

        kept = {"bindAddress": "127.0.0.1", "kvConfigPath": str(directory / "kv.json")}
        name_server = await start(NAME_SERVER, "namesrv", names, kept)
        common = {**_SETTINGS, "namesrvAddr": name_server.address}
        first = await start(
            MASTER,
            "broker",
            master,
            {
                **common,
                "storePathRootDir": str(directory / "master-store"),
                "brokerId": "0",
                "haListenPort": str(master + 1),
            },
        )
        second = await start(
            SLAVE,
            "broker",
            slave,
            {
                **common,
                "storePathRootDir": str(directory / "slave-store"),
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "haMasterAddress": f"127.0.0.1:{master + 1}",
            },
        )
        yield Servers(name_server, first, second, master + 1)


@asynccontextmanager
async def _server(name: str, command: str, port: int, config: Path) -> AsyncIterator[Server]:
    log, turns = config.with_name("server.log"), config.with_name("turns.jsonl")
    timed = str(Path(__file__).with_name("timed_server.py"))
    with log.open("wb") as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, timed, str(turns), command, "-c", str(config), "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        with trio.fail_after(READY_S):
            line = await process.stdout.receive_some()
        if not line or json.loads(line)["event"] != "ready":
            raise RuntimeError(f"{name} did not start: {log.read_text(errors='replace')[-2000:]}")
        yield Server(name, port, process, log, turns)
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with trio.move_on_after(STOP_S):
                    await process.wait()
            process.kill()
            await process.wait()
            await process.stdout.aclose()
