"""The server's commands: ``namesrv``, ``broker`` and ``cluster``, with RocketMQ's own flags.

Usable as ``python -m triomq_server ...`` and, through entry points, as ``triomq namesrv|broker|cluster``. Heavy imports happen
inside the commands, so that ``--help`` is quick. Exit codes: 0 after a stop that was asked for, 1 when a server could not
start or go on (one line says why), 2 for a command line or configuration that cannot be used.
"""

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import click

if TYPE_CHECKING:
    import trio

    from triomq_server.config import BrokerConfig, NamesrvConfig

EXIT_FAILED = 1
EXIT_USAGE = 2

IMPORTANT_KEYS = (
    "namesrvAddr", "brokerIP1", "brokerIP2", "brokerName", "brokerClusterName", "brokerId", "brokerPermission", "listenPort",
    "haListenPort", "haMasterAddress", "brokerRole", "flushDiskType", "storePathRootDir", "storePathCommitLog",
    "defaultTopicQueueNums", "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "rejectTransactionMessage",
    "fetchNamesrvAddrByAddressServer", "enablePropertyFilter", "slaveReadEnable", "compat",
)  # fmt: skip
"""What ``-m`` prints: the settings that operators look at."""


class _Settings(Protocol):
    def to_properties(self) -> dict[str, str]:
        """All keys as text."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Name server and broker with Apache RocketMQ 4.9's wire, replication and disk formats."""


_config = click.option(
    "-c", "--config", "config_file", metavar="FILE", help="RocketMQ configuration file (key=value lines)."
)
_print_all = click.option("-p", "--print-config", "print_all", is_flag=True, help="Print all settings and exit.")
_print_some = click.option(
    "-m", "--print-important", "print_some", is_flag=True, help="Print important settings and exit."
)
_port = click.option("--port", type=click.IntRange(0, 65535), help="listenPort; 0 takes a free one.")
_set = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any RocketMQ key; may be repeated."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
_log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    help="What goes to standard error.",
)  # fmt: skip


@main.command()
@_config
@_print_all
@_print_some
@_port
@_set
@_json
@_log_level
def namesrv(
    config_file: str | None,
    print_all: bool,
    print_some: bool,
    port: int | None,
    assignments: tuple[str, ...],
    as_json: bool,
    log_level: str,
) -> None:
    """Run a name server until SIGTERM or SIGINT."""
    from triomq_server.config import ConfigError, NamesrvConfig, PropertiesError

    flags = {} if port is None else {"listenPort": str(port)}
    try:
        values = _values(config_file, assignments, flags)
        if config_file:
            values.setdefault("configStorePath", str(Path(config_file).absolute()))
        config, warnings = NamesrvConfig.from_properties(values)
    except (ConfigError, PropertiesError) as error:
        _fail(f"bad configuration: {error}", EXIT_USAGE)
    _start_logging(log_level, warnings)
    _print_and_exit(config, print_all=print_all, print_some=print_some)

    from triomq_server.namesrv import serve_namesrv

    def ready(address: object) -> None:
        if as_json:
            _say_json(role="namesrv", address=str(address))
        else:
            click.echo(f"The Name Server boot success. serializeType=JSON, listening on {address}")

    async def serve(*, task_status: "trio.TaskStatus[object]") -> None:
        await serve_namesrv(config, task_status=task_status)

    _serve(serve, ready, config)


