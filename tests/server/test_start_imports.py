"""The imports of a broker's process at startup: nothing large that most brokers never use."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from triomq._cli import messages
from triomq_command import servers

UNUSED = ("yaml", "cryptography", "rich", "multiprocessing", "asyncio")


@pytest.mark.parametrize("module", ["triomq_server.broker.lifecycle", "triomq_server.namesrv.lifecycle"])
def test_a_start_imports_no_library_for_what_is_switched_off(module: str) -> None:
    code = f"import sys, triomq_server.__main__, {module}; print(*(set({UNUSED}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []


def test_a_name_server_imports_nothing_of_a_broker() -> None:
    code = "import sys, triomq_server.commands.namesrv, triomq_server.namesrv; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    names = set(done.stdout.split())
    packages = {".".join(name.split(".")[:2]) for name in names}
    assert packages.isdisjoint({"triomq_server.store", "triomq_server.broker", "triomq_server.replication"})
    assert names.isdisjoint({"triomq_server.config.broker", "triomq_server.config.store"})


def test_a_ready_line_imports_nothing_of_clusters() -> None:
    code = "import sys; from triomq_server.commands.serving import print_ready; print_ready(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    ready, names = done.stdout.splitlines()
    assert set(json.loads(ready)) == {"event", "pid", "ready_s"}
    assert "triomq_server.cluster" not in names.split()


@pytest.mark.parametrize("command", sorted(servers.COMMANDS))
def test_the_commands_of_servers_do_not_import_the_client(command: str) -> None:
    code = (
        "import sys; from triomq_command import main\n"
        "try: main()\n"
        "finally: print(*(sorted({'triomq', 'rich', 'triomq_testing'} & set(sys.modules))), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, command, "--help"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.split()) == (0, [])
    assert done.stdout.startswith(f"Usage: triomq {command} ")


def test_the_commands_of_servers_are_the_entry_points() -> None:
    entries = {entry.name: entry.value for entry in entry_points(group="triomq.commands")}
    of_servers = {name: value for name, value in entries.items() if value.startswith("triomq_server")}
    assert {name: f"{module}:{name}" for name, module in servers.COMMANDS.items()} == of_servers


@pytest.mark.parametrize("arguments", [[], ["topics"], ["--help"], ["run", "broker"]])
def test_other_arguments_are_for_the_other_commands(arguments: list[str]) -> None:
    assert servers.run(arguments) is None


def test_what_cannot_be_loaded_is_left_to_the_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triomq_server.commands.broker", None)
    assert servers.run(["broker", "--help"]) is None


@pytest.mark.parametrize("arguments", [["broker", "--nonsense"], ["cluster", "-h"], ["namesrv", "--port", "x"]])
def test_servers_print_and_exit_as_in_the_full_program(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    alone = servers.run(arguments), *capsys.readouterr()
    assert alone == (messages.run(arguments), *capsys.readouterr())


_COUNTING = """
import gc, sys
gc.callbacks.append(lambda phase, info: phase == "stop" and kept.append(info["generation"]))
kept = []
from triomq_command import main
try: main()
finally: print(len(kept), gc.get_freeze_count() > 10_000, gc.isenabled(), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["broker", "--help"], ["broker", "-p"], ["namesrv", "-p"], ["admin", "ha", "--help"], ["topics", "--help"]],
)  # fmt: skip
def test_imports_of_commands_are_not_searched_for_garbage(arguments: list[str]) -> None:
    """Otherwise there are 19 to 98 collections."""
    done = subprocess.run([sys.executable, "-c", _COUNTING, *arguments], capture_output=True, text=True, timeout=120)
    collections, are_frozen, is_enabled = done.stderr.split()
    assert done.returncode == 0
    assert int(collections) < 10
    assert (are_frozen, is_enabled) == ("True", "True")
