"""Runs on a virtual clock, with the benchmark's own producers, ledger, audit and decision, and a broker of a few lines
in which a fault is planted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio
import trio.testing
from fault_kinds import LEDGER_KINDS
from ledger_defects import Row, planted

import triomq
from triomq.errors import BrokerUnavailable, LinkLost, PermissionDenied, RequestTimeout, TopicNotFound
from triomq_benchmarks.audit.ledger_tables import audit_folder
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import folder_sink, open_ledger
from triomq_benchmarks.figures.run_result import ENDED, STOPPED, Decision, FaultInstant, WorkerResult
from triomq_benchmarks.generator.engine import Share
from triomq_benchmarks.generator.producers import SendTally, ShareProducer
from triomq_benchmarks.generator.second_cells import SecondCells
from triomq_benchmarks.run.decisions.pass_fail import Figures, decide
from triomq_benchmarks.workload.schedule import constant
from triomq_benchmarks.workload.workload import Threshold, Workload

WORKLOAD = Workload(
    name="planted", rate_per_s=200, duration_s=5, warm_up_s=0, queues_per_topic=3, body_bytes=64, send_timeout_s=1,
    thresholds=(Threshold.parse("p99_ms < 500"),),
)  # fmt: skip
TOPIC, BROKER = "t", "broker-a"
_REFUSALS = {
    "full disk": BrokerUnavailable("the broker takes no message: its disk is full"),
    "refused topic": TopicNotFound("the broker does not hold topic t"),
    "wrong permissions": PermissionDenied("sending to topic t is forbidden"),
}
_ENDS = {
    "kill -9 of the broker": BROKER,
    "kill -9 of the slave": "broker-a-s",
    "kill -9 of the name server": "namesrv-0",
}
_STOPS = {
    "SIGSTOP of the broker": BROKER,
    "SIGSTOP of the slave": "broker-a-s",
    "SIGSTOP of the name server": "namesrv-0",
}


@attrs.define
class PlantedBroker:
    """In place of the library's producer, and of all behind it.

    Attributes:
        kind: name of the fault.
        begin: of the run, on trio's clock.
        at: from when on, in seconds since then.
        until: to when, where it ends.
    """

    kind: str
    begin: float
    at: float
    until: float
    nursery: trio.Nursery
    offsets: list[int] = attrs.field(factory=lambda: [0, 0, 0])
    sends: int = 0

    async def send(self, message: triomq.Message, callback: triomq.SendCallback, **_others: object) -> None:
        await trio.lowlevel.checkpoint()
        self.nursery.start_soon(self._tell, message, callback)

    async def _tell(self, message: triomq.Message, callback: triomq.SendCallback) -> None:
        try:
            result = await self._answer()
        except triomq.MQError as error:
            callback.on_exception(error)
        else:
            callback.on_success(result)

    async def _answer(self) -> triomq.SendResult:
        now = trio.current_time() - self.begin
        await trio.sleep(0.7 if self.kind == "slow flush" and now >= self.at else 0.002)
        if now >= self.at:
            if self.kind in ("kill -9 of the broker", "the workload's own kill"):
                await trio.sleep(0.01)
                raise (
                    LinkLost("the connection to 127.0.0.1:10911 was lost")
                    if self.sends % 2
                    else RequestTimeout("a send")
                )
            if self.kind in _REFUSALS:
                raise _REFUSALS[self.kind]
        if (
            self.kind in ("the workload's own pause", "SIGSTOP of the broker", "cut links")
            and self.at <= now < self.until
        ):
            await trio.sleep_until(self.begin + self.until)
        queue = self.sends % len(self.offsets)
        self.sends += 1
        self.offsets[queue] += 1
        place = triomq.MessageQueue(TOPIC, BROKER, queue)
        return triomq.SendResult(triomq.SendStatus.SEND_OK, "id", "oid", place, self.offsets[queue] - 1)


class RowList:
    """Keeps what was acknowledged."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def acknowledged(self, *row: object) -> None:
        self.rows.append(row)  # type: ignore[arg-type]


