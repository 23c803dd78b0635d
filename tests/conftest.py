"""What every ring shares: where the golden bytes lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# A busy machine is no failure: examples have no deadline, and slow ones are no fault of the code.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of golden bytes; the environment variable TRIOMQ_VECTORS names another one."""
    return Path(os.environ.get("TRIOMQ_VECTORS", TESTS / "vectors"))
