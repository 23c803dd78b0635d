"""A process that sends hostile bytes to ports on the loopback address, and holds back when it has used
its part of a processor.

    python tests/faults/hostile/hostile_sender.py --seed 7 --ports 9876 10911 10909 --ha-ports 10912

It sends until it is ended or its standard input ends, and writes a line of JSON with its counts every few seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import trio
from hostile_frames import CLOSING, FrameMaker, Kind

from triomq_protocol.codes import RequestCode

HOST = "127.0.0.1"
REPORT_EVERY_S = 0.5
PATIENCE_S = 5.0
"""How long a send waits for a server that does not read."""
SLOW_LINKS = 60
HELD_PULLS = 200
BURST = 150
HALF_FRAME_BYTES = 2 << 20
FILTERS = 300
MEMBERS = 100
SILENT_S = 150.0
"""Longer than a broker waits for a heartbeat."""


class Pace:
    """Keeps this process below a part of one processor."""

    def __init__(self, part: float) -> None:
        self._part = part
        self._began = time.monotonic()

    async def wait(self) -> None:
        """Sleep until the processor time used so far is no more than allowed."""
        await trio.sleep(max(0.0, time.process_time() / self._part - (time.monotonic() - self._began)))


class Strangers:
    """All tasks that send, and what they count.

    Attributes:
        frames: sent, by kind.
        connections: opened, by what they were for.
        closed: connections that a server ended, by port.
        refused: connections that could not be opened, by port.
        received_bytes: answers of any kind.
    """

    def __init__(self, seed: int, ports: list[int], ha_ports: list[int], part: float) -> None:
        self.seed = seed
        self.ports = ports
        self.ha_ports = ha_ports
        self.frames: Counter[str] = Counter()
        self.connections: Counter[str] = Counter()
        self.closed: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.received_bytes = 0
        self.reports = 0
        self._pace = Pace(part)

    def counts(self) -> dict[str, object]:
        """The counts so far, for JSON."""
        return {
            "frames": sum(self.frames.values()),
            "kinds": dict(self.frames),
            "reports": self.reports,
            "connections": dict(self.connections),
            "closed": dict(self.closed),
            "refused": dict(self.refused),
            "received_bytes": self.received_bytes,
            "cpu_s": round(time.process_time(), 2),
        }

    async def run(self) -> None:
        """Send until cancelled."""
        async with trio.open_nursery() as nursery:
            for port in self.ports:
                for task in (
                    self._floods,
                    self._slow,
                    self._mute,
                    self._half_frames,
                    self._bursts,
                    self._filters,
                    self._members,
                ):
                    nursery.start_soon(self._repeat, task, port)
            for port in self.ha_ports:
                for task in (self._reports, self._floods, self._slow, self._bursts):
                    nursery.start_soon(self._repeat, task, port)

    async def _repeat(self, task: Callable[[int, random.Random, FrameMaker], Awaitable[None]], port: int) -> None:
        place = (self.ports + self.ha_ports).index(port)
        chance = random.Random(f"{self.seed} {task.__name__} {place}")
        maker = FrameMaker(f"{self.seed} {task.__name__} {place}")
        while True:
            await self._pace.wait()
            try:
                await task(port, chance, maker)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                self.closed[port] += 1
            await trio.sleep(chance.uniform(0.0, 0.3))

    async def _connect(self, port: int, what: str) -> trio.SocketStream:
        try:
            with trio.fail_after(PATIENCE_S):
                stream = await trio.open_tcp_stream(HOST, port)
        except OSError:
            self.refused[port] += 1
            raise
        self.connections[what] += 1
        return stream

    async def _discard(self, stream: trio.SocketStream) -> None:
        """Read answers until the server ends the connection."""
        try:
            while data := await stream.receive_some(1 << 16):
                self.received_bytes += len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _floods(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Frames in batches; what may end the connection is last in a batch."""
        async with await self._connect(port, "flood") as stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._discard, stream)
            for _ in range(chance.randrange(1, 12)):
                await self._pace.wait()
                batch = [maker.one() for _ in range(chance.randrange(1, 60))]
                last = [frame for frame in batch if frame.kind in CLOSING][: chance.randrange(2)]
                batch = [frame for frame in batch if frame.kind not in CLOSING] + last
                with trio.fail_after(PATIENCE_S):
                    await stream.send_all(b"".join(frame.data for frame in batch))
                self.frames.update(frame.kind.value for frame in batch)
                if last:
                    await trio.sleep(0.05)
                    break
            nursery.cancel_scope.cancel()

    async def _slow(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Many connections that rarely send one byte."""
        streams = [await self._connect(port, "slow") for _ in range(SLOW_LINKS)]
        try:
            frames = [maker.of(Kind.ODD_VALUES).data for _ in streams]
            for at in range(chance.randrange(5, 40)):
                await self._pace.wait()
                for stream, frame in zip(streams, frames, strict=True):
                    with trio.fail_after(PATIENCE_S):
                        await stream.send_all(frame[at % len(frame) :][:1])
                await trio.sleep(0.5)
        finally:
            for stream in streams:
                await trio.aclose_forcefully(stream)

    async def _mute(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Requests with large answers, and pulls that are held, by someone who reads nothing."""
        async with await self._connect(port, "mute") as stream:
            asked = [maker.of(Kind.PULL) for _ in range(HELD_PULLS)]
            with trio.move_on_after(PATIENCE_S):
                await stream.send_all(b"".join(frame.data for frame in asked))
                self.frames.update(frame.kind.value for frame in asked)
                for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
                    await stream.send_all(_plain(code) * 30)
                    self.frames["plain"] += 30
            await trio.sleep(chance.uniform(1, 20))

    async def _half_frames(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Large frames whose end is not sent."""
        async with await self._connect(port, "half frame") as stream:
            with trio.move_on_after(PATIENCE_S):
                await stream.send_all(struct.pack(">iI", 15 << 20, 100) + bytes(HALF_FRAME_BYTES))
            await trio.sleep(chance.uniform(5, 40))

    async def _bursts(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Many connections at once, closed at once, without a word or with one."""
        streams = []
        try:
            for _ in range(BURST):
                streams.append(await self._connect(port, "burst"))  # noqa: PERF401 - closed below, whatever happens
            await self._pace.wait()
            for stream in streams[::10]:
                with trio.fail_after(PATIENCE_S):
                    await stream.send_all(maker.of(Kind.NOISE).data)
        finally:
            for stream in streams:
                await trio.aclose_forcefully(stream)
        await trio.sleep(chance.uniform(5, 20))

    async def _filters(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Many different filters at once."""
        async with await self._connect(port, "filters") as stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._discard, stream)
            frames = [maker.of(Kind.LONG_FILTER) for _ in range(FILTERS)]
            with trio.fail_after(PATIENCE_S):
                await stream.send_all(b"".join(frame.data for frame in frames))
            self.frames[Kind.LONG_FILTER.value] += FILTERS
            await trio.sleep(chance.uniform(1, 20))
            nursery.cancel_scope.cancel()

    async def _members(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Members of very many groups, who come together and say nothing more, until the server has enough of them."""
        streams = []
        try:
            for _ in range(MEMBERS):
                await self._pace.wait()
                streams.append(await self._connect(port, "member"))
                with trio.fail_after(PATIENCE_S):
                    await streams[-1].send_all(maker.of(Kind.MANY_GROUPS).data)
                self.frames[Kind.MANY_GROUPS.value] += 1
            await trio.sleep(chance.choice([1.0, SILENT_S]))
        finally:
            for stream in streams:
                await trio.aclose_forcefully(stream)

    async def _reports(self, port: int, chance: random.Random, maker: FrameMaker) -> None:
        """Someone who claims to be a slave."""
        async with await self._connect(port, "report") as stream, trio.open_nursery() as nursery:
            if chance.random() < 0.7:
                nursery.start_soon(self._discard, stream)
            for _ in range(chance.randrange(1, 20)):
                with trio.fail_after(PATIENCE_S):
                    await stream.send_all(maker.report())
                self.reports += 1
                await trio.sleep(chance.uniform(0, 0.1))
            nursery.cancel_scope.cancel()


def _plain(code: int) -> bytes:
    """A request that is in order."""
    header = json.dumps({"code": int(code), "flag": 0, "language": "JAVA", "opaque": 1, "version": 407}).encode()
    return struct.pack(">iI", 4 + len(header), len(header)) + header


async def _until_input_ends(cancel: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        while await stream.receive_some():
            pass
    cancel.cancel()


async def run(strangers: Strangers) -> None:
    """Send and report, until standard input ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_input_ends, nursery.cancel_scope)
        nursery.start_soon(strangers.run)
        while True:
            await trio.sleep(REPORT_EVERY_S)
            print(json.dumps(strangers.counts()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0, help="of all random choices")
    parser.add_argument("--ports", type=int, nargs="+", required=True, help="of name servers and brokers on 127.0.0.1")
    parser.add_argument("--ha-ports", type=int, nargs="*", default=[], help="of masters' replication on 127.0.0.1")
    parser.add_argument("--cpu", type=float, default=0.25, help="part of a processor that may be used")
    options = parser.parse_args()
    strangers = Strangers(options.seed, options.ports, options.ha_ports, options.cpu)
    trio.run(run, strangers)
    print(json.dumps(strangers.counts()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