@main.command()
@_config
@click.option(
    "-n", "--name-servers", "--namesrv-addr", "namesrv_addr", metavar="HOST:PORT;...",
    help="Name servers; also from the environment's NAMESRV_ADDR.",
)  # fmt: skip
@_print_all
@_print_some
@_port
@click.option("--store", metavar="DIR", help="storePathRootDir.")
@click.option("--memory-bytes", type=int, help="Memory size that the 40 % rule of pulls reckons with.")
@_set
@_json
@_log_level
def broker(
    config_file: str | None,
    namesrv_addr: str | None,
    print_all: bool,
    print_some: bool,
    port: int | None,
    store: str | None,
    memory_bytes: int | None,
    assignments: tuple[str, ...],
    as_json: bool,
    log_level: str,
) -> None:
    """Run a broker, master or slave, until SIGTERM or SIGINT."""
    from triomq_server.config import BrokerConfig, ConfigError, PropertiesError

    given = {"namesrvAddr": namesrv_addr, "listenPort": port, "storePathRootDir": store, "memoryBytes": memory_bytes}
    flags = {key: str(value) for key, value in given.items() if value is not None}
    try:
        config, warnings = BrokerConfig.from_properties(_values(config_file, assignments, flags))
        _check_name_servers(config)
        _check_ports(config)
    except (ConfigError, PropertiesError) as error:
        _fail(f"bad configuration: {error}", EXIT_USAGE)
    _start_logging(log_level, warnings)
    _print_and_exit(config, print_all=print_all, print_some=print_some)

    from triomq_server.broker.addresses import BrokerAddresses
    from triomq_server.broker.lifecycle import serve_broker

    def ready(addresses: object) -> None:
        assert isinstance(addresses, BrokerAddresses)
        if as_json:
            _say_json(role=str(config.store.broker_role), address=addresses.listen, ha_address=addresses.ha)
            return
        known = f" and name server is {config.namesrv_addr}" if config.namesrv_addr else ""
        click.echo(
            f"The broker[{config.broker_name}, {addresses.listen}] boot success. serializeType=JSON{known}, "
            f"role {config.store.broker_role}, store {config.store.store_path_root_dir}"
        )

    async def serve(*, task_status: "trio.TaskStatus[object]") -> None:
        await serve_broker(config, config_path=config_file, task_status=task_status)

    _serve(serve, ready, config)


@main.command()
@click.option("--masters", type=click.IntRange(1, 26), default=1, show_default=True, help="Broker sets.")
@click.option("--slaves", type=click.IntRange(0), default=1, show_default=True, help="Slaves of each master.")
@click.option("--name-servers", type=click.IntRange(1), default=1, show_default=True, help="Name servers.")
@click.option(
    "--sample",
    type=click.Choice(["2m-2s-async", "2m-2s-sync", "2m-noslave"]),
    help="One of RocketMQ's sample clusters.",
)
@click.option("--sync-flush", is_flag=True, help="Answer sends when the disk has them (SYNC_FLUSH).")
@click.option("--sync-replication", is_flag=True, help="Answer sends when a slave has them (SYNC_MASTER).")
@click.option(
    "--directory", type=click.Path(file_okay=False), help="Keep all files here; default: a temporary directory."
)
@_set
@click.option("--control", is_flag=True, help="Obey `start|stop|kill NAME` on standard input, and end at its end.")
@_json
@_log_level
def cluster(
    masters: int,
    slaves: int,
    name_servers: int,
    sample: str | None,
    sync_flush: bool,
    sync_replication: bool,
    directory: str | None,
    assignments: tuple[str, ...],
    control: bool,
    as_json: bool,
    log_level: str,
) -> None:
    """Run a whole cluster on free loopback ports, one process per node, until SIGTERM or SIGINT.

    A node can be killed like any process; with --control it can also be started again.
    """
    from triomq_server.cluster.plan import plan_cluster
    from triomq_server.cluster.processes import ClusterProcesses

    if sample:
        masters, slaves = 2, int(sample != "2m-noslave")
    _start_logging("warning" if log_level == "info" else log_level, [])
    with tempfile.TemporaryDirectory(prefix="triomq-", ignore_cleanup_errors=True) as temporary:
        try:
            plan = plan_cluster(
                Path(directory or temporary).absolute(),
                masters=masters,
                slaves=slaves,
                name_servers=name_servers,
                sync_replication=sync_replication or sample == "2m-2s-sync",
                sync_flush=sync_flush,
                settings=_assigned(assignments),
            )
        except OSError as error:
            _fail(str(error), EXIT_FAILED)
        code = ClusterProcesses(plan, _say_event_json if as_json else _say_event).run(control=control)
    sys.exit(code)


