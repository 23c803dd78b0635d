"""The option `--master` of commands that always use Spark."""

from __future__ import annotations

import click

from triomq_benchmarks.spark.environment import check_slots


def _checked(_context: click.Context, _option: click.Parameter, given: str) -> str:
    # Before anything is sent.
    try:
        check_slots(given, None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--master") from None
    return given


spark_master = click.option(
    "--master", default="local[2]", show_default=True, callback=_checked, help="Where Spark runs."
)
