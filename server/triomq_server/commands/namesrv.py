"""``triomq namesrv``: one name server."""

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
@options.print_all
@options.print_important
@options.port
@click.option("--host", metavar="ADDRESS", help="bindAddress; default: all interfaces, as RocketMQ's name server.")
@options.assignments
@options.strict
@options.as_json
@options.log_level
@without_collections()  # of its imports; `run_server` lets them begin
def namesrv(
    config_file: str | None,
    print_all: bool,
    print_some: bool,
    port: int | None,
    host: str | None,
    assignments: tuple[str, ...],
    strict: bool,
    as_json: bool,
    log_level: str,
) -> None:
    """Run a name server until SIGTERM, SIGINT or SIGHUP."""
    from triomq_server.config import ConfigError, NamesrvConfig, PropertiesError

    given = {"listenPort": port, "bindAddress": host}
    flags = {key: str(value) for key, value in given.items() if value is not None}
    try:
        values = options.configured(config_file, assignments, flags)
        if config_file:
            values.setdefault("configStorePath", config_file)
        for key in ("configStorePath", "kvConfigPath"):
            if key in values:
                values[key] = options.absolute(values[key])
        config, warnings = NamesrvConfig.from_properties(values, strict=strict)
    except (ConfigError, PropertiesError) as error:
        options.fail(f"bad configuration: {error}", options.EXIT_USAGE)
    start_logging(log_level, warnings)
    print_and_exit(config, print_all=print_all, print_some=print_some)

    from triomq_server.namesrv import serve_namesrv

    def ready(address: object) -> None:
        if as_json:
            print_ready(role="namesrv", address=str(address))
        else:
            options.print_line(f"The Name Server boot success. serializeType=JSON, listening on {address}")

    async def serve(*, task_status: trio.TaskStatus[object]) -> None:
        await serve_namesrv(config, task_status=task_status)

    run_server(serve, ready, config)
