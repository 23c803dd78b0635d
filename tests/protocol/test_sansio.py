"""The protocol stays pure: nothing in it waits, listens, dials, looks at a clock or throws dice."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import triomq_protocol

FORBIDDEN = {"trio", "asyncio", "socket", "select", "selectors", "ssl", "threading", "time", "random", "os", "logging"}
MODULES = sorted(
    name for _, name, _ in pkgutil.walk_packages(triomq_protocol.__path__, "triomq_protocol.")
)  # fmt: skip


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("name", MODULES)
def test_no_module_imports_the_outside_world(name: str) -> None:
    path = import_module(name).__file__
    assert path is not None
    assert imported(Path(path)) & FORBIDDEN == set()


@pytest.mark.parametrize("name", MODULES)
def test_public_names_have_docstrings(name: str) -> None:
    module = import_module(name)
    assert module.__doc__
    for each, value in vars(module).items():
        if not each.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
            assert value.__doc__, f"{name}.{each}"


def test_importing_it_starts_no_loop() -> None:
    code = (
        "import sys, triomq_protocol.wire.frame, triomq_protocol.requests, triomq_protocol.record.view, triomq_protocol.acl,"
        "triomq_protocol.replication\n"
        "print([name for name in ('trio', 'asyncio', 'socket', 'ssl', 'triomq', 'triomq_server') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
