"""``triomq run``: runs any command with a cluster.

The command's process is forked before anything large is imported, but becomes the command once the cluster runs: some
clients give up after three seconds, in which a busy machine may not have started a cluster.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import socket
import sys
from typing import Any

import click

from triomq_command.garbage import importing
from triomq_testing.child import NOT_EXECUTABLE, NOT_FOUND, Child, NotStartedError
from triomq_testing.variables import ADDRESS_VARIABLES, URL_VARIABLE

_BACKLOG = 128
_EXIT_FAILED = 1
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")


def _read_topics(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    topics = [topic for topic in text.split(",") if topic]
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            raise click.BadParameter(f"{topic!r} is not a name of a topic: 1 to 127 letters, digits and any of %|_-")
    return topics


def _read_settings(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        settings[key] = value
    return settings


def _finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds", ctx, param)
    return value


# Everything after the command's name belongs to it, even without --.
@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@click.option("--topics", default="", metavar="A,B", callback=_read_topics, help="Topics that are there at once.")
@click.option("--masters", type=click.IntRange(1, 26), default=1, show_default=True, help="Broker sets.")
@click.option("--slaves", type=click.IntRange(0), default=0, show_default=True, help="Slaves of each master.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_read_settings,
    help="Any RocketMQ key; may be repeated.",
)
@click.option("--faults", is_flag=True, help="Let `triomq faults` break brokers; connections are a little slower.")
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0),
    callback=_finite,
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="How long COMMAND may take to end after SIGINT or SIGTERM; then it is killed.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    topics: list[str],
    masters: int,
    slaves: int,
    settings: dict[str, str],
    faults: bool,
    grace_s: float,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with a cluster of its own, which ends with it.

    COMMAND finds the name server in ROCKETMQ_NAMESRV_ADDR and NAMESRV_ADDR. Its exit status is passed on. Whatever it
    leaves running is ended. Write -- before it:

        triomq run --topics orders -- mvn test

    In COMMAND, `triomq clock` sets the brokers' clock forward, and with --faults `triomq faults` breaks brokers.
    """
    # They listen from now on, so that no other connection takes these ports.
    with _listen() as listening, _listen() as steering:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        secret = os.urandom(16).hex()
        variables = dict.fromkeys(ADDRESS_VARIABLES, address)
        variables[URL_VARIABLE] = f"http://127.0.0.1:{steering.getsockname()[1]}/{secret}"
        try:
            child = Child(command, {**os.environ, **variables}, grace_s)
        except OSError as error:
            raise click.ClickException(f"no process can be started: {error.strerror}") from None
        try:
            failure = _lend(
                child,
                {
                    "listening": listening,
                    "steering": steering,
                    "secret": secret,
                    "masters": masters,
                    "slaves": slaves,
                    "topics": topics,
                    "settings": settings,
                    "faults": faults,
                },
            )
        finally:
            child.end()
    if isinstance(failure, NotStartedError):
        click.echo(f"Error: {command[0]} cannot be started: {failure.strerror}", err=True)
        sys.exit(NOT_FOUND if failure.errno == errno.ENOENT else NOT_EXECUTABLE)
    if failure is not None:
        click.echo(f"Error: the cluster ended: {_cause(failure, settings)}", err=True)
        sys.exit(_EXIT_FAILED)
    sys.exit(child.status)


def _cause(error: Exception, settings: dict[str, str]) -> str:
    if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
        return str(error)
    ports = [(key, int(value)) for key, value in settings.items() if key.endswith("Port") and value.isdecimal()]
    if not ports:
        return "another program has taken a port that was free a moment before; run it again"
    given = " and ".join(
        f"{key}={port}" + (f" (with {port - 2} and {port + 1})" if key == "listenPort" else "") for key, port in ports
    )
    return (
        f"a port is in use already, and --set has {given}; leave that out, and every broker gets free ports, or give "
        "another port (a second broker cannot have the same one)"
    )


def _listen() -> socket.socket:
    try:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(_BACKLOG)
    except OSError as error:
        raise click.ClickException(f"no port on 127.0.0.1 can be used: {error.strerror}") from None
    return listening


def _lend(child: Child, options: dict[str, Any]) -> Exception | None:
    """Run the cluster until the command has ended; returns a failure of the cluster, which also ends the command."""
    with importing():
        import trio  # noqa: F401 - a third of the imports

        if child.has_ended():
            return None
        from triomq_testing.clusters.lending import lend

    try:
        lend(child, **options)
    except Exception as error:  # noqa: BLE001 - reported when the command has ended
        child.send(signal.SIGTERM)
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return error
    return None
