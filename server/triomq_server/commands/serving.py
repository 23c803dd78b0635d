"""The common part of the commands `namesrv` and `broker`: prints settings, sets up logging, runs a server until a signal."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from triomq_command.ending_signals import ending_signals
from triomq_command.running import ClosedOutput
from triomq_server.commands.options import EXIT_FAILED, EXIT_USAGE, fail, print_line

if TYPE_CHECKING:
    from triomq_server.config import BrokerConfig, NamesrvConfig

_STANDARD_ERROR = 2
IMPORTANT_KEYS = (
    "namesrvAddr", "brokerIP1", "brokerIP2", "brokerName", "brokerClusterName", "brokerId", "brokerPermission", "listenPort",
    "haListenPort", "haMasterAddress", "brokerRole", "flushDiskType", "storePathRootDir", "storePathCommitLog",
    "defaultTopicQueueNums", "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "rejectTransactionMessage",
    "enablePropertyFilter", "slaveReadEnable", "compat", "tls.server.mode",
)  # fmt: skip
"""The settings that ``-m`` prints, which operators look up."""


def print_and_exit(config: BrokerConfig | NamesrvConfig, *, print_all: bool, print_some: bool) -> None:
    """Print settings and exit if an option asks for it; keys without effect follow as comments.

    TLS settings that contradict each other end the command in any case.

    ``-p`` prints all settings, ``-m`` those in `IMPORTANT_KEYS`.
    """
    from triomq_server.config import ConfigError
    from triomq_server.wire.tls.certificates import effective

    try:
        tls = effective(config.tls)
        tls.check()
    except ConfigError as error:
        fail(f"bad configuration: {error}", EXIT_USAGE)
    if not (print_all or print_some):
        return
    from triomq_server.config import WITHOUT_EFFECT, BrokerConfig, changed_without_effect, shown_text

    if sys.stdout is None:
        sys.stdout = ClosedOutput()  # a server runs without an output, but nothing is served here
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
    """Log to standard error, starting with the configuration's warnings.

    If the system ends the process, as when a page of a mapped file cannot be read, the call that did it is written, too.
    """
    from triomq_server.process.log_lines import LineFormatter

    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(_STANDARD_ERROR)
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
    """Run a server until SIGTERM, SIGINT or SIGHUP; an error that an operator can fix becomes one line.

    So does everything that an orderly stop could not write; the command has failed then, too.

    Args:
        serve: the server, to be started in a nursery; reports its addresses.
        ready: called with the addresses once it serves.
        config: its settings, for the text of errors.
        not_written: the items that the disk did not take at the stop, once `serve` has ended.
    """
    import gc

    import trio

    from triomq_server.process.stopping import run_until_signal

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            # Objects that a start makes from its files live until the end: collections need not visit them, each of
            # which stops the loop, by 80 ms with 40,000 queues. A last one would find a hundred objects.
            gc.disable()
            try:
                address = await nursery.start(serve)
                gc.freeze()
            finally:
                gc.enable()
            ready(address)

    try:
        trio.run(run_until_signal, run, *ending_signals())
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
    from triomq_server.process.age import seconds_since_start

    print_line(json.dumps({"event": "ready", **event, "pid": os.getpid(), "ready_s": round(seconds_since_start(), 3)}))
