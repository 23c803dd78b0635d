"""The command `consume`: how fast consumers are, beside Java's; with `--stalled`, how much memory one takes."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .builds import ToolUnavailableError
from .consume_memory import Stalled, measure_stalled
from .consume_speed import CPU_GOALS, GOALS, KINDS, ConsumePlan, ConsumeRow, measure_consumers
from .java import Java, find_java
from .processes import ChildError, DriverError
from .report import machine
from .targets import Kind

COUNT, QUICK_COUNT = 300_000, 100_000
STALLED_COUNT, QUICK_STALLED_COUNT = 1_000_000, 200_000
MIB = 1 << 20


@click.command()
@click.option("--body", "body_bytes", type=click.IntRange(1, 1 << 20), default=1024, show_default=True, help="Bytes.")
@click.option(
    "--count", type=click.IntRange(1000, 5_000_000), help="Messages per sample. Default 300000, quick 100000."
)
@click.option("--rounds", type=click.IntRange(1, 50), help="Samples per figure; medians are shown. Default 5, quick 3.")
@click.option("--warm-up", type=click.IntRange(0, 20), help="Samples before those. Default 3, quick 2.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Of consumers; default: all.")
@click.option("--stalled", is_flag=True, help="Memory of a push consumer whose handlers stand still; needs no Java.")
@click.option("--ours", "ours_alone", is_flag=True, help="Our SDK on our broker alone.")
@click.option("--home", type=click.Path(path_type=Path), help="Where stores and logs go, and stay. Default: scratch.")
@click.option("--quick", is_flag=True, help="Fewer messages, fewer samples.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def consume(
    body_bytes: int,
    count: int | None,
    rounds: int | None,
    warm_up: int | None,
    kinds: tuple[str, ...],
    stalled: bool,
    ours_alone: bool,
    home: Path | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Messages/s and CPU per message of push and lite pull consumers, ours and the Java client's, on both brokers."""

    def progress(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    plan = ConsumePlan(
        body_bytes=body_bytes,
        count=count or (QUICK_COUNT if quick else COUNT),
        rounds=rounds or (3 if quick else 5),
        warm_up=warm_up if warm_up is not None else (2 if quick else 3),
        kinds=kinds or KINDS,
    )
    java = None if stalled or ours_alone else _java()
    try:
        with (
            _ended_by_signals(),
            tempfile.TemporaryDirectory(prefix="triomq-consume-", ignore_cleanup_errors=True) as scratch,
        ):
            place = (home or Path(scratch)).absolute()
            if stalled:
                messages = count or (QUICK_STALLED_COUNT if quick else STALLED_COUNT)
                _tell_stalled(measure_stalled(messages, body_bytes, place, progress), as_json)
            else:
                _tell_speed(measure_consumers(plan, java, place, progress), plan, as_json)
    except (ChildError, DriverError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: with all that was started in it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _java() -> Java | None:
    try:
        return find_java()
    except ToolUnavailableError as error:
        click.echo(f"our SDK on our broker alone, no RocketMQ 4.9.7 to compare with: {error}", err=True)
        return None


def _tell_speed(rows: Sequence[ConsumeRow], plan: ConsumePlan, as_json: bool) -> None:
    if as_json:
        click.echo(_json({"plan": attrs.asdict(plan), "rows": [row_json(row) for row in rows]}))
    else:
        _console().print(speed_table(rows, plan))


def _tell_stalled(found: Sequence[Stalled], as_json: bool) -> None:
    if as_json:
        told = [{**attrs.asdict(each), "allowed_bytes": each.allowed_bytes, "passed": each.passed} for each in found]
        click.echo(_json({"stalled": told}))
    else:
        _console().print(stalled_table(found))
    if not all(each.passed for each in found):
        sys.exit(1)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 200)


def _json(told: dict[str, object]) -> str:
    return msgspec.json.format(msgspec.json.encode({"machine": machine(), **told}), indent=2).decode()


def row_json(row: ConsumeRow) -> dict[str, object]:
    """A row for machines, ratios and goals included."""

    def rounded(ratio: float | None) -> float | None:
        return None if ratio is None else round(ratio, 3)

    return {
        **attrs.asdict(row),
        "ratio": rounded(row.ratio),
        "cpu_ratio": rounded(row.cpu_ratio),
        "goal": GOALS[row.kind],
        "cpu_goal": CPU_GOALS[row.kind],
    }


def judged(ratio: float | None, goal: float | None, met: Callable[[float, float], bool], sign: str) -> Text:
    """A ratio with its goal beside it, green or red."""
    if ratio is None:
        return Text("-")
    if goal is None:
        return Text(f"{ratio:.2f}x")
    return Text(f"{ratio:.2f}x ({sign} {goal:g})", style="green" if met(ratio, goal) else "bold red")


def speed_table(rows: Sequence[ConsumeRow], plan: ConsumePlan) -> Table:
    """For people: one row per kind of consumer and broker."""
    title = f"Consumers of {plan.count:,} messages of {plan.body_bytes:,} B, bodies read; medians of {plan.rounds}; CPU in µs per message"
    table = Table(title=title, title_justify="left")
    for name in ("consumer", "broker"):
        table.add_column(name)
    for name in (
        "ours/s", "Java/s", "ratio (goal)", "our CPU", "Java's CPU", "CPU ratio (goal)", "broker's CPU: ours", "Java",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        java = row.java
        table.add_row(
            "lite pull" if row.kind == "lite" else row.kind,
            "ours" if row.broker is Kind.OURS else "Java's",
            f"{row.ours.per_s:,.0f}",
            f"{java.per_s:,.0f}" if java is not None else "-",
            judged(row.ratio, GOALS[row.kind], lambda ratio, goal: ratio >= goal, ">="),
            f"{row.ours.client_us:.2f}",
            f"{java.client_us:.2f}" if java is not None else "-",
            judged(row.cpu_ratio, CPU_GOALS[row.kind], lambda ratio, goal: ratio <= goal, "<="),
            f"{row.ours.broker_us:.2f}",
            f"{java.broker_us:.2f}" if java is not None else "-",
        )
    return table


def stalled_table(found: Sequence[Stalled]) -> Table:
    """For people: one row per limits, MiB."""
    table = Table(title="Resident memory of a push consumer whose handlers stand still, MiB", title_justify="left")
    table.add_column("limits")
    for name in ("messages", "held", "counted", "limit", "before", "stalled", "peak", "allowed"):
        table.add_column(name, justify="right")
    for each in found:
        bytes_of = (each.held_bytes, each.limit_bytes, each.before_bytes, each.stalled_bytes)
        table.add_row(
            each.name,
            f"{each.messages:,}",
            f"{each.held:,}",
            *(f"{value / MIB:,.0f}" for value in bytes_of),
            Text(f"{each.peak_bytes / MIB:,.0f}", style="green" if each.passed else "bold red"),
            f"{each.allowed_bytes / MIB:,.0f}",
        )
    return table
