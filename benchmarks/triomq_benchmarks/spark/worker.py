"""The work of one task of the barrier stage: it is one load generator, in one `trio.run`, and reports to the driver.

Runs in a Python worker of Spark, on whatever machine that is. Nothing is raised that can be reported to the driver in
words: an exception here would only make Spark print its own pages about it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs
import msgspec
import trio

import triomq
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import LedgerError, open_ledger
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import RunPlan, Share
from triomq_benchmarks.generator.worker import RunLedger, run_share
from triomq_benchmarks.spark.link import (
    Agreed,
    ClockEstimate,
    ClockReport,
    File,
    Finished,
    FrameReader,
    Hello,
    LinkError,
    Row,
    Stop,
    Uplink,
    encode,
)

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

GATHER_MARGIN_S: Final = 2.0
"""Time between the last generator's word and the first message: `allGather` checks for its answer once a second."""

OTHERS_FAILURE: Final = "another worker could not begin"

WAITING_ROWS_MAX: Final = 10_000
"""Maximum number of rows that wait for the link; further ones are only reported at the end."""


class Word(msgspec.Struct, frozen=True):
    """A generator's message to the others when all are ready.

    Attributes:
        earliest: earliest start in seconds since the epoch, on the driver's clock; None: it cannot start.
        failure: the reason why not.
    """

    earliest: float | None
    failure: str | None = None


class Report(msgspec.Struct, frozen=True):
    """A task's result at its end: all rows once more, for those that the link did not deliver."""

    result: WorkerResult
    rows: list[IntervalRow]


class _StoppedError(Exception):
    """Another generator cannot start, or the driver has ended the run."""


@attrs.frozen
class Order:
    """The input of every task.

    Attributes:
        plan: the run's plan.
        workers: number of tasks.
        address: the driver's listening address.
        token: the token that identifies the run.
    """

    plan: RunPlan
    workers: int
    address: tuple[str, int]
    token: str


def probe(_rows: Iterable[int]) -> Iterator[tuple[str, str, str]]:
    """A worker's host, its interpreter, and the version of this distribution; importing this module is the test."""
    import importlib.metadata
    import sys

    yield socket.gethostname(), f"{sys.executable} {sys.version.split()[0]}", importlib.metadata.version("triomq")


