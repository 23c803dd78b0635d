"""``triomq broker``: one broker, master or slave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from triomq_command.garbage import without_collections
from triomq_server.commands import options
from triomq_server.commands.serving import print_and_exit, print_ready, run_server, start_logging

if TYPE_CHECKING:
    import trio


@click.command()
@options.config_file
@click.option(
    "-n", "--name-servers", "--namesrv-addr", "namesrv_addr", metavar="HOST:PORT;...",
    help="Name servers; also from the environment's NAMESRV_ADDR.",
)  # fmt: skip
@options.print_all
@options.print_important
@options.port
@click.option(
    "--host", metavar="ADDRESS",
    help="brokerIP1 and brokerIP2: the address to register; a loopback address is the only one listened on. "
    "Default: this machine's first other address, on all interfaces, as RocketMQ's broker.",
)  # fmt: skip
@click.option("--store", metavar="DIR", help="storePathRootDir.")
@click.option("--memory-bytes", type=int, help="Memory size that the 40 % rule of pulls is based on.")
@options.assignments
@options.strict
@options.as_json
@options.log_level
@without_collections()  # of its imports; `run_server` lets them begin
def broker(
    config_file: str | None,
    namesrv_addr: str | None,
    print_all: bool,
    print_some: bool,
    port: int | None,
    host: str | None,
    store: str | None,
    memory_bytes: int | None,
    assignments: tuple[str, ...],
    strict: bool,
    as_json: bool,
    log_level: str,
) -> None:
    """Run a broker, master or slave, until SIGTERM, SIGINT or SIGHUP."""
    from triomq_server.config import BrokerConfig, ConfigError, PropertiesError

    given = {
        "namesrvAddr": namesrv_addr, "listenPort": port, "brokerIP1": host, "brokerIP2": host,
        "storePathRootDir": store, "memoryBytes": memory_bytes,
    }  # fmt: skip
    flags = {key: str(value) for key, value in given.items() if value is not None}
    try:
        values = options.configured(config_file, assignments, flags)
        config, warnings = BrokerConfig.from_properties(values, strict=strict)
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
        options.print_line(
            f"The broker[{config.broker_name}, {addresses.listen}] boot success. serializeType=JSON{name_server}, "
            f"role {config.store.broker_role}, store {config.store.store_path_root_dir}"
        )

    config_path = options.absolute(config_file) if config_file else None
    not_written: list[str] = []

    async def serve(*, task_status: trio.TaskStatus[object]) -> None:
        await serve_broker(config, config_path=config_path, not_written=not_written.append, task_status=task_status)

    run_server(serve, ready, config, not_written)
