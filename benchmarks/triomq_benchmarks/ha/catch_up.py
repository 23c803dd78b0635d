"""The speed of a slave's catch-up in MB of log per second, for every pairing of masters and slaves, and for a bare loop.

Two situations. `empty`: a slave has just been started and its log is empty; the master is stopped (SIGSTOP) until the
slave is ready, so that no start is measured. `behind`: the same slave, warm by now, is stopped while its master
takes more messages, and then continued. The clock runs from the first byte that appears in the slave's log (`behind`:
from the moment the slave is continued) to the last. A second reading is taken when all messages can be read at the
slave, in its consume queues: neither kind keeps a sender waiting for that.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs

from triomq_benchmarks.clusters.cluster import PAIRINGS, Pairing, open_master, open_slave
from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.processes import Child
from triomq_benchmarks.clusters.server_state import log_end, queue_ends
from triomq_benchmarks.clusters.servers import Kind, Server
from triomq_benchmarks.drivers.prepared_frames import send_all, send_frames
from triomq_benchmarks.ha.loopback import Keep, send_file
from triomq_benchmarks.ha.watching import LogWatch, QueueWatch, first_log_file, role_settings

TOPIC = "catch-up"
EMPTY, BEHIND = "empty", "behind"
SENDFILE, SENDFILE_TO_FILE, SENDFILE_SPLICED = "sendfile", "sendfile, written to a file", "sendfile, spliced to a file"
FRAME_BYTES = 128 * 1024
"""Approximate size of a producer's batch while it fills a master."""
CONNECTED_S = 2.5
"""Time for a started slave to connect and to report, before its master continues."""


@attrs.frozen
class CatchUpPlan:
    """The amounts to measure.

    Attributes:
        bodies: body sizes in bytes.
        rounds: number of turns of each pairing.
        fill_bytes: minimum length of the log for an empty slave.
        behind_bytes: minimum distance of a stopped slave.
    """

    bodies: tuple[int, ...]
    rounds: int
    fill_bytes: int
    behind_bytes: int

    @property
    def file_bytes(self) -> int:
        """Size of a log file that can hold everything: all slaves of a master add to it."""
        return 2 * (self.fill_bytes + 2 * self.rounds * self.behind_bytes)


@attrs.frozen
class CatchUp:
    """The figures of one catch-up.

    Attributes:
        body_bytes: size of bodies.
        situation: `EMPTY` or `BEHIND`; a yardstick: how it sent.
        pairing: the master's and slave's kinds; None: a yardstick.
        size: log bytes transferred.
        seconds: duration of the transfer.
        readable_s: time until all of it could be read; 0 for a yardstick.
        master_cpu_s, slave_cpu_s: CPU seconds of both in that time; 0 for a yardstick.
    """

    body_bytes: int
    situation: str
    pairing: Pairing | None
    size: int
    seconds: float
    master_cpu_s: float = 0.0
    slave_cpu_s: float = 0.0
    readable_s: float = 0.0

    @property
    def mb_per_s(self) -> float:
        """Millions of bytes per second."""
        return self.size / self.seconds / 1e6

    @property
    def readable_mb_per_s(self) -> float:
        """Millions of bytes per second until they can be read; 0 for a yardstick."""
        return self.size / self.readable_s / 1e6 if self.readable_s else 0.0


def measure_catch_up(
    plan: CatchUpPlan, java: Java, home: Path, name_servers: str, progress: Callable[[str], None]
) -> list[CatchUp]:
    """Measure all pairings in turns, `plan.rounds` times, for each body size."""
    found: list[CatchUp] = []
    for body_bytes in plan.bodies:
        place = home / f"catch-up-{body_bytes}"
        settings = role_settings(plan.file_bytes)
        java_name, our_name = f"java-{body_bytes}", f"ours-{body_bytes}"
        with (
            open_master(Kind.JAVA, place / "java", name_servers, java, settings, java_name) as theirs,
            open_master(Kind.OURS, place / "ours", name_servers, java, settings, our_name) as ours,
        ):
            masters = {Kind.JAVA: (theirs, java_name), Kind.OURS: (ours, our_name)}
            for server, _ in masters.values():
                _fill(server, body_bytes, plan.fill_bytes)
            for number in range(plan.rounds):
                for pairing in PAIRINGS if number % 2 == 0 else PAIRINGS[::-1]:
                    progress(f"catch-up, {body_bytes} B, round {number + 1}, {pairing.name}")
                    server, name = masters[pairing.master]
                    run = _Run(plan, pairing, body_bytes, server)
                    follow = partial(
                        open_slave, pairing.slave, place / "slave", name_servers, java, settings, name, server
                    )
                    found += run.measure(follow, place / "slave")
                    shutil.rmtree(place / "slave")
                found += _yardsticks(place, body_bytes, log_end(ours.address))
        shutil.rmtree(place)
    return found


@contextmanager
def _stopped(server: Child) -> Iterator[None]:
    """Pause a process during the block; the kernel still accepts connections for it."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@attrs.frozen
class _Run:
    plan: CatchUpPlan
    pairing: Pairing
    body_bytes: int
    master: Server

    def measure(self, follow: Callable[[], AbstractContextManager[Server]], home: Path) -> list[CatchUp]:
        """Measure both situations with one slave, which `follow` starts."""
        end, ends = log_end(self.master.address), queue_ends(self.master.address, TOPIC)
        with ExitStack() as stack:
            with _stopped(self.master):
                follower = stack.enter_context(follow())
                time.sleep(CONNECTED_S)
                watch, queues = LogWatch(first_log_file(home), follower), QueueWatch(home, TOPIC, follower)
                before = self._cpu(follower)
            first, last = watch.wait(0, end)
            readable = queues.wait(ends)
            empty = self._one(EMPTY, end, last - first, readable - first, before, follower)
            with _stopped(follower):
                _fill(self.master, self.body_bytes, self.plan.behind_bytes)
                fresh_end, ends = log_end(self.master.address), queue_ends(self.master.address, TOPIC)
                before = self._cpu(follower)
                began = time.perf_counter()
            _, last = watch.wait(end, fresh_end)
            readable = queues.wait(ends)
            return [empty, self._one(BEHIND, fresh_end - end, last - began, readable - began, before, follower)]

    def _cpu(self, follower: Server) -> tuple[float, float]:
        return self.master.cpu_s(), follower.cpu_s()

    def _one(
        self,
        situation: str,
        size: int,
        seconds: float,
        readable_s: float,
        before: tuple[float, float],
        follower: Server,
    ) -> CatchUp:
        master_cpu_s, slave_cpu_s = self._cpu(follower)
        return CatchUp(
            body_bytes=self.body_bytes,
            situation=situation,
            pairing=self.pairing,
            size=size,
            seconds=seconds,
            readable_s=readable_s,
            master_cpu_s=master_cpu_s - before[0],
            slave_cpu_s=slave_cpu_s - before[1],
        )


def _fill(server: Server, body_bytes: int, size: int) -> None:
    """Send batches until the log has grown by at least `size`."""
    batch = max(1, FRAME_BYTES // (body_bytes + 200))
    frame_bytes = batch * (body_bytes + 200)
    frames = send_frames(TOPIC, body_bytes, min(64, size // frame_bytes + 1), batch=batch)
    target = log_end(server.address) + size
    while log_end(server.address) < target:
        send_all(server.address, frames, 4, batch)


def _yardsticks(place: Path, body_bytes: int, size: int) -> list[CatchUp]:
    """Transfer the same bytes in a bare loop."""
    source = first_log_file(place / "ours")
    found = []
    into = place / "copy"
    for name, keep in ((SENDFILE, Keep.NOTHING), (SENDFILE_TO_FILE, Keep.WRITE), (SENDFILE_SPLICED, Keep.SPLICE)):
        seconds = send_file(source, size, place / "loopback.out", into, keep)
        found.append(CatchUp(body_bytes, name, None, size, seconds))
        into.unlink(missing_ok=True)
    return found
