"""The list of commands in `triomq bench --help` and in shells, made without importing them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from triomq_benchmarks import commands
from triomq_benchmarks.__main__ import COMMANDS, bench


@pytest.mark.parametrize("name", COMMANDS)
def test_each_short_help_is_the_commands_own(name: str) -> None:
    command = bench.get_command(click.Context(bench), name)
    assert command is not None
    assert COMMANDS[name] == command.get_short_help_str(1000)


def test_the_overview_imports_no_command() -> None:
    code = (
        "import sys\nfrom triomq_benchmarks.__main__ import bench\nbench(['--help'], standalone_mode=False)\n"
        f"sys.exit(str([name for name in sys.modules if name.startswith('{commands.__name__}.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.stderr == "[]\n"
    assert "\n  hotpath           Frames parsed, sends stored, pulls answered," in done.stdout


def test_the_overview_is_as_click_would_print_it() -> None:
    whole = click.Group(
        "bench",
        help=bench.help,
        commands={name: bench.get_command(click.Context(bench), name) for name in COMMANDS},
    )
    assert CliRunner().invoke(bench, ["--help"]).output == CliRunner().invoke(whole, ["--help"]).output


@pytest.mark.parametrize(
    ("words", "place", "completions"),
    [
        ("bench h", 1, {"ha", "history", "hotpath"}),
        ("bench --he", 1, {"--help"}),
        ("bench run --ou", 2, {"--out"}),
        ("bench nonsense", 1, set()),
    ],
)
def test_shells_complete_names_and_options(
    words: str, place: int, completions: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(place))
    shell = BashComplete(bench, {}, "bench", "_BENCH_COMPLETE")
    assert {item.value for item in shell.get_completions(*shell.get_completion_args())} == completions


def test_the_group_is_what_the_command_line_has() -> None:
    (entry,) = importlib.metadata.entry_points(group="triomq.commands", name="bench")
    assert entry.load() is bench


@pytest.mark.parametrize("command", ["hotpath", "run"])
def test_a_missing_package_is_named_with_its_extra(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(_: str) -> None:
        raise ModuleNotFoundError("No module named 'hdrh'", name="hdrh")

    monkeypatch.setattr("triomq_benchmarks.__main__.import_module", lacks)
    done = CliRunner().invoke(bench, [command])
    assert done.exit_code == 1
    assert done.output == f"Error: bench {command} needs the package hdrh: pip install 'triomq[bench]'\n"
    assert bench.get_command(click.Context(bench, resilient_parsing=True), command) is None


def test_a_module_of_ours_that_is_missing_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr("triomq_benchmarks.__main__.import_module", lacks)
    with pytest.raises(ModuleNotFoundError):
        bench.get_command(click.Context(bench), "hotpath")
