"""Runs made of chance instead of a cluster: with a pause of two seconds, a redirect to a slave, and everything else
that a report shows."""

from __future__ import annotations

import functools
import random

from triomq_benchmarks.figures.intervals import MONITOR, IntervalRow, encode, new_histogram
from triomq_benchmarks.figures.resources import GENERATORS, MACHINE, ResourceRow
from triomq_benchmarks.figures.run_result import (
    Decision,
    FaultInstant,
    Machine,
    RunResult,
    RunStatus,
    ThresholdResult,
    WorkerResult,
)

SECONDS = 20
PER_SECOND = 500


def histogram(values_ms: list[float]) -> bytes:
    made = new_histogram()
    for value in values_ms:
        made.record_value(max(1, int(value * 1000)))
    return encode(made)


@functools.cache
def made_run(
    *,
    slower: float = 1.0,
    seed: int = 1,
    target: str = "ours",
    per_second: int = PER_SECOND,
    errors: int = 0,
    lost: int = 0,
    partial: bool = False,
    status: RunStatus = RunStatus.PASSED,
    body_bytes: int = 1024,
) -> RunResult:
    """A run whose sends take about `slower` milliseconds, but for a pause between the seconds 8 and 10."""
    chance = random.Random(seed)
    rows = []
    for worker in range(2):
        for second in range(-3, SECONDS):
            sent = [chance.lognormvariate(0, 0.35) * slower for _ in range(per_second // 2)]
            if second in {8, 9}:
                sent = [value + (10 - second - number / len(sent)) * 1000 for number, value in enumerate(sent)]
            from_slave = per_second // 2 if 10 <= second < 14 else 0
            rows.append(
                IntervalRow(
                    worker=worker,
                    second=second,
                    sent=per_second // 2,
                    acked=per_second // 2,
                    errors=errors if second == 9 and worker == 0 else 0,
                    consumed=per_second // 2,
                    sent_bytes=per_second // 2 * body_bytes,
                    consumed_bytes=per_second // 2 * body_bytes,
                    from_slave=from_slave,
                    from_master=per_second // 2 - from_slave,
                    held_s=0.8 if second in {8, 9} else 0.0,
                    intended_to_ack=histogram(sent),
                    actual_to_ack=histogram([min(value, 40.0) for value in sent]),
                    lateness=histogram([chance.random() * 0.4 + 0.01 for _ in sent]),
                    intended_to_consumed=histogram([value + 1.2 for value in sent]),
                )
            )
    rows += [
        IntervalRow(
            worker=MONITOR,
            second=second,
            backlog=max(0, (second - 7) * 400) if second < 12 else max(0, 2000 - (second - 11) * 500),
            replication_lag_bytes=chance.randrange(1 << 16) + (3 << 20 if second in {8, 9} else 0),
        )
        for second in range(SECONDS)
    ]
    counts = {"lost": lost, "duplicated": 0, "reordered": 0, "corrupt": 0, "unexpected": 0}
    example = {
        "message": "0:17",
        "number": 17,
        "group": "g",
        "place": "t broker-a/0 at 17",
        "detail": "was <never> consumed",
    }
    return RunResult(
        run_id=f"made-{seed}",
        started_at="2026-11-21T11:00:00Z",
        engine="processes 2",
        target=target,
        target_details={"brokers": "broker-a: master 127.0.0.1:10911, slave 127.0.0.1:10921"},
        workload={"name": "quick", "description": "made of chance", "body_bytes": body_bytes, "rate_per_s": per_second},
        loop="open",
        versions={"triomq": "0.1.0", "python": "3.11"},
        machine=Machine(host="host", system="Linux", python="3.11", cpus=2, memory_bytes=8 << 30),
        seed=seed,
        measured_s=float(SECONDS),
        partial=partial,
        rows=tuple(rows),
        workers=tuple(
            WorkerResult(
                worker=number, host="host", pid=100 + number, sent=SECONDS * per_second // 2, acked=SECONDS * per_second // 2,
                consumed=SECONDS * per_second // 2, error_examples={"SendTimeout": "a <b>text</b>"} if errors else {},
                error_counts={"SendTimeout": errors} if errors else {},
                clock_offset_ms=0.125 if number else None, clock_error_ms=0.05 if number else None,
            )
            for number in range(2)
        ),
        faults=(FaultInstant(what="pause", node="broker-a", second=8.0, until=10.0),),
        thresholds=(ThresholdResult(text="p99_ms < 5000", measured=1990.0, passed=True),),
        decision=Decision(status=status, explanation="All thresholds held.", notes=("the broker held the generator back",)),
        audit={
            "clean": not lost, "complete": True, "acknowledged": SECONDS * per_second, "consumed": SECONDS * per_second - lost,
            "counts": counts, "examples": {**{name: [] for name in counts}, "lost": [example] if lost else []}, "notes": [],
        },
        drained_s=0.4,
        surroundings={"before": {"load_average_1_minute": 0.5}, "after": {"load_average_1_minute": 1.5}},
        resources=tuple(
            ResourceRow(who=who, second=second, cpu_cores=cpu, memory_bytes=64 << 20, written_bytes=1 << 20)
            for second in range(-3, SECONDS)
            for who, cpu in (("broker-a", 0.5), (GENERATORS, 0.25), (MACHINE, 1.0))
            if second not in {8, 9} or who != "broker-a"
        ),
    )  # fmt: skip
