"""The command line: `python -m triomq_benchmarks hotpath|versus-java|run|compare|…`, also reachable as
`triomq bench`."""

from __future__ import annotations

import click

from triomq_benchmarks.commands.audit import audit
from triomq_benchmarks.commands.compare import compare
from triomq_benchmarks.commands.consume import consume
from triomq_benchmarks.commands.engines import engines
from triomq_benchmarks.commands.failover import failover
from triomq_benchmarks.commands.flights_pipeline import flights_pipeline
from triomq_benchmarks.commands.growth import growth
from triomq_benchmarks.commands.ha import ha
from triomq_benchmarks.commands.history import history
from triomq_benchmarks.commands.hotpath import hotpath
from triomq_benchmarks.commands.report import report
from triomq_benchmarks.commands.run import run
from triomq_benchmarks.commands.spark_cluster import spark_cluster
from triomq_benchmarks.commands.spark_read import spark_read
from triomq_benchmarks.commands.versus_java import versus_java
from triomq_benchmarks.commands.workloads import workloads


@click.group()
def bench() -> None:
    """Measure: the hot path alone, or ours against the real RocketMQ 4.9.7."""


for _command in (
    hotpath, growth, versus_java, consume, failover, ha, run, workloads, engines, audit, compare, report, history, spark_cluster,
    spark_read, flights_pipeline,
):  # fmt: skip
    bench.add_command(_command)


if __name__ == "__main__":
    bench()