class _Later(click.Group):
    """`admin`, whose room is entered only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of its commands."""
        return self._real().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them."""
        return self._real().get_command(ctx, cmd_name)

    @staticmethod
    def _real() -> click.Group:
        from triomq_server.admin import admin

        return admin


@main.command(cls=_Later)
def admin() -> None:
    """Look after brokers: replication, roles."""


def _values(config_file: str | None, assignments: tuple[str, ...], flags: Mapping[str, str]) -> dict[str, str]:
    """RocketMQ keys from the file, then ``--set``, then the flags with names of their own."""
    from triomq_server.config import load_properties

    values: dict[str, str] = {}
    if config_file:
        try:
            values.update(load_properties(Path(config_file).read_bytes()))
        except OSError as error:
            _fail(f"configuration file {config_file}: {error.strerror}; give -c a readable file", EXIT_USAGE)
    return values | _assigned(assignments) | dict(flags)


def _assigned(assignments: tuple[str, ...]) -> dict[str, str]:
    values = {}
    for assignment in assignments:
        key, sign, value = assignment.partition("=")
        if not sign:
            raise click.BadParameter(f"{assignment!r} is not KEY=VALUE", param_hint="--set")
        values[key.strip()] = value.strip()
    return values


def _check_name_servers(config: "BrokerConfig") -> None:
    from triomq_server.config import ConfigError

    for address in config.name_servers:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(f"namesrvAddr names {address!r}, which is not host:port; write host:port;host:port")


def _check_ports(config: "BrokerConfig") -> None:
    """A broker also listens two ports below (fast) and one above (replication)."""
    from triomq_server.config import ConfigError

    if config.listen_port in (1, 2, 65535):
        raise ConfigError(
            f"listenPort={config.listen_port} leaves no room for the ports {config.listen_port - 2} and "
            f"{config.listen_port + 1} that a broker listens on as well; choose 3 to 65534"
        )


def _print_and_exit(config: "BrokerConfig | NamesrvConfig", *, print_all: bool, print_some: bool) -> None:
    if not (print_all or print_some):
        return
    for key, value in sorted(config.to_properties().items()):
        if print_all or key in IMPORTANT_KEYS:
            click.echo(f"{key}={value}")
    sys.exit(0)


def _start_logging(level: str, warnings: list[str]) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for warning in warnings:
        logging.getLogger("triomq_server.config").warning("%s", warning)


def _serve(serve: "Callable[..., Awaitable[None]]", ready: Callable[[object], None], config: _Settings) -> None:
    """Run a server until a signal comes; an error that an operator can mend becomes one line."""
    import gc

    import trio

    from triomq_server.cluster.stopping import run_until_signal

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve)
            # What lives until the end need not be looked at by every collection.
            gc.collect()
            gc.freeze()
            ready(address)
            sys.stdout.flush()

    try:
        trio.run(run_until_signal, run, signal.SIGTERM, signal.SIGINT)
    except Exception as error:
        from triomq_server.cluster.failures import explain

        text = explain(error, config.to_properties())
        if text is None:
            raise
        _fail(text, EXIT_FAILED)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"Error: {text}", err=True)
    sys.exit(code)


def _say_json(**event: object) -> None:
    from triomq_server.cluster.processes import seconds_since_start

    click.echo(json.dumps({"event": "ready", **event, "pid": os.getpid(), "ready_s": round(seconds_since_start(), 3)}))


def _say_event_json(event: dict[str, object]) -> None:
    click.echo(json.dumps(event))
    sys.stdout.flush()


def _say_event(event: dict[str, object]) -> None:
    what = event["event"]
    if what == "ready":
        nodes = event["nodes"]
        assert isinstance(nodes, list)
        click.echo(f"The cluster is ready after {event['ready_s']} s, files in {event['directory']}")
        for node in nodes:
            click.echo(f"  {node['name']:<16} {node['role']:<8} {node['address']:<22} pid {node['pid']}")
        click.echo(f"Clients connect to {event['name_servers']}; Ctrl-C stops everything.")
    elif what == "stopping":
        click.echo("Stopped before the cluster was ready", err=True)
    elif what == "error":
        click.echo(f"Error: {event['error']}", err=True)
    elif what == "ended":
        click.echo(f"{event['name']} ended with status {event['status']}")
    elif what == "started":
        click.echo(f"{event['name']} started again, pid {event['pid']}, ready after {event['ready_s']} s")
    sys.stdout.flush()


if __name__ == "__main__":
    main(prog_name="python -m triomq_server")
