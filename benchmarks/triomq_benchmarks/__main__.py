"""The command line: `python -m triomq_benchmarks hotpath|versus-java|run|compare|…`, also reachable as
`triomq bench`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from triomq_command.ending_signals import interrupted_by_signals
from triomq_command.garbage import importing
from triomq_command.running import missing_package

COMMANDS: Final = {
    "audit": "Compare what was acknowledged with what was consumed in RUN_DIR, and write audit.json there.",
    "compare": "Is B worse than A? Folders that `triomq bench run --out` wrote, or folders of such folders: repeats of both "
    "sides, which `--repeat` makes.",
    "consume": "Messages/s and CPU per message of push and lite pull consumers, ours and the Java client's, on both brokers.",
    "engines": "Run WORKLOAD (quick) by each engine on one cluster of ours, and compare the medians.",
    "failover": "From the master's SIGKILL to the first message from the slave, our SDK and the Java client side by side.",
    "flights-pipeline": "Flights through a topic, a streaming query and a second topic; the query is stopped once, and a master "
    "killed, on the way.",
    "growth": "CPU per send, idle CPU, memory and start of a broker with ever more idle links, topics, groups and log files.",
    "ha": "Replication: catch-up, sync sends and the loss of a master, beside the real 4.9.7.",
    "history": "Write a page over all runs at any depth below DIR: latency, rates, what servers used, status and commit of each.",
    "hotpath": "Frames parsed, sends stored, pulls answered, per second and core.",
    "report": "Write the HTML report of RUN_DIR, which `triomq bench run --out` wrote; of several runs, side by side.",
    "run": "Run WORKLOAD, a ready one (`triomq bench workloads`) or a file (.toml, .yaml), and measure.",
    "spark-cluster": "Start a standalone Spark cluster on this machine, for experiments; Ctrl-C ends it.",
    "spark-read": "Rows per second that Spark reads from a topic, beside a pull loop and beside Parquet.",
    "versus-java": "The same load, same run: our broker and the real one, our SDK and the Java client.",
    "workloads": "List the ready workloads.",
}
"""Command to short help. Each is the function of that name in the module of that name (with underscores) in
`triomq_benchmarks.commands` or one of its `FOLDERS`; a test compares the help with the command's own."""

FOLDERS: Final = {
    "measurements": ("consume", "failover", "growth", "ha", "hotpath", "spark-read", "versus-java"),
    "runs": ("audit", "compare", "engines", "history", "report", "run", "workloads"),
}
"""The commands whose modules are in a folder of `triomq_benchmarks.commands`."""


def _module_of(command: str) -> str:
    folders = [folder for folder, commands in FOLDERS.items() if command in commands]
    return ".".join(["triomq_benchmarks.commands", *folders, command.replace("-", "_")])


class _Loaded(click.Group):
    """Imports a command only when it is run or asked for its own help: importing all of them, with Arrow, Plotly and
    the data source, takes a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: click.Command(name, help=text) for name, text in COMMANDS.items()}
        click.Group(commands=commands).format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=COMMANDS[name]) for name in names),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            with importing():
                module = import_module(_module_of(cmd_name))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("triomq"):
                raise
            if ctx.resilient_parsing:  # of a completion
                return None
            raise missing_package(f"bench {cmd_name}", "bench", error) from None
        command: Any = getattr(module, cmd_name.replace("-", "_"))
        return command  # type: ignore[no-any-return]

    def invoke(self, ctx: click.Context) -> object:
        with interrupted_by_signals():
            return super().invoke(ctx)


@click.group(cls=_Loaded)
def bench() -> None:
    """Put load on brokers and measure; compare runs, and with RocketMQ's broker and client."""


if __name__ == "__main__":
    bench()
