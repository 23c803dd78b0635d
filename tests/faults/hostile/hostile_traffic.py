"""Hostile traffic against all ports of a name server, a master and a slave, beside two well-behaved clients.

    python tests/faults/hostile/hostile_traffic.py --minutes 60 --seed 3 --csv samples.csv --json result.json

The servers, on the loopback address, are started for it and stopped at its end. A quiet part comes first, for
comparison. The exit status is 1 if a server ended, an acknowledged message is missing, a send failed, or a turn of a
server's loop took more processor time than `--turn-ms`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import attrs
import trio
from hostile_servers import Sample, Server, Servers, running_servers
from innocent_clients import Durations, Innocents
from timed_server import Turn

from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command
from triomq_server.wire import LinkError, open_link

PROBE_S = 30.0
"""After this a probe counts as not answered."""
QUIET_SHARE = 0.02
SAMPLE_EVERY_S = 10.0
TURN_MS = 50.0
TURNS_MS = (10, 20, 30, 40, 50, 100)
TURNS_SHOWN = 10


@attrs.define
class Probes:
    """Requests of a well-behaved unknown client, each over a connection of its own.

    Attributes:
        answers: how long they took, from the connection's begin.
    """

    answers: Durations = attrs.field(factory=Durations)
    unanswered: int = 0

    def figures(self) -> dict[str, float | int]:
        return {**self.answers.figures(), "unanswered": self.unanswered}


@attrs.define
class Result:
    """What a run found; times are of the part with hostile traffic, `quiet` of the part before.

    Attributes:
        turns: of each server's loop, in that part: how many took long, and the longest; see `timed_server.Turn`.
    """

    seed: int
    minutes: float
    quiet: dict[str, Any] = attrs.field(factory=dict)
    hostile: dict[str, Any] = attrs.field(factory=dict)
    sent: dict[str, Any] = attrs.field(factory=dict)
    memory: dict[str, Any] = attrs.field(factory=dict)
    ended: list[str] = attrs.field(factory=list)
    log_lines: dict[str, dict[str, int]] = attrs.field(factory=dict)
    server_faults: dict[str, list[str]] = attrs.field(factory=dict)
    acknowledged: int = 0
    failures: dict[str, int] = attrs.field(factory=dict)
    statuses: dict[str, int] = attrs.field(factory=dict)
    missing: dict[str, int] = attrs.field(factory=dict)
    unconsumed: int = 0
    consumed_again: int = 0
    twice: int = 0
    slowest: list[str] = attrs.field(factory=list)
    turns: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def faults(self, turn_ms: float = TURN_MS) -> list[str]:
        """What must not be; empty if all is well. A turn of a loop may take so much processor time."""
        found = [f"{name} ended" for name in self.ended]
        found += [
            f"{count} acknowledged messages are missing: {where}" for where, count in self.missing.items() if count
        ]
        if self.unconsumed:
            found.append(f"{self.unconsumed} acknowledged messages were not consumed")
        if self.sent.get("status") != 0:
            found.append(f"the strangers ended early, with status {self.sent.get('status')}")
        if self.twice:
            found.append(f"{self.twice} places were acknowledged twice")
        if self.failures:
            found.append(f"sends failed: {self.failures}")
        found += [
            f"{name}: a turn of {turns['longest'][0]}"
            for name, turns in self.turns.items()
            if turns["longest_ms"] > turn_ms
        ]
        found += [f"{name}: {line}" for name, lines in self.server_faults.items() for line in lines[:3]]
        return found


async def run(
    directory: Path,
    seed: int,
    *,
    seconds: float = 0.0,
    frames: int = 0,
    kinds: Collection[str] = (),
    cpu: float = 0.25,
    csv_file: TextIO | None = None,
) -> Result:
    """Start the servers in `directory`, and start all clients.

    Args:
        directory: empty; keeps the servers' files.
        seed: of the hostile traffic. What the well-behaved clients do, and when all this happens, is not repeatable.
        seconds: how long the hostile traffic lasts at least.
        frames: how many hostile frames are sent at least.
        kinds: of which kinds some are sent; how soon rare ones come depends on which connections a busy machine serves.
        cpu: part of a processor that the strangers may use.
        csv_file: takes samples of what the servers use.
    """
    result = Result(seed=seed, minutes=round(seconds / 60, 2))
    async with running_servers(directory) as servers:
        innocents = Innocents(servers.name_server.address)
        await innocents.create_topic()
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            await innocents.measure(nursery)
            nursery.start_soon(innocents.consume)
            samples = Samples(servers, csv_file)
            nursery.start_soon(samples.run)
            async with trio.open_nursery() as sending:
                sending.start_soon(innocents.produce, done)
                async with _probing(servers) as probes:
                    await trio.sleep(max(1.0, seconds * QUIET_SHARE))
                result.quiet = _figures(innocents, probes)
                innocents.sends, innocents.deliveries, innocents.worst = Durations(), Durations(), []
                begun_at = time.monotonic()
                async with (
                    _probing(servers) as probes,
                    _strangers(servers, seed, cpu) as strangers,
                    _while_all_live(servers),
                ):
                    await trio.sleep(seconds)
                    await strangers.have_sent(frames, kinds)
                result.turns = {each.name: _long_turns(each.turns_since(begun_at)) for each in servers.all}
                result.sent = strangers.counts
                result.hostile = _figures(innocents, probes)
                done.set()
            result.ended = [each.name for each in servers.all if not each.alive]
            if not result.ended:
                await innocents.all_received()
            samples.take()
            result.memory = samples.figures()
            nursery.cancel_scope.cancel()
        result.acknowledged = len(innocents.acknowledged)
        result.failures, result.statuses = dict(innocents.failures), dict(innocents.statuses)
        result.unconsumed, result.twice = innocents.unconsumed(), len(innocents.twice)
        result.consumed_again = sum(count - 1 for count in innocents.received.values())
        result.slowest = [f"{spent_s:.3f} s at {what}" for spent_s, what in innocents.worst]
        if not result.ended:
            result.missing = {who: len(await innocents.missing(who)) for who in ("master", "slave")}
        result.log_lines = {each.name: each.levels() for each in servers.all}
        result.server_faults = {each.name: each.faults() for each in servers.all}
    return result


def _figures(innocents: Innocents, probes: dict[str, Probes]) -> dict[str, Any]:
    return {
        "sends": innocents.sends.figures(),
        "deliveries": innocents.deliveries.figures(),
        "probes": {name: each.figures() for name, each in probes.items()},
    }


def _long_turns(turns: list[Turn]) -> dict[str, Any]:
    return {
        "longest_ms": round(1000 * turns[0].cpu_s, 1) if turns else 0.0,
        "count": {f"{limit_ms} ms": sum(turn.cpu_s * 1000 >= limit_ms for turn in turns) for limit_ms in TURNS_MS},
        "longest": [turn.text() for turn in turns[:TURNS_SHOWN]],
    }


class Samples:
    """What the servers use, from time to time."""

    def __init__(self, servers: Servers, csv_file: TextIO | None) -> None:
        self._servers = servers
        self._began = time.monotonic()
        self._taken: dict[str, list[Sample]] = {each.name: [] for each in servers.all}
        self._file = csv_file
        self._writer = csv.writer(csv_file) if csv_file else None
        if self._writer:
            self._writer.writerow(["seconds", "server", *(field.name for field in attrs.fields(Sample))])

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.take()
            await trio.sleep(SAMPLE_EVERY_S)

    def take(self) -> None:
        """Take one sample of each running server."""
        for server in self._servers.all:
            try:
                sample = server.sample()
            except (OSError, KeyError):
                continue
            self._taken[server.name].append(sample)
            if self._writer and self._file:
                values = attrs.astuple(sample)
                self._writer.writerow([round(time.monotonic() - self._began, 1), server.name, *values])
                self._file.flush()

    def figures(self) -> dict[str, Any]:
        """First, highest and last of each figure, by server."""
        return {
            name: {
                field.name: [values[0], max(values), values[-1]]
                for field in attrs.fields(Sample)
                if (values := [getattr(sample, field.name) for sample in taken])
            }
            for name, taken in self._taken.items()
        }


@asynccontextmanager
async def _while_all_live(servers: Servers) -> AsyncIterator[None]:
    """Cancels the block when a server has ended."""
    async with trio.open_nursery() as nursery:

        async def wait(server: Server) -> None:
            await server.process.wait()
            nursery.cancel_scope.cancel()

        for server in servers.all:
            nursery.start_soon(wait, server)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _probing(servers: Servers) -> AsyncIterator[dict[str, Probes]]:
    probes = {each.name: Probes() for each in servers.all}
    async with trio.open_nursery() as nursery:
        for server in servers.all:
            nursery.start_soon(_probe, server, probes[server.name])
        yield probes
        nursery.cancel_scope.cancel()


async def _probe(server: Server, probes: Probes) -> None:
    request = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    if server.name != "name server":
        request = Command.request(RequestCode.GET_MAX_OFFSET, fields={"topic": "innocent", "queueId": "0"})
    while True:
        begun = trio.current_time()
        try:
            with trio.fail_after(PROBE_S):
                async with open_link(server.address) as link:
                    await link.request(request, PROBE_S)
            probes.answers.add(trio.current_time() - begun)
        except (OSError, LinkError, trio.TooSlowError):
            probes.unanswered += 1
        await trio.sleep(0.5)


class Strangers:
    """The process that sends.

    Attributes:
        counts: what it has reported last, see `hostile_sender.Strangers.counts`; and its exit status at the end.
    """

    def __init__(self, process: trio.Process) -> None:
        self.counts: dict[str, Any] = {"frames": 0, "kinds": {}}
        self._process = process
        self._changed = trio.Event()
        self._ended = False

    async def listen(self) -> None:
        """Read its reports until it ends."""
        received = b""
        assert self._process.stdout is not None
        async for data in self._process.stdout:
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self.counts.update(json.loads(line))
            changed, self._changed = self._changed, trio.Event()
            changed.set()
        self._ended = True
        self._changed.set()

    async def have_sent(self, frames: int, kinds: Collection[str]) -> None:
        """Wait until it has sent so many frames, and some of each of these kinds, or has ended."""
        while not self._ended and (self.counts["frames"] < frames or not self.counts["kinds"].keys() >= set(kinds)):
            await self._changed.wait()

    async def end(self) -> None:
        """Let it end, and note its exit status: 1 if it had ended before."""
        assert self._process.stdin is not None
        early = self._process.poll() is not None
        await self._process.stdin.aclose()
        with trio.move_on_after(PROBE_S):
            await self._process.wait()
        self._process.kill()
        self.counts["status"] = await self._process.wait() or int(early)


@asynccontextmanager
async def _strangers(servers: Servers, seed: int, cpu: float) -> AsyncIterator[Strangers]:
    """A hostile process that sends to all ports until the end of the block."""
    program = str(Path(__file__).with_name("hostile_sender.py"))
    command = [sys.executable, program, "--seed", str(seed), "--cpu", str(cpu)]
    command += ["--ports", *map(str, servers.ports), "--ha-ports", str(servers.ha_port)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    strangers = Strangers(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strangers.listen)
        try:
            yield strangers
        finally:
            with trio.CancelScope(shield=True):
                await strangers.end()
    assert process.stdout is not None
    await process.stdout.aclose()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the hostile traffic lasts")
    parser.add_argument("--seed", type=int, default=0, help="of the hostile traffic")
    parser.add_argument("--cpu", type=float, default=0.25, help="part of a processor that the strangers may use")
    parser.add_argument("--turn-ms", type=float, default=TURN_MS, help="how long a turn of a server's loop may take")
    parser.add_argument("--csv", type=Path, help="write memory, descriptors, threads and log size of each server here")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--directory", type=Path, help="keep the servers' files here; default: a temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="triomq-hostile-", ignore_cleanup_errors=True) as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        csv_file = options.csv.open("w", newline="") if options.csv else None

        async def measured() -> Result:
            seconds = options.minutes * 60
            return await run(directory, options.seed, seconds=seconds, cpu=options.cpu, csv_file=csv_file)

        result = trio.run(measured)
        if csv_file:
            csv_file.close()
    text = json.dumps(attrs.asdict(result), indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    faults = result.faults(options.turn_ms)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
