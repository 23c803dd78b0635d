"""Seeded faults in a cluster of real processes: SIGKILL, SIGSTOP, partitions and restarts under load, then the audit
of the files.

    python tests/faults/cluster/cluster_processes.py --count 200
    python tests/faults/cluster/cluster_processes.py --pair java/ours --count 20    # a 4.9.7 master, our slaves
    python tests/faults/cluster/cluster_processes.py --pair ours/java --first 17 -v

`process_schedule` describes what is expected of each pair.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import trio
from cluster_setting import counts, kinds
from process_schedule import Outcome, run_schedule
from separate_nodes import OURS, Pair

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.java import QUICK_JVM, find_java

PAIRS = ("ours/ours", "java/ours", "ours/java")


def summary(outcomes: list[Outcome], spent_s: float, pair: Pair = OURS) -> str:
    """One line with the counts."""
    found: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    for each in outcomes:
        found += kinds(each.faults)
        statuses += each.statuses
    return (
        f"{pair}: {len(outcomes)} schedules of real processes, {sum(len(each.events) for each in outcomes)} events, "
        f"{sum(each.setting.disk_lost for each in outcomes)} disks lost, "
        f"{sum(each.acknowledged for each in outcomes)} acknowledged {dict(statuses)}, "
        f"{sum(each.refused for each in outcomes)} refused, {sum(each.stored for each in outcomes)} stored, "
        f"{sum(each.commits for each in outcomes)} commits: {counts(found)}; {spent_s:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--pair", choices=PAIRS, default=PAIRS[0], help="implementation of the master and of the slaves"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="show events")
    options = parser.parse_args()
    pair = Pair.parsed(options.pair)
    java = None
    if pair != OURS:
        try:
            java = find_java(options=QUICK_JVM)
        except ToolUnavailableError as error:
            print(f"RocketMQ 4.9.7 is not available: {error}", file=sys.stderr)
            return 2
    begin = time.perf_counter()
    outcomes = []
    for seed in range(options.first, options.first + options.count):
        with tempfile.TemporaryDirectory(prefix="triomq-faults-", ignore_cleanup_errors=True) as home:

            async def schedule(seed: int = seed, home: str = home) -> Outcome:
                return await run_schedule(seed, Path(home), pair=pair, java=java)

            outcome = trio.run(schedule)
        outcomes.append(outcome)
        if outcome.faults:
            print(outcome.output)
        if outcome.faults or options.verbose:
            print(
                f"seed {seed} {outcome.setting}: {outcome.acknowledged} acknowledged {dict(outcome.statuses)}, "
                f"{outcome.stored} stored, {outcome.commits} commits"
            )
            print(*outcome.events, *outcome.faults[:10], sep="\n", flush=True)
        if len(outcomes) % 10 == 0:
            print(summary(outcomes, time.perf_counter() - begin, pair), flush=True)
    print(summary(outcomes, time.perf_counter() - begin, pair))
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
