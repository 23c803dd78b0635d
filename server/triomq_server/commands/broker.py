"""``triomq broker``: one broker, master or slave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from triomq_server.commands import options
from triomq_server.commands.serving import print_and_exit, print_ready, run_server, start_logging

if TYPE_CHECKING:
    import trio

    from triomq_server.config import BrokerConfig


@click.command()
@options.config_file
@click.option(
    "-n", "--name-servers", "--namesrv-addr", "namesrv_addr", metavar="HOST:PORT;...",
    help="Name servers; also from the environment's NAMESRV_ADDR.",
)  # fmt: skip
@options.print_all
@options.print_important
@options.port
@click.option("--store", metavar="DIR", help="storePathRootDir.")
@click.option("--memory-bytes", type=int, help="Memory size that the 40 % rule of pulls reckons with.")
@options.assignments
@options.as_json
@options.log_level
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
        config, warnings = BrokerConfig.from_properties(options.configured(config_file, assignments, flags))
        _check_name_servers(config)
        _check_ports(config)
    except (ConfigError, PropertiesError) as error:
        options.fail(f"bad configuration: {error}", options.EXIT_USAGE)
    start_logging(log_level, warnings)
    print_and_exit(config, print_all=print_all, print_some=print_some)

    from triomq_server.broker.addresses import BrokerAddresses
    from triomq_server.broker.lifecycle import serve_broker

    def ready(addresses: object) -> None:
        assert isinstance(addresses, BrokerAddresses)
        if as_json:
            print_ready(role=str(config.store.broker_role), address=addresses.listen, ha_address=addresses.ha)
            return
        name_server = f" and name server is {config.namesrv_addr}" if config.namesrv_addr else ""
        click.echo(
            f"The broker[{config.broker_name}, {addresses.listen}] boot success. serializeType=JSON{name_server}, "
            f"role {config.store.broker_role}, store {config.store.store_path_root_dir}"
        )

    async def serve(*, task_status: trio.TaskStatus[object]) -> None:
        await serve_broker(config, config_path=config_file, task_status=task_status)

    run_server(serve, ready, config)


def _check_name_servers(config: BrokerConfig) -> None:
    """Raise ConfigError for a name server that is not ``host:port``."""
    from triomq_server.config import ConfigError

    for address in config.name_servers:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(f"namesrvAddr names {address!r}, which is not host:port; write host:port;host:port")


def _check_ports(config: BrokerConfig) -> None:
    """Raise ConfigError unless the ports two below (fast) and one above (replication) exist too."""
    from triomq_server.config import ConfigError

    if config.listen_port in (1, 2, 65535):
        raise ConfigError(
            f"listenPort={config.listen_port} leaves no place for the ports {config.listen_port - 2} and "
            f"{config.listen_port + 1} that a broker listens on as well; choose 3 to 65534"
        )
