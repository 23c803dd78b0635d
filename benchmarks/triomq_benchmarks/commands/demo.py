"""`triomq demo redirect`: which broker serves a consumer that falls behind and catches up."""

from __future__ import annotations

import json
import sys

import attrs
import click
import trio
from rich.console import Console
from rich.table import Table

import triomq
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.demo.redirect import QUEUES, Stretch, order_of_brokers, show_redirect


@click.group()
def demo() -> None:
    """Show what brokers do."""


@demo.command()
@click.option(
    "--memory-bytes",
    type=click.IntRange(1 << 20),
    default=64 * 1024 * 1024,
    show_default=True,
    help="Memory size that the brokers assume; readers more than 40 % of it behind go to the slave.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def redirect(memory_bytes: int, as_json: bool) -> None:
    """A slow consumer goes from the master to the slave and back.

    Exit code 0: each queue was served by the master, then by the slave, then by the master. 1: it was not.
    """
    try:
        stretches = trio.run(show_redirect, memory_bytes)
    except (ChildError, triomq.MQError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    orders = {queue: order_of_brokers(stretches, queue) for queue in range(QUEUES)}
    if as_json:
        object_ = {
            "memory_bytes": memory_bytes,
            "orders": orders,
            "stretches": [attrs.asdict(each) for each in stretches],
        }
        click.echo(json.dumps(object_))
    else:
        Console().print(_table(stretches, memory_bytes))
    sys.exit(0 if all(order == ["master", "slave", "master"] for order in orders.values()) else 1)


def _table(stretches: list[Stretch], memory_bytes: int) -> Table:
    table = Table(title=f"who served a slow consumer, brokers with {memory_bytes / 1e6:.0f} MB of memory")
    for column in ("queue", "the consumer", "offsets", "behind by (messages)", "served by"):
        table.add_column(column, justify="right" if column.startswith(("offsets", "behind")) else "left")
    last = None
    for each in stretches:
        if last not in (None, each.queue):
            table.add_section()
        last = each.queue
        style = "bold yellow" if each.served_by == "slave" else ""
        table.add_row(
            str(each.queue), each.phase, f"{each.first} - {each.last}", str(each.behind), each.served_by, style=style
        )
    return table
