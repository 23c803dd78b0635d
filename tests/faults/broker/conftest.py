"""The seed of the random schedules, and ports for servers that are killed."""

import os
import random
from collections.abc import Iterator

import pytest

from triomq_benchmarks.clusters.processes import reserved_port


@pytest.fixture
def seed() -> int:
    """Set TRIOMQ_SEED to repeat a failure."""
    number = int(os.environ.get("TRIOMQ_SEED", random.randrange(1_000_000)))
    # Captured output is shown when the test fails.
    print(f"TRIOMQ_SEED={number}")
    return number


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """For a name server, and for a broker that starts again and again."""
    with reserved_port() as namesrv, reserved_port(-2, 1) as broker:
        yield namesrv, broker