def generate(order: Order, _rows: Iterable[int]) -> Iterator[bytes]:
    """Run the task; yields an encoded `Report`."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    task = _Task(order, order.plan.share(context.partitionId(), order.workers), context)
    yield msgspec.msgpack.encode(task.run())


def decode_report(data: bytes) -> Report:
    """Decode the output of `generate`."""
    return msgspec.msgpack.decode(data, type=Report)


class _Task:
    """One generator, from its links to its report."""

    def __init__(self, order: Order, share: Share, context: BarrierTaskContext) -> None:
        self._order = order
        self._share = share
        self._context = context
        self._rows: list[IntervalRow] = []
        self._gathered = False
        self._clock = ClockEstimate(0, 0)

    def run(self) -> Report:
        result = self._ended("it was ended by an error of its own")
        try:
            result = self._run()
        except triomq.errors.InvalidCall as error:
            # The driver has read the same files: they are missing on this machine.
            result = self._ended(
                f"{error}; files of accounts and certificates must be at the same path on every worker"
            )
        except (triomq.MQError, LedgerError, LinkError, _StoppedError, OSError) as error:
            result = self._ended(str(error) or repr(error))
        finally:
            # The others wait for this one's word, even if it has failed.
            if not self._gathered:
                self._gather(Word(None, result.failure))
        return Report(result, self._rows)

    def _ended(self, failure: str) -> WorkerResult:
        """The result of a generator that did not finish."""
        share, rows = self._share, self._rows
        return WorkerResult(
            worker=share.index,
            host=socket.gethostname(),
            pid=os.getpid(),
            sent=sum(row.sent for row in rows),
            acked=sum(row.acked for row in rows),
            errors=sum(row.errors for row in rows),
            consumed=sum(row.consumed for row in rows),
            clock_offset_ms=self._clock.ahead_ns / 1e6,
            clock_error_ms=self._clock.error_ns / 1e6,
            failure=failure,
        )

    def _run(self) -> WorkerResult:
        with Uplink.connect(self._order.address, self._hello(files=False)) as link:
            self._clock = link.estimate_clock()
            link.send(ClockReport(self._clock.ahead_ns, self._clock.error_ns))
            with self._ledger() as ledger:
                result = trio.run(self._load, link, ledger)
            link.socket.setblocking(True)
            clock = self._clock.join(link.estimate_clock())
            result = attrs.evolve(result, clock_offset_ms=clock.ahead_ns / 1e6, clock_error_ms=clock.error_ns / 1e6)
            link.send(Finished(result))
            link.wait_end()
            return result

    def _hello(self, *, files: bool) -> Hello:
        return Hello(self._order.token, self._share.index, socket.gethostname(), os.getpid(), files)

    @contextmanager
    def _ledger(self) -> Iterator[RunLedger | None]:
        """A ledger whose files are sent to the driver, over a separate link."""
        share = self._share
        if share.ledger is None:
            yield None
            return
        with Uplink.connect(self._order.address, self._hello(files=True)) as link:

            def sink(name: str, content: bytes) -> None:
                link.send(File(name, content))

            with open_ledger(sink, worker=share.index, workers=share.count, groups=share.groups) as ledger:
                yield ledger
            link.wait_end()

    async def _load(self, link: Uplink, ledger: RunLedger | None) -> WorkerResult:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(link.socket))
        to_send, waiting = trio.open_memory_channel[bytes](WAITING_ROWS_MAX)
        result: WorkerResult | None = None
        failure: triomq.MQError | None = None

        def emit(row: IntervalRow) -> None:
            self._rows.append(row)
            try:
                to_send.send_nowait(encode(Row(len(self._rows) - 1, row)))
            except (trio.WouldBlock, trio.BrokenResourceError):
                pass  # the report delivers it at the end

        async def agree_start(earliest: float) -> float:
            return await self._agree_start(earliest, to_send)

        async with trio.open_nursery() as nursery:
            share_scope, listen_scope = trio.CancelScope(), trio.CancelScope()
            nursery.start_soon(_send, stream, waiting)
            nursery.start_soon(_listen, stream, share_scope, listen_scope)
            with share_scope:
                try:
                    result = await run_share(self._share, emit, ledger, agree_start=agree_start)
                except triomq.MQError as error:
                    failure = error
            listen_scope.cancel()
            to_send.close()
        if failure is not None:
            raise failure
        if result is None:
            raise _StoppedError("the driver ended the run")
        return result

    async def _agree_start(self, earliest: float, to_send: trio.MemorySendChannel[bytes]) -> float:
        ahead = self._clock.ahead_ns / 1e9
        self._gathered = True
        words = await trio.to_thread.run_sync(self._gather, Word(earliest - ahead), abandon_on_cancel=True)
        failures = [word.failure for word in words if word.earliest is None]
        if failures:
            raise _StoppedError(f"{OTHERS_FAILURE}: {failures[0]}")
        start = max(word.earliest for word in words if word.earliest is not None) + GATHER_MARGIN_S
        to_send.send_nowait(encode(Agreed(start)))
        return start + ahead

    def _gather(self, word: Word) -> list[Word]:
        """The words of all workers, once each has sent its own."""
        self._gathered = True
        said: list[str] = self._context.allGather(msgspec.json.encode(word).decode())
        return [msgspec.json.decode(one, type=Word) for one in said]


async def _send(stream: trio.SocketStream, waiting: trio.MemoryReceiveChannel[bytes]) -> None:
    """Send rows in order until there are no more; without a driver they are dropped."""
    async with waiting:
        try:
            async for frame in waiting:
                await stream.send_all(frame)
        except trio.BrokenResourceError:
            return


async def _listen(stream: trio.SocketStream, share: trio.CancelScope, scope: trio.CancelScope) -> None:
    """End the share at the driver's command, and when the driver has disconnected."""
    reader = FrameReader()
    with scope:
        try:
            while data := await stream.receive_some():
                if any(isinstance(message, Stop) for message in reader.feed(data)):
                    break
        except trio.BrokenResourceError:
            pass
        share.cancel()