def run_virtually(kind: str, seed: int, folder: Path) -> Decision:
    """One run with one fault; the ledger goes below `folder`."""
    return trio.run(_run, kind, random.Random(seed), folder, clock=trio.testing.MockClock(autojump_threshold=0))


async def _run(kind: str, chance: random.Random, folder: Path) -> Decision:
    workload = WORKLOAD
    share = Share(
        index=0, count=1, workload=workload, name_servers="", topics=(TOPIC,), groups=("g",), run_number=7, seed=1
    )
    rows: list[IntervalRow] = []
    tally, kept = SendTally(), RowList()
    cells = SecondCells(0, rows.append, lambda: None)
    begin = trio.current_time()
    cells.begin(begin)
    at = chance.uniform(0.5, 3)
    until = at + chance.uniform(0.8, 1.6)
    starved = kind == "generator starved of CPU"

    async def sleep_until(instant: float) -> None:
        # A generator without a CPU wakes up late.
        late = 0.3 if starved and at <= instant - begin < until else 0.0
        await trio.sleep_until(instant + late)

    end = begin + (at if kind == "run interrupted" else workload.duration_s)
    with trio.move_on_at(end + 5 if end - begin == workload.duration_s else end):
        async with trio.open_nursery() as nursery:
            broker = PlantedBroker(kind, begin, at, until, nursery)
            producer = ShareProducer(share, broker, 0, TOPIC, cells, tally, kept, sleep_until)  # type: ignore[arg-type]
            instants: Iterator[float] = itertools.takewhile(
                lambda instant: instant < workload.duration_s, constant(workload.rate_per_s)
            )
            await producer.follow(instants, begin, begin + workload.duration_s + workload.drain_s, nursery)
    with trio.CancelScope(shield=True):
        await cells.flush()
    interrupted = kind == "run interrupted"
    worker = WorkerResult(
        worker=0, host="h", pid=1, sent=tally.sent, acked=tally.acked, errors=tally.errors, consumed=tally.acked,
        error_examples=tally.error_examples, error_counts=dict(tally.error_counts),
        failure="was killed by SIGKILL during the run" if kind == "generator killed" else None,
    )  # fmt: skip
    faults = _seen(kind, at, until)
    _write(kind, chance, kept.rows, folder)
    return decide(
        workload,
        Figures(workload, rows, [worker], interrupted=interrupted, ended_s=at if interrupted else None),
        [worker],
        interrupted=interrupted,
        findings=None if interrupted else audit_folder(folder),
        faults=faults,
    )[1]


def _seen(kind: str, at: float, until: float) -> list[FaultInstant]:
    """What monitor and faults report of it."""
    own = {"the workload's own kill": "kill", "the workload's own pause": "pause", "cut links": "cut"}
    if kind in own:
        ends = None if own[kind] == "kill" else until
        done = [FaultInstant(what=f"{own[kind]} master", node=BROKER, second=at, until=ends)]
        seen = {"kill": (ENDED, None), "pause": (STOPPED, until)}.get(own[kind])
        if seen is not None:
            done.append(FaultInstant(what=seen[0], node=BROKER, second=at + 0.1, until=seen[1]))
        return done
    if kind in _ENDS:
        return [FaultInstant(what=ENDED, node=_ENDS[kind], second=at)]
    if kind in _STOPS:
        return [FaultInstant(what=STOPPED, node=_STOPS[kind], second=at, until=until)]
    return []


def _write(kind: str, chance: random.Random, acknowledged: list[Row], folder: Path) -> None:
    """The ledger, with everything consumed in order, but for the defect of a kind that has one."""
    consumed = sorted(acknowledged, key=lambda row: row[4])
    if kind in LEDGER_KINDS:
        acknowledged, consumed = planted(kind, chance, acknowledged, consumed)
    with open_ledger(folder_sink(folder), worker=0, workers=1, groups=("g",)) as ledger:
        for row in acknowledged:
            ledger.acknowledged(*row)
        for row in consumed:
            ledger.consumed(*row, "g")
