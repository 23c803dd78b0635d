"""Modules of commands with the oldest click that the extras allow."""

from __future__ import annotations

import subprocess
import sys

PACKAGES = ("triomq_benchmarks.commands", "triomq_server.commands", "triomq_testing", "triomq_dashboard", "triomq._cli")


def test_every_command_is_imported_where_types_of_click_take_no_parameters() -> None:
    code = (
        "import click, importlib, pkgutil\n"
        "click.ParamType.__class_getitem__ = None  # as before 8.4\n"
        f"for package in {PACKAGES}:\n"
        "    for _, name, _ in pkgutil.walk_packages(importlib.import_module(package).__path__, package + '.'):\n"
        "        importlib.import_module(name)\n"
        "        print(name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert {"triomq_benchmarks.commands.runs.compare", "triomq_testing.steering"} <= set(done.stdout.split())
