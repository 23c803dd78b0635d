"""The page about the command line: each command has a row, with existing options and a note if it has `--json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from triomq._cli import messages

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| `triomq ")]
OTHERS = ("triomq run --faults", "triomq cluster --control")
"""What rows quote of other commands."""

Words = tuple[str, ...]


def options_of_all(
    command: click.Command, words: Words, parent: click.Context | None
) -> Iterator[tuple[Words, set[str]]]:
    """The words and the options of every command that is no group."""
    context = click.Context(command, info_name=words[-1], parent=parent)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options_of_all(found, (*words, name), context)
    else:
        options = [each for each in command.params if isinstance(each, click.Option)]
        yield words, {name for each in options for name in [*each.opts, *each.secondary_opts]}


def row_of(words: Words) -> str | None:
    """The row whose first cell names the command, itself or after another one of its group."""
    itself = re.compile(rf"`{' '.join(words)}[ `]")
    beside = re.compile(rf"`{' '.join(words[:-1])} .*`{words[-1]}[ `]")
    found = [row for pattern in (itself, beside) for row in ROWS if pattern.search(row.split(" | ")[0])]
    return found[0] if found else None


def named_in(row: str) -> set[str]:
    for other in OTHERS:
        row = row.replace(other, "")
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row.replace("--[no-]", "--")))


def test_each_command_has_a_row_with_options_that_exist() -> None:
    options = dict(options_of_all(messages.triomq, ("triomq",), None))
    rows = {words: row_of(words) for words in options}
    assert [words for words, row in rows.items() if row is None] == []
    assert set(ROWS) == set(rows.values())
    assert [words for words, row in rows.items() if row and "--json" in options[words] and "--json" not in row] == []
    unknown = {
        row: named_in(row) - {name for words, its in rows.items() if its == row for name in options[words]}
        for row in ROWS
    }
    assert {row: names for row, names in unknown.items() if names} == {}
