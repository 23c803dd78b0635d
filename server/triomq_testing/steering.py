"""``triomq clock`` and ``triomq faults``: control the cluster of ``triomq run`` from the command that uses it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from triomq_testing.variables import URL_VARIABLE

if TYPE_CHECKING:
    from triomq_testing.remote import Remote

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|s)")


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time like ``2h``, ``1h30m`` or ``45s``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse it."""
        text = str(value)
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{text!r} is not a time: 2h, 1h30m, 45s, 3d, 500ms", param, ctx)
        try:
            return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta())
        except OverflowError:
            self.fail(f"{text!r} is too long", param, ctx)


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_node = click.argument("node", required=False)


@contextlib.contextmanager
def _remote() -> Iterator[Remote]:
    from triomq_testing.remote import Remote

    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise click.ClickException(f"there is no {URL_VARIABLE}: this works in a command under `triomq run -- COMMAND`")
    try:
        yield Remote(url)
    except (ValueError, ConnectionError) as error:
        raise click.ClickException(str(error)) from None


def _show(state: dict[str, str], as_json: bool) -> None:
    click.echo(json.dumps(state) if as_json else state["time"])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def clock() -> None:
    """Set the brokers' clock forward, in a command under `triomq run`."""


@clock.command()
@_json
def now(as_json: bool) -> None:
    """Print the time by the brokers' clock."""
    with _remote() as remote:
        _show(remote.state(), as_json)


@clock.command()
@click.argument("by", type=Duration())
@_json
def advance(by: timedelta, as_json: bool) -> None:
    """Go forward by BY, such as 2h, 1h30m or 45s.

    Returns when all that was due meanwhile is done, and prints the time. For a number of retries see fast-forward.
    """
    with _remote() as remote:
        _show(remote.do("clock/advance", seconds=by.total_seconds()), as_json)


@clock.command("fast-forward")
def fast_forward() -> None:
    """Deliver delayed messages without waiting, until Ctrl-C or SIGTERM.

    The clock goes to the next due time whenever there is one. Prints a line when it begins.
    """
    with _remote() as remote, contextlib.suppress(KeyboardInterrupt), remote.fast_forward():
        # Also if a shell has started it in the background, where SIGINT would be ignored.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        click.echo("no message waits until Ctrl-C")
        while True:
            signal.pause()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def faults() -> None:
    """Break brokers and mend them, in a command under `triomq run --faults`.

    NODE is a name such as broker-a or broker-a-s; without it all brokers are meant.
    """


def _add(verb: str, text: str) -> None:
    @faults.command(verb, help=text)
    @_node
    @_json
    def act(node: str | None, as_json: bool) -> None:
        query = {} if node is None else {"node": node}
        with _remote() as remote:
            state = remote.do(f"faults/{verb.replace('-', '_')}", **query)
            if as_json:
                _show(state, as_json)


_add("kill", "End NODE as SIGKILL would.")
_add("stop", "Stop NODE cleanly.")
_add("start", "Start NODE again, on its files.")
_add("freeze", "Stop NODE's work: its connections stay open, and requests get no answer.")
_add("cut", "Break NODE's connections; new ones end at once.")
_add("fill-disk", "Leave NODE no space: it refuses messages.")
_add("mend", "Undo freeze, cut, slow and fill-disk.")


@faults.command()
@_node
@click.option("--by", type=Duration(), required=True, help="How long each piece of data is delayed: 200ms.")
@_json
def slow(node: str | None, by: timedelta, as_json: bool) -> None:
    """Delay everything that NODE sends and receives."""
    query: dict[str, str | float] = {} if node is None else {"node": node}
    with _remote() as remote:
        state = remote.do("faults/slow", seconds=by.total_seconds(), **query)
        if as_json:
            _show(state, as_json)
