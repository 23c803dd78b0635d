"""`triomq bench workloads`: the workloads that come with the package."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from triomq_benchmarks.workload.files import ready_workloads
from triomq_benchmarks.workload.workload import Loop


@click.command("workloads")
@click.option("--json", "as_json", is_flag=True, help="For machines: all settings, defaults included.")
def workloads(as_json: bool) -> None:
    """List the ready workloads."""
    ready = ready_workloads()
    if as_json:
        click.echo(json.dumps({name: each.settings() for name, each in ready.items()}))
        return
    table = Table("name", "load", "what it shows", title_justify="left")
    for name, each in ready.items():
        load = "closed loop" if each.loop is Loop.CLOSED else f"{each.intended_rate_per_s:,.0f}/s"
        table.add_row(name, f"{load}, {each.warm_up_s:g} + {each.duration_s:g} s", each.description)
    Console().print(table)
