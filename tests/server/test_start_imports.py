"""What a broker's process imports at its start: nothing large that most brokers never use."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNUSED = ("yaml", "cryptography", "rich", "multiprocessing", "asyncio")


@pytest.mark.parametrize("module", ["triomq_server.broker.lifecycle", "triomq_server.namesrv.lifecycle"])
def test_a_start_imports_no_library_for_what_is_switched_off(module: str) -> None:
    code = f"import sys, triomq_server.__main__, {module}; print(*(set({UNUSED}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []
