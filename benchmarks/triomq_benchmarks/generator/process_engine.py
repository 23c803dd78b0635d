"""The engine `processes`: several load generators, each a child process of this machine, with one common start.

A child (`worker_process.py`) takes its share on standard input and answers with lines of JSON. Its standard input stays
open as long as the driver wants it to run: a driver that dies, however it dies, leaves no child behind.
"""

from __future__ import annotations

import base64
import math
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import (
    STOPPED,
    Ended,
    EngineError,
    OnRow,
    RowSums,
    RunPlan,
    Share,
    check_workers,
    plain_errors,
)

T = TypeVar("T")

READY_LIMIT_S: Final = 60.0
FILL_BYTES_PER_S: Final = 1 << 20
"""A backlog, which is sent before a worker is ready, may be made as slowly as this. A send that fails ends it earlier."""

STOP_LIMIT_S: Final = 5.0
LINE_BYTES_MAX: Final = 1 << 24


class ProcessEngine:
    """Several load generators, each in a separate process, with one common start.

    Args:
        workers: number of generators.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @property
    def label(self) -> str:
        """The label in results."""
        return f"processes {self.workers}"

    async def run(self, plan: RunPlan, on_row: OnRow, started: Callable[[float], None], ended: Ended) -> None:
        """Run the plan; see `Engine.run`."""
        check_workers(plan.workload, self.workers)
        children = [_ChildShare(plan.share(index, self.workers), on_row) for index in range(self.workers)]
        failures: list[EngineError] = []
        try:
            async with trio.open_nursery() as nursery:
                for child in children:
                    nursery.start_soon(child.start)
            await _agree(children, started, READY_LIMIT_S + plan.workload.backlog_bytes / FILL_BYTES_PER_S)
            async with trio.open_nursery() as nursery:
                for child in children:
                    nursery.start_soon(child.listen)
        except* EngineError as errors:
            failures.extend(plain_errors(errors))
        finally:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for child in children:
                        nursery.start_soon(child.stop)
            for child in children:
                ended(child.result)
        if failures:
            # Here and not within `except*`, which would make a group of it.
            raise failures[0]


async def _agree(children: Sequence[_ChildShare], started: Callable[[float], None], limit_s: float) -> None:
    """Wait until all are ready, and send each of them the latest of their earliest starts."""
    with trio.move_on_after(limit_s) as limit:
        async with trio.open_nursery() as nursery:
            for child in children:
                nursery.start_soon(child.wait_ready)
    if limit.cancelled_caught:
        slow = [str(child.index) for child in children if math.isinf(child.earliest)]
        raise EngineError(f"workers {', '.join(slow)} were not ready after {limit_s:g} s")
    start = max(child.earliest for child in children)
    started(start)
    for child in children:
        await child.say(f"start {start!r}\n".encode())


class _ChildShare:
    """The driver's view of one child process."""

    def __init__(self, share: Share, on_row: OnRow) -> None:
        self.index = share.index
        self.earliest = math.inf
        self.result = WorkerResult(worker=share.index, host=socket.gethostname(), pid=0, failure="it was never started")
        self._share = share
        self._sums = RowSums(on_row)
        self._process: trio.Process | None = None
        self._pending = bytearray()
        self._done = False

    async def start(self) -> None:
        """Start the process and give it its share."""
        command = [sys.executable, "-m", "triomq_benchmarks.generator.worker_process"]
        # A separate session: a terminal's Ctrl-C is for the driver, which then ends its children in order.
        self._process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.result = attrs.evolve(self.result, pid=self._process.pid, failure=STOPPED)
        await self.say(base64.b64encode(pickle.dumps(self._share)) + b"\n")

    async def say(self, line: bytes) -> None:
        """Send the child a line; does nothing if it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(line)
        except trio.BrokenResourceError:
            # The end of its output shows how it ended.
            return

    async def wait_ready(self) -> None:
        """Wait until the child is ready. Raises EngineError."""
        line = await self._line()
        if line is None:
            raise EngineError(f"worker {self.index} {await self._ending()}")
        message = self._decoded(line, dict[str, object])
        if "ready" not in message:
            raise EngineError(f"worker {self.index}: {message.get('error')}")
        self.earliest = float(str(message["ready"]))

    async def listen(self) -> None:
        """Wait until the child has finished or died. Raises EngineError for a line that cannot be read."""
        while (line := await self._line()) is not None:
            if line.startswith(b'{"row"'):
                self._sums.add(self._decoded(line, _RowLine).row)
            elif line.startswith(b'{"result"'):
                self.result = self._decoded(line, _ResultLine).result
                break
            else:
                self._died(self._decoded(line, _ErrorLine).error)
                break
        else:
            self._died(f"{await self._ending()} during the run")
        self._done = True

    def _decoded(self, line: bytes, kind: type[T]) -> T:
        """A line of the child. Raises EngineError if something else has been written to its output."""
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise EngineError(f"worker {self.index} sends a line that cannot be read: {line[:100]!r}") from None

    def _died(self, failure: str) -> None:
        self.result = self._sums.result(attrs.evolve(self.result, failure=failure))

    async def stop(self) -> None:
        """End the child if it still runs, and wait for it; it reports what it has seen so far."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.aclose()
        if not self._done:
            with trio.move_on_after(STOP_LIMIT_S):
                try:
                    await self.listen()
                except EngineError as error:
                    self._died(str(error))
            if self.result.failure:
                # The driver ended it.
                self._died(STOPPED)
        for number in (signal.SIGTERM, signal.SIGKILL, None):
            with trio.move_on_after(STOP_LIMIT_S):
                await process.wait()
                break
            if number is not None:
                process.send_signal(number)
        await process.stdout.aclose()

    async def _ending(self) -> str:
        """The way in which an ended child ended."""
        assert self._process is not None
        with trio.move_on_after(STOP_LIMIT_S):
            code = await self._process.wait()
            return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "closed its output"

    async def _line(self) -> bytes | None:
        """The child's next line; None at the end of its output."""
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                return bytes(line)
            data = await self._process.stdout.receive_some(1 << 16)
            if not data:
                return None
            self._pending += data
            if len(self._pending) > LINE_BYTES_MAX:
                raise EngineError(f"worker {self.index} sends a line without end")


@attrs.frozen
class _RowLine:
    row: IntervalRow


@attrs.frozen
class _ResultLine:
    result: WorkerResult


@attrs.frozen
class _ErrorLine:
    error: str
