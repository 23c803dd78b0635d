"""The figures of replication, for people (tables with goals) and for machines (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import attrs
import msgspec
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.clusters.cluster import JAVA_TO_JAVA, OURS_TO_OURS, PAIRINGS, Pairing
from triomq_benchmarks.figures.machine import machine_now
from triomq_benchmarks.ha.catch_up import BEHIND, EMPTY, SENDFILE, SENDFILE_SPLICED, SENDFILE_TO_FILE, CatchUp
from triomq_benchmarks.ha.failover import GOAL_S
from triomq_benchmarks.ha.measurement import HaFigures
from triomq_benchmarks.ha.sync_sends import SyncSend
from triomq_benchmarks.report.goals import ratio_text

CATCH_UP_GOAL = 3.0
MIXED_CATCH_UP_GOAL = 1.0
SENDFILE_GOAL = 0.6
SYNC_P50_GOAL = 0.6
SYNC_RATE_GOAL = 1.3
OURS, JAVA = "our SDK", "Java client"


@attrs.frozen
class CatchUpRow:
    """Medians of one pairing, or of a yardstick.

    Attributes:
        body_bytes: size of bodies.
        situation: the reason why the slave was behind, or the yardstick's way of sending.
        pairing: the master's and slave's kinds, as `Pairing.name`; empty for a yardstick.
        mb_per_s: millions of log bytes per second.
        all_mb_per_s: the value of every round.
        readable_mb_per_s: the same, until all of it can be read at the slave; 0 for a yardstick.
        readable_to_java: that divided by Java's own.
        size_mb: millions of log bytes of the last round.
        master_ms_per_mb, slave_ms_per_mb: CPU milliseconds per million bytes.
        to_java: `mb_per_s` divided by Java's own; None for Java's own and yardsticks.
        goal: minimum wanted for `to_java`.
        to_sendfile: `mb_per_s` divided by the bare loop's.
        sendfile_goal: minimum wanted for `to_sendfile`.
    """

    body_bytes: int
    situation: str
    pairing: str
    mb_per_s: float
    all_mb_per_s: tuple[float, ...]
    readable_mb_per_s: float
    readable_to_java: float | None
    size_mb: float
    master_ms_per_mb: float
    slave_ms_per_mb: float
    to_java: float | None
    goal: float | None
    to_sendfile: float
    sendfile_goal: float | None


def catch_up_rows(catch_ups: Sequence[CatchUp]) -> list[CatchUpRow]:
    """Medians over the rounds, with their ratios."""
    rows = []
    for body_bytes in dict.fromkeys(one.body_bytes for one in catch_ups):
        of_body = [one for one in catch_ups if one.body_bytes == body_bytes]
        bare = median(one.mb_per_s for one in of_body if one.situation == SENDFILE)
        for situation in (EMPTY, BEHIND):
            of_situation = [one for one in of_body if one.situation == situation]
            javas = [one for one in of_situation if one.pairing == JAVA_TO_JAVA]
            rows += [
                _row([one for one in of_situation if one.pairing == pairing], bare, pairing, javas)
                for pairing in PAIRINGS
            ]
        rows += [
            _row([one for one in of_body if one.situation == yardstick], bare, None, [])
            for yardstick in (SENDFILE, SENDFILE_TO_FILE, SENDFILE_SPLICED)
        ]
    return rows


def _row(samples: list[CatchUp], bare: float, pairing: Pairing | None, javas: list[CatchUp]) -> CatchUpRow:
    per_s = median(one.mb_per_s for one in samples)
    readable = median(one.readable_mb_per_s for one in samples)
    compared = bool(javas) and pairing != JAVA_TO_JAVA
    ours = pairing == OURS_TO_OURS
    goal = CATCH_UP_GOAL if ours else MIXED_CATCH_UP_GOAL
    return CatchUpRow(
        body_bytes=samples[0].body_bytes,
        situation=samples[0].situation,
        pairing=pairing.name if pairing is not None else "",
        mb_per_s=per_s,
        all_mb_per_s=tuple(round(one.mb_per_s, 1) for one in samples),
        size_mb=samples[-1].size / 1e6,
        master_ms_per_mb=median(one.master_cpu_s * 1e9 / one.size for one in samples),
        slave_ms_per_mb=median(one.slave_cpu_s * 1e9 / one.size for one in samples),
        readable_mb_per_s=readable,
        readable_to_java=readable / median(one.readable_mb_per_s for one in javas) if compared else None,
        to_java=per_s / median(one.mb_per_s for one in javas) if compared else None,
        goal=goal if compared else None,
        to_sendfile=per_s / bare,
        sendfile_goal=SENDFILE_GOAL if ours else None,
    )


def print_figures(figures: HaFigures, console: Console) -> None:
    """Print a table for each part that ran."""
    load = machine_now()["load_average"]
    console.print(f"load average {load}")
    if figures.catch_ups:
        console.print(_catch_up_table(catch_up_rows(figures.catch_ups)))
    if figures.sync:
        console.print(_sync_table(figures.sync))
    if figures.kills:
        taken_s = {OURS: [kill.ours_s for kill in figures.kills], JAVA: [kill.java_s for kill in figures.kills]}
        console.print(loss_table(taken_s))


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _catch_up_table(rows: list[CatchUpRow]) -> Table:
    table = _table(
        "Catch-up of a slave, one log file, medians",
        ("body", "slave", "master → slave"),
        (
            "MB",
            "MB/s",
            "to Java's (goal)",
            "to sendfile (goal)",
            "readable MB/s",
            "to Java's",
            "CPU ms/MB, master + slave",
        ),
    )
    for row in rows:
        table.add_row(
            f"{row.body_bytes:,}",
            row.situation if row.pairing else "",
            row.pairing or row.situation,
            f"{row.size_mb:.0f}",
            f"{row.mb_per_s:,.0f}",
            "" if row.to_java is None else ratio_text(row.to_java, row.goal),
            ratio_text(row.to_sendfile, row.sendfile_goal),
            f"{row.readable_mb_per_s:,.0f}" if row.pairing else "",
            "" if row.readable_to_java is None else ratio_text(row.readable_to_java, None),
            f"{row.master_ms_per_mb:.2f} + {row.slave_ms_per_mb:.2f}" if row.pairing else "",
        )
    return table


def _sync_table(sync: Sequence[SyncSend]) -> Table:
    table = _table(
        "SYNC_MASTER, prepared frames of 1 KiB, medians",
        ("master → slave",),
        ("p50 / p99 µs", "p50 to Java's (goal)", "64 senders/s", "to Java's (goal)", "p50 / p99 µs", "master CPU µs"),
    )
    javas = _of(sync, JAVA_TO_JAVA)
    for one in sync:
        ours = one.pairing == OURS_TO_OURS
        table.add_row(
            one.pairing.name,
            f"{one.p50_us:,.0f} / {one.p99_us:,.0f}",
            ""
            if one is javas
            else ratio_text(one.p50_us / javas.p50_us, SYNC_P50_GOAL if ours else None, at_most=True),
            f"{one.per_s:,.0f}",
            "" if one is javas else ratio_text(one.per_s / javas.per_s, SYNC_RATE_GOAL if ours else None),
            f"{one.many_p50_us:,.0f} / {one.many_p99_us:,.0f}",
            f"{one.master_us:.1f}",
        )
    return table


def loss_table(taken_s: Mapping[str, Sequence[float]]) -> Table:
    """The cost of the kills for each client, one row per client.

    Args:
        taken_s: by `OURS` and `JAVA`, seconds per kill.
    """
    table = Table(title="Master killed: ms to the first message from the slave")
    table.add_column("client")
    for column in ("kills", "p50", "max", "goal"):
        table.add_column(column, justify="right")
    for name, seconds in taken_s.items():
        goal = f"< {GOAL_S * 1e3:g}" if name == OURS else ""
        table.add_row(name, str(len(seconds)), f"{median(seconds) * 1e3:,.1f}", f"{max(seconds) * 1e3:,.1f}", goal)
    return table


def _of(sync: Sequence[SyncSend], pairing: Pairing) -> SyncSend:
    return next(one for one in sync if one.pairing == pairing)


def figures_json(figures: HaFigures) -> str:
    """The figures as JSON, ratios included."""
    found: dict[str, object] = {"machine": machine_now()}
    if figures.catch_ups:
        found["catch_up"] = [attrs.asdict(row) for row in catch_up_rows(figures.catch_ups)]
    if figures.sync:
        javas = _of(figures.sync, JAVA_TO_JAVA)
        found["sync"] = [
            {
                **attrs.asdict(one),
                "pairing": one.pairing.name,
                "p50_to_java": one.p50_us / javas.p50_us,
                "per_s_to_java": one.per_s / javas.per_s,
            }
            for one in figures.sync
        ]
    if figures.kills:
        found["failover"] = {
            name: {"p50_ms": median(taken_s) * 1e3, "max_ms": max(taken_s) * 1e3, "ms": [s * 1e3 for s in taken_s]}
            for name, taken_s in (
                ("ours", [kill.ours_s for kill in figures.kills]),
                ("java", [kill.java_s for kill in figures.kills]),
            )
        }
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
