"""The servers' command line without a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from triomq_server.__main__ import main


@pytest.fixture
def call() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of the servers in this process, without half a second of imports.

    Servers themselves and what they log need a process: pytest has handlers of its own for the log.
    """

    def call(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(main, arguments, env=env, prog_name="python -m triomq_server", catch_exceptions=False)
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return call
