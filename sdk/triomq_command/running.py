"""Runs a command of ``triomq``, of the SDK or of the servers: its error message and its exit code."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Final

import click

EXIT_INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as in shells: 128 and the number of the signal."""

ESCAPED: Final = "triomq_escaped"
"""The name of the error handler that escapes characters which the output's encoding lacks."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escape characters as JSON and Java do: two escapes for those beyond U+FFFF."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


codecs.register_error(ESCAPED, _escape)


_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def printable(text: str) -> str:
    """Untrusted text for a terminal: control characters, except line ends and tabs, become escapes."""
    return text.translate(_ESCAPES)


def printable_line(text: str) -> str:
    """`printable` for one line of a list: line ends become escapes, too, or a name could look like further lines."""
    return printable(text).replace("\n", "\\x0a")


def missing_package(command: str, extra: str, error: ModuleNotFoundError) -> click.ClickException:
    """The error of a command that lacks a package, which an extra installs."""
    return click.ClickException(f"{command} needs the package {error.name}: pip install 'triomq[{extra}]'")


def has_terminal() -> bool:
    """Whether a question can be answered on a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()  # None: it was closed


class QuietGroup(click.Group):
    """A group of commands that Ctrl-C, and the end of the output's reader, end without output."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; click itself would print an empty line after Ctrl-C, and fail if standard error is closed, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None
        except BrokenPipeError:
            _print_no_more()
            ctx.exit(1)


class ClosedOutput(io.TextIOBase):
    """Replaces a standard output that was closed before the start (``>&-``), and fails on writes.

    Python has None there, and output is lost without an error: even messages that are then committed.
    """

    encoding = "utf-8"
    errors = ESCAPED

    def writable(self) -> bool:
        """True, as for every output."""
        return True

    def write(self, text: str, /) -> int:
        """Fail, except for an empty text, with which click checks the kind of output."""
        if text:
            raise OSError(errno.EBADF, "standard output is closed")
        return 0


def exit_code_of(main: Callable[[], object], *, must_print: bool = False) -> int:
    """Run a command line.

    Args:
        main: runs it, and returns its exit code, if that is a number.
        must_print: whether it fails if it cannot print, since its output was closed; servers continue.

    Returns:
        The exit code: 0 done, 1 it could not be done, 2 wrong usage, 130 interrupted.
    """
    code = EXIT_INTERRUPTED
    if must_print and sys.stdout is None:
        sys.stdout = ClosedOutput()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Messages are UTF-8, and the output may be Latin-1, such as a pipe on Windows.
        sys.stdout.reconfigure(errors=ESCAPED)
    try:
        code = _run(main)
    except* KeyboardInterrupt:
        # An interrupted task's nurseries wrap it; either way the user wanted it to end.
        pass
    return code


def _run(main: Callable[[], object]) -> int:
    try:
        code = main()
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            if sys.stderr is not None:  # else click would print to the standard output, among results
                error.show()
        else:  # it may name topics, which other programs have named
            click.echo(printable(f"Error: {error.format_message()}"), err=True)
        return error.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it.
        _print_no_more()
        return 1
    except OSError as error:
        click.echo(f"Error: {error}", err=True)
        _print_no_more()
        return 1
    return code if isinstance(code, int) else 0


def _print_no_more() -> None:
    """Discard all further output, including that at the interpreter's end."""
    if isinstance(sys.stdout, ClosedOutput):
        sys.stdout = None  # its descriptor may be a connection's by now
    elif sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
