"""``triomq cluster``: a whole cluster of processes on this machine."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import click

from triomq_server.commands import options
from triomq_server.commands.serving import start_logging


@click.command()
@click.option(
    "--masters", type=click.IntRange(1, 26), default=1, show_default=True, help="Broker sets, each with one master."
)
@click.option(
    "--slaves",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Slaves of each master: --masters 2 --slaves 1 is RocketMQ's 2m-2s.",
)
@click.option("--name-servers", type=click.IntRange(1), default=1, show_default=True, help="Name servers.")
@click.option(
    "--sample",
    type=click.Choice(["2m-2s-async", "2m-2s-sync", "2m-noslave"]),
    help="One of RocketMQ's sample clusters.",
)
@click.option("--sync-flush", is_flag=True, help="Answer sends when the disk has them (SYNC_FLUSH).")
@click.option("--sync-replication", is_flag=True, help="Answer sends when a slave has them (SYNC_MASTER).")
@click.option(
    "--base-port",
    type=click.IntRange(3, 65_534),
    help="Name servers, masters, slaves listen on this port and every fourth one after it. Default: free ports.",
)
@click.option(
    "--directory", type=click.Path(file_okay=False), help="Keep all files here; default: a temporary directory."
)
@options.assignments
@options.strict
@click.option(
    "--control",
    is_flag=True,
    help="Read `start|stop|restart|kill|pause|resume NAME` from standard input; its end ends the cluster.",
)
@options.as_json
@options.log_level
def cluster(
    masters: int,
    slaves: int,
    name_servers: int,
    sample: str | None,
    sync_flush: bool,
    sync_replication: bool,
    base_port: int | None,
    directory: str | None,
    assignments: tuple[str, ...],
    strict: bool,
    control: bool,
    as_json: bool,
    log_level: str,
) -> None:
    """Run a whole cluster on loopback ports, one process per node, until SIGTERM, SIGINT or SIGHUP.

    A node can be killed like any process; with --control it can also be started again.
    """
    from triomq_server.cluster.plan import check_settings, node_count, plan_cluster
    from triomq_server.cluster.processes import ClusterProcesses
    from triomq_server.config import ConfigError
    from triomq_server.ports import ports_from, reserved_ports

    if control and sys.stdin is None:  # closed before the start
        raise click.UsageError("--control reads commands from standard input, which is closed: give a pipe or a file")
    if sample:
        masters, slaves = 2, int(sample != "2m-noslave")
    with contextlib.ExitStack() as removed_at_the_end:
        try:
            files = directory or removed_at_the_end.enter_context(
                tempfile.TemporaryDirectory(prefix="triomq-", ignore_cleanup_errors=True)
            )
        except OSError as error:
            options.fail(f"{error.strerror or error}; give a place for the files (--directory)", options.EXIT_FAILED)
        try:
            count = node_count(masters, slaves, name_servers)
            if base_port is not None:
                ports = ports_from(base_port, count)
            else:  # no other cluster that starts now may choose them before they are in use
                ports = removed_at_the_end.enter_context(reserved_ports(count))
            plan = plan_cluster(
                Path(files).absolute(),
                masters=masters,
                slaves=slaves,
                name_servers=name_servers,
                sync_replication=sync_replication or sample == "2m-2s-sync",
                sync_flush=sync_flush,
                settings=options.read_assignments(assignments),
                ports=ports,
            )
            warnings = check_settings(plan, strict=strict)
        except OSError as error:
            from triomq_server.process.failures import NO_CURRENT_DIRECTORY, lacks_current_directory

            gone = lacks_current_directory(error)
            options.fail(NO_CURRENT_DIRECTORY if gone else error.strerror or str(error), options.EXIT_FAILED)
        except ConfigError as error:
            options.fail(f"bad configuration: {error}", options.EXIT_USAGE)
        except ValueError as error:
            options.fail(f"--base-port: {error}", options.EXIT_USAGE)
        start_logging("warning" if log_level == "info" else log_level, warnings)
        code = ClusterProcesses(plan, _print_event_as_json if as_json else _print_event).run(control=control)
    sys.exit(code)


def _print_event_as_json(event: dict[str, object]) -> None:
    options.print_line(json.dumps(event))


def _print_event(event: dict[str, object]) -> None:
    what = event["event"]
    if what == "ready":
        nodes = event["nodes"]
        assert isinstance(nodes, list)
        options.print_line(f"The cluster is ready after {event['ready_s']} s, files in {event['directory']}")
        for node in nodes:
            options.print_line(f"  {node['name']:<16} {node['role']:<8} {node['address']:<22} pid {node['pid']}")
        options.print_line(f"Clients connect to {event['name_servers']}; Ctrl-C stops everything.")
    elif what == "stopping":
        options.print_line("Stopped before the cluster was ready", err=True)
    elif what == "error":
        options.print_line(f"Error: {event['error']}", err=True)
    elif what == "ended":
        options.print_line(f"{event['name']} ended with status {event['status']}")
    elif what == "started":
        options.print_line(f"{event['name']} started again, pid {event['pid']}, ready after {event['ready_s']} s")
