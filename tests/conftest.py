"""What every ring shares: where the golden bytes lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of golden bytes; the environment variable TRIOMQ_VECTORS names another one."""
    return Path(os.environ.get("TRIOMQ_VECTORS", TESTS / "vectors"))
