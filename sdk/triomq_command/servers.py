"""The commands of the servers, run without the client: a broker starts without the imports of the other commands."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from triomq_command.garbage import importing
from triomq_command.overview import must_print

COMMANDS: Final = {
    "admin": "triomq_server.__main__",
    "broker": "triomq_server.commands.broker",
    "cluster": "triomq_server.commands.cluster",
    "namesrv": "triomq_server.commands.namesrv",
}
"""Command -> the name of its module. A test compares them with the distribution's entry points."""


def run(arguments: list[str]) -> int | None:
    """Run a command of the servers if these arguments name one, and it can be loaded.

    Returns:
        The exit code; None if the other commands have to run.
    """
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        return None
    try:
        with importing():
            running = import_module("triomq_command.running")
            command = getattr(import_module(COMMANDS[name]), name)
    except ImportError:
        return None  # the other commands report what is not installed
    group = running.QuietGroup(
        "triomq", commands={name: command}, context_settings={"help_option_names": ["-h", "--help"]}
    )
    code: int = running.exit_code_of(
        lambda: group.main(arguments, prog_name="triomq", standalone_mode=False), must_print=must_print(arguments)
    )
    return code
