"""The command line: `python -m triomq_benchmarks hotpath|versus-java|run|compare|…`, also reachable as
`triomq bench`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from triomq_benchmarks.commands.termination import interrupted_by_sigterm

_COMMANDS = (
    "hotpath", "growth", "versus-java", "consume", "failover", "ha", "run", "workloads", "engines", "audit", "compare", "report",
    "history", "spark-cluster", "spark-read", "flights-pipeline",
)  # fmt: skip
"""Each is the function of that name in the module of that name in `triomq_benchmarks.commands`, with underscores."""


class _Loaded(click.Group):
    """Imports a command when it is asked for: all together import Arrow, Plotly and the data source, for a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: Any = getattr(import_module(f"triomq_benchmarks.commands.{name}"), name)
        return command  # type: ignore[no-any-return]

    def invoke(self, ctx: click.Context) -> object:
        with interrupted_by_sigterm():
            return super().invoke(ctx)


@click.group(cls=_Loaded)
def bench() -> None:
    """Measure: the hot path alone, or ours against the real RocketMQ 4.9.7."""


if __name__ == "__main__":
    bench()
