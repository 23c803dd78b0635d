"""The common part of the commands `namesrv` and `broker`: prints settings, sets up logging, runs a server until a signal."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from triomq_server.commands.options import EXIT_FAILED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from triomq_server.config import BrokerConfig, NamesrvConfig

IMPORTANT_KEYS = (
    "namesrvAddr", "brokerIP1", "brokerIP2", "brokerName", "brokerClusterName", "brokerId", "brokerPermission", "listenPort",
    "haListenPort", "haMasterAddress", "brokerRole", "flushDiskType", "storePathRootDir", "storePathCommitLog",
    "defaultTopicQueueNums", "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "rejectTransactionMessage",
    "enablePropertyFilter", "slaveReadEnable", "compat", "tls.server.mode",
)  # fmt: skip
"""What ``-m`` prints: the settings that operators look at."""


def print_and_exit(config: BrokerConfig | NamesrvConfig, *, print_all: bool, print_some: bool) -> None:
    """Print settings and exit if that was asked for; the keys without effect follow as comments.

    Settings of TLS that contradict each other end the command in any case.

    ``-p`` prints all of them, ``-m`` those that are not at their defaults.
    """
    from triomq_server.config import (
        WITHOUT_EFFECT,
        BrokerConfig,
        ConfigError,
        changed_without_effect,
        shown_text,
    )
    from triomq_server.wire.tls.certificates import effective

    try:
        tls = effective(config.tls)
        tls.check()
    except ConfigError as error:
        fail(f"bad configuration: {error}", EXIT_USAGE)
    if not (print_all or print_some):
        return
    settings = shown_text({**config.to_properties(), **tls.to_properties()})
    for key, value in sorted(settings.items()):
        if print_all or key in IMPORTANT_KEYS:
            click.echo(f"{key}={value}")
    changed = changed_without_effect(config)
    if isinstance(config, BrokerConfig):
        changed |= changed_without_effect(config.store)
    for key, entry in WITHOUT_EFFECT.items():
        if key in changed or (print_all and key in settings):
            click.echo(f"# {key} has no effect: {entry.reason}")
    sys.exit(0)


def start_logging(level: str, warnings: list[str]) -> None:
    """Log to standard error; the configuration's warnings come first."""
    from triomq_server.process.log_lines import LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for warning in warnings:
        logging.getLogger("triomq_server.config").warning("%s", warning)


def run_server(
    serve: Callable[..., Awaitable[None]],
    ready: Callable[[object], None],
    config: BrokerConfig | NamesrvConfig,
    not_written: Sequence[str] = (),
) -> None:
    """Run a server until SIGTERM or SIGINT; an error that an operator can repair becomes one line. So does what a stop in
    order could not write; the command has failed then, too.

    Args:
        serve: the server, to be started in a nursery; reports its addresses.
        ready: called with the addresses once it serves.
        config: its settings, for the text of errors.
        not_written: what the disk has not taken at the stop, once `serve` has ended.
    """
    import gc

    import trio

    from triomq_server.process.stopping import run_until_signal

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            # What a start makes of its files lives until the end: it need not be visited by collections, of which each
            # stops the loop, by 80 ms with 40,000 queues. A last one would find a hundred objects.
            gc.disable()
            try:
                address = await nursery.start(serve)
                gc.freeze()
            finally:
                gc.enable()
            ready(address)
            sys.stdout.flush()

    try:
        trio.run(run_until_signal, run, signal.SIGTERM, signal.SIGINT)
    except Exception as error:
        from triomq_server.process.failures import explain

        text = explain(error, config.to_properties())
        if text is None:
            raise
        fail(text, EXIT_FAILED)
    if not_written:
        from triomq_server.process.failures import explain_not_written

        fail(explain_not_written(not_written), EXIT_FAILED)


def print_ready(**event: object) -> None:
    """Print the ready line as JSON."""
    from triomq_server.cluster.processes import seconds_since_start

    click.echo(json.dumps({"event": "ready", **event, "pid": os.getpid(), "ready_s": round(seconds_since_start(), 3)}))
