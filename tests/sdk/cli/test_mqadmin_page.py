"""The page about `mqadmin`: each command of ours that it names exists, with these arguments and options."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from triomq._cli import messages

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mqadmin.md"
ROWS = [re.split(r" \| ", line.strip("| ")) for line in PAGE.read_text().splitlines() if line.startswith("| `")]
NAMED = sorted({line for row in ROWS for line in re.findall(r"`triomq ([^`]*)`", row[-1])})


def check(line):
    """Raise LookupError unless there is such a command, which takes so many arguments and has these options."""
    words = line.split()
    command = messages.triomq
    context = click.Context(command, info_name="triomq")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            raise LookupError(f"no command {words[0]}")
        command, context = found, click.Context(found, info_name=words.pop(0), parent=context)
    if isinstance(command, click.Group):
        raise LookupError(f"{line} is a group of commands")
    options = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
    places = sum(isinstance(each, click.Argument) for each in command.params)
    unknown = [word for word in words if word.startswith("-") and word not in options]
    given = [word for word in words if not word.startswith("-")]
    if unknown or len(given) > places:
        raise LookupError(f"{line}: unknown {unknown}, or more than {places} arguments: {given}")
    if any(not re.fullmatch("[A-Z_:]+", word) for word in given):
        raise LookupError(f"{line}: arguments are placeholders in capitals, not {given}")


@pytest.mark.parametrize("line", NAMED)
def test_each_command_of_ours_exists(line):
    check(line)


@pytest.mark.parametrize(
    "line",
    ["nothing", "kv nothing", "kv", "topics TOPIC OTHER", "topics TOPIC --nothing", "brokers staus", "kv put it"],
)
def test_lines_with_other_commands_are_refused(line):
    with pytest.raises(LookupError):
        check(line)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_only_what_is_refused_has_no_counterpart(row):
    assert len(row) == 4
    _, on_4, on_5, ours = row
    answered = any(cell.startswith(("same", "differs")) for cell in (on_4, on_5))
    assert (ours != "–") is answered
