"""The server's commands: ``namesrv``, ``broker``, ``cluster`` and ``admin``, with RocketMQ's own flags.

Usable as ``python -m triomq_server ...`` and, through entry points, as ``triomq namesrv|broker|cluster|admin``. Heavy
imports happen inside the commands, so that ``--help`` is quick. Exit codes: 0 after a requested stop, 1 when a server
could not start or continue (one line states why), 2 for a command line or configuration that cannot be used.
"""

import functools
import sys

import click

from triomq_command.garbage import importing
from triomq_command.running import exit_code_of
from triomq_server.commands.broker import broker
from triomq_server.commands.cluster import cluster
from triomq_server.commands.namesrv import namesrv


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Name server and broker with Apache RocketMQ 4.9's wire, replication and disk formats."""


class _ImportedWhenUsed(click.Group):
    """The group `admin`, whose module imports the event loop and is therefore imported only on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the group's commands."""
        return self._group().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, or None."""
        return self._group().get_command(ctx, cmd_name)

    @staticmethod
    @functools.cache
    def _group() -> click.Group:
        with importing():
            from triomq_server.commands.admin import admin

        return admin


@main.command(cls=_ImportedWhenUsed)
def admin() -> None:
    """Show and change replication and roles of triomq's brokers; check and repair their stores."""


main.add_command(namesrv)
main.add_command(broker)
main.add_command(cluster)


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(prog_name="python -m triomq_server", standalone_mode=False)))
