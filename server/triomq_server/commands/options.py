"""Options and configuration values shared by several commands."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

EXIT_FAILED = 1
EXIT_USAGE = 2


def _named(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Check that the name of a file is not empty, as that of a variable of the shell which is not set."""
    if value == "":
        raise click.BadParameter("it is empty; give a file, or leave the option out")
    return value


config_file = click.option(
    "-c", "--config", "config_file", metavar="FILE", callback=_named,
    help="RocketMQ configuration file (key=value lines).",
)  # fmt: skip
print_all = click.option("-p", "--print-config", "print_all", is_flag=True, help="Print all settings and exit.")
print_important = click.option(
    "-m", "--print-important", "print_some", is_flag=True, help="Print important settings and exit."
)
port = click.option("--port", type=click.IntRange(0, 65535), help="listenPort; 0 takes a free one.")
assignments = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any RocketMQ key; may be repeated."
)
strict = click.option(
    "--strict", is_flag=True, help="Refuse every setting that would give a warning, such as an unknown key."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    help="What goes to standard error.",
)  # fmt: skip


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line of a server that runs. If it cannot be written, the server continues, and prints no more there.

    The output may be closed (``>&-``), a pipe that nobody reads, or a file on a full disk.
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    try:
        click.echo(text, file=stream)
        stream.flush()
    except OSError as error:
        name = "standard error" if err else "standard output"
        logging.getLogger(__name__).warning("%s cannot be written, and gets no more lines: %s", name, error)
        # Also what it holds now, which the interpreter would write at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stream.fileno())


def fail(text: str, code: int) -> NoReturn:
    """Print one line to standard error and exit."""
    click.echo(f"Error: {text}", err=True)
    sys.exit(code)


@contextmanager
def failing_with_store(directory: Path) -> Iterator[None]:
    """Exit with the cause and the cure if the store in a directory cannot be used."""
    from triomq_server.disk import StoreLocked
    from triomq_server.process.failures import explain
    from triomq_server.store import StoreDamaged
    from triomq_server.wire import error_text

    try:
        yield
    except StoreLocked as error:
        fail(f"{error}: stop the broker first", EXIT_USAGE)
    except (StoreDamaged, OSError) as error:
        fail(explain(error, {"storePathRootDir": str(directory)}) or error_text(error), EXIT_USAGE)


def configured(file: str | None, assigned: tuple[str, ...], flags: Mapping[str, str]) -> dict[str, str]:
    """RocketMQ keys from the file, then from ``--set``, then from flags with names of their own.

    Raises:
        PropertiesError: the file is not in properties format.
    """
    from triomq_server.config import load_properties
    from triomq_server.plain_files import read_plain

    values: dict[str, str] = {}
    if file:
        try:
            # A shell passes `<(...)` as the open descriptor of a pipe, whose writer already runs.
            given = file.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
            values.update(load_properties(Path(file).read_bytes() if given else read_plain(file)))
        except OSError as error:
            fail(f"configuration file {file}: {error.strerror}; give -c a readable file", EXIT_USAGE)
    return values | read_assignments(assigned) | dict(flags)


def absolute(path: str) -> str:
    """The absolute form of the path of a file that requests of operators change, from the command line or a
    configuration file.

    Otherwise the directory of a bare name is "", which cannot be opened. Symbolic links are followed: to replace a link
    would leave the file that operators edit as it was. An empty path stays empty, and is refused with its key."""
    try:
        return os.path.realpath(path) if path else ""
    except FileNotFoundError:
        from triomq_server.process.failures import NO_CURRENT_DIRECTORY

        fail(f"{path}: {NO_CURRENT_DIRECTORY}", EXIT_USAGE)


def read_assignments(assigned: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of ``--set KEY=VALUE``."""
    values = {}
    for assignment in assigned:
        key, sign, value = assignment.partition("=")
        if not sign or not key.strip():
            raise click.BadParameter(f"{assignment!r} is not KEY=VALUE", param_hint="--set")
        values[key.strip()] = value.strip()
    return values
