"""The load generator: one share of a workload in one loop, as `trio.run` of a process of its own or as a task.

All engines run `run_share`.  It opens the clients, finds the topics, fills the backlog, agrees on the common start, and
then sends (`producers.py`) and consumes (`consumers.py`) until the end, reporting rows about once a second.
"""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Protocol

import trio

import triomq
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.consumers import Consumers
from triomq_benchmarks.generator.engine import Share, plain_errors
from triomq_benchmarks.generator.loop_lag import LoopLag
from triomq_benchmarks.generator.precise_timer import PreciseTimer, SleepUntil
from triomq_benchmarks.generator.producers import SendTally, ShareProducer
from triomq_benchmarks.generator.second_cells import SecondCells
from triomq_benchmarks.workload.schedule import instants
from triomq_benchmarks.workload.workload import Compression, ConsumeMode, Loop

Emit = Callable[[IntervalRow], None]
"""Takes an increment. A plain function, called in the loop about once a second: it must not block."""

AgreeStart = Callable[[float], Awaitable[float]]
"""Takes the earliest wall-clock time (seconds since the epoch) at which this worker can start to send, and returns the
common start of the measured part, on this worker's own wall clock: warm-up is before it. Called once, when clients
are open, topics found and the backlog made."""

LEAD_S = 0.2
"""Time between readiness and the first message, in which tasks start, so that none is late."""

QUIET_S = 1.0
"""Consumers that share a run with other workers are done if nothing has arrived for this time."""

ANSWER_MARGIN_S = 1.0
"""Additional wait for a generator's last answers after the send's own deadline."""

IN_FLIGHT_BYTES_MAX = 512 << 20
COMPRESSORS: dict[Compression, Callable[[], triomq.plugins.Compressor]] = {
    Compression.ZLIB: triomq.plugins.ZlibCompressor,
    Compression.LZ4: triomq.plugins.Lz4Compressor,
    Compression.ZSTD: triomq.plugins.ZstdCompressor,
}


class RunLedger(Protocol):
    """Takes every acknowledged and every consumed message of a share (`figures/ledger.py`); called on the hot path.

    A message's `number` is unique in the run and grows with its intended order per worker:
    `worker << 40 | sequence` (`bodies.py`).
    """

    def acknowledged(self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int) -> None:
        """Record that a broker has taken a message; `crc` is CRC-32 of its whole body."""

    def consumed(
        self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int, group: str
    ) -> None:
        """Record that a consumer got a message; `number` is -1 if its head cannot be read."""

    def flush(self) -> None:
        """Write all rows so far, without blocking; called every two seconds or so."""


@contextmanager
def share_ledger(share: Share) -> Iterator[RunLedger | None]:
    """The ledger of a share, if the run has one. Raises LedgerError."""
    if share.ledger is None:
        yield None
        return
    # Only a run with a ledger needs Arrow.
    from triomq_benchmarks.figures.ledger import folder_sink, open_ledger

    sink = folder_sink(share.ledger)
    with open_ledger(sink, worker=share.index, workers=share.count, groups=share.groups) as ledger:
        yield ledger


async def own_start(earliest: float) -> float:
    """The common start of a single worker."""
    await trio.lowlevel.checkpoint()
    return earliest


def first_start(share: Share) -> float:
    """The earliest wall-clock time at which the measured part can start, from now."""
    return time.time_ns() / 1e9 + LEAD_S + share.workload.warm_up_s


async def run_share(
    share: Share, emit: Emit, ledger: RunLedger | None = None, *, agree_start: AgreeStart = own_start
) -> WorkerResult:
    """Run one share: open clients, agree on a start, warm up, send and consume, drain.

    Args:
        share: the part of the run.
        emit: takes increments during the run.
        ledger: takes every message; None if there is no ledger.
        agree_start: finds the common start; default: this worker's own.

    Raises:
        triomq.MQError: the clients could not be opened, a topic is missing, or the backlog could not be sent.
    """
    failures: list[triomq.MQError] = []
    try:
        return await _ShareRun(share, emit, ledger).run(agree_start)
    except* triomq.MQError as errors:
        failures = plain_errors(errors)
    # Here and not within `except*`, which would make a group of it.
    raise failures[0]


class _ShareRun:
    """One share, from its clients to its result."""

    def __init__(self, share: Share, emit: Emit, ledger: RunLedger | None) -> None:
        self._share = share
        self._workload = share.workload
        self._ledger = ledger
        self._cells = SecondCells(share.index, emit, lambda: self._consumers.backlog())
        self._consumers = Consumers(share, self._cells, ledger)
        self._tally = SendTally()
        self._lag = LoopLag()
        self._producers: list[ShareProducer] = []

    async def run(self, agree_start: AgreeStart) -> WorkerResult:
        async with AsyncExitStack() as stack:
            options = self._share.access.options()
            client = await stack.enter_async_context(triomq.open_client(self._share.name_servers, **options))
            for number in self._producer_numbers():
                self._producers.append(await self._open_producer(client, number, stack))
            await stack.enter_async_context(self._consumers)
            await self._fill_backlog()
            # Collect before the start is agreed on: in a process of many objects it may take longer than the lead.
            with _no_collections():
                start = await agree_start(first_start(self._share))
                self._cells.begin(trio.current_time() + start - time.time_ns() / 1e9)
                await self._load()
        return self._result()

    def _producer_numbers(self) -> range:
        return range(self._share.index, self._workload.producer_count, self._share.count)

    async def _open_producer(self, client: triomq.Client, number: int, stack: AsyncExitStack) -> ShareProducer:
        workload, topics = self._workload, self._share.topics
        compressor = COMPRESSORS.get(workload.compression)
        producer = client.producer(
            f"bench-producer-{self._share.run_number:08x}-{number}",
            send_timeout_s=workload.send_timeout_s,
            # The generator counts permits itself, so that it can tell who waits for whom.
            max_in_flight=workload.in_flight + 1,
            max_in_flight_bytes=IN_FLIGHT_BYTES_MAX,
            compress_from_bytes=1,
            compressor=compressor() if compressor is not None else None,
        )
        topic = topics[number % len(topics)]
        await client.admin.route(topic)
        sleep_until: SleepUntil = stack.enter_context(PreciseTimer()).sleep_until
        return ShareProducer(
            self._share,
            producer,
            number,
            topic,
            self._cells,
            self._tally,
            self._ledger,
            sleep_until,
            self._lag.lost_s,
        )

    async def _fill_backlog(self) -> None:
        workload = self._workload
        if not workload.backlog_bytes or not self._producers:
            return
        size = len(self._share.payload) or workload.body_bytes
        each = max(1, workload.backlog_bytes // size // workload.producer_count)
        async with trio.open_nursery() as nursery:
            for producer in self._producers:
                nursery.start_soon(producer.fill, each, nursery)

    async def _load(self) -> None:
        begin = self._cells.origin - self._workload.warm_up_s
        end = self._cells.origin + self._workload.duration_s
        try:
            async with trio.open_nursery() as background:
                background.start_soon(self._cells.run)
                background.start_soon(self._lag.run)
                background.start_soon(self._consumers.run, self._cells.origin)
                if self._ledger is not None:
                    background.start_soon(_flush_now_and_then, self._ledger)
                await self._send_all(begin, end)
                with trio.move_on_at(end + self._workload.drain_s):
                    await self._drained()
                background.cancel_scope.cancel()
        finally:
            # Results so far are reported, even if the run is ended early.
            with trio.CancelScope(shield=True):
                await self._cells.flush()

    async def _send_all(self, begin: float, end: float) -> None:
        """Wait until the timetable's end and the last answer; sends without an answer by then have failed."""
        workload = self._workload
        give_up = end + workload.drain_s
        async with trio.open_nursery() as sends:
            async with trio.open_nursery() as producers:
                for number, producer in zip(self._producer_numbers(), self._producers, strict=True):
                    if workload.loop is Loop.CLOSED:
                        producers.start_soon(producer.keep_busy, begin, end, sends)
                    else:
                        timetable = instants(workload, number, workload.producer_count, self._share.seed)
                        producers.start_soon(producer.follow, timetable, begin, give_up, sends)
            with trio.move_on_after(max(workload.drain_s, workload.send_timeout_s + ANSWER_MARGIN_S)):
                await self._tally.wait_answered()
        # A worker without producers waits for the others' end.
        await trio.sleep_until(end)

    async def _drained(self) -> None:
        """Wait until the consumers have everything, as far as this worker can tell."""
        workload, tally, read = self._workload, self._tally, self._consumers.tally
        if workload.consume is ConsumeMode.NONE:
            return
        alone = self._share.count == 1
        while True:
            quiet_s = trio.current_time() - max(read.last_at, self._cells.origin + workload.duration_s)
            quiet = quiet_s > QUIET_S and not self._consumers.backlog()
            # A count alone is not enough if messages arrived twice, or without an acknowledgement: others may be missing.
            counted = alone and bool(tally.acked) and read.consumed >= tally.acked * len(self._share.groups)
            has_all = await self._consumers.has_all() if counted or quiet else False
            if has_all or (quiet and has_all is None):
                return
            await trio.sleep(0.02)

    def _result(self) -> WorkerResult:
        tally, read = self._tally, self._consumers.tally
        return WorkerResult(
            worker=self._share.index,
            host=socket.gethostname(),
            pid=os.getpid(),
            sent=tally.sent,
            acked=tally.acked,
            errors=tally.errors,
            consumed=read.consumed,
            last_consumed_s=read.last_at - self._cells.origin if read.consumed else None,
            unsent=tally.unsent,
            # A failed run names the first one: that of a send, if any failed.
            error_examples=tally.error_examples
            | {k: v for k, v in read.error_examples.items() if k not in tally.error_examples},
            error_counts=dict(read.error_counts + tally.error_counts),
        )


async def _flush_now_and_then(ledger: RunLedger) -> None:
    while True:
        await trio.sleep(2)
        ledger.flush()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Exclude all existing objects from garbage collection: a full collection would make messages late."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
