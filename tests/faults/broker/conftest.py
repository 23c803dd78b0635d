"""The seed of the random schedules; set TRIOMQ_SEED to repeat a failure."""

import os
import random
from collections.abc import Iterator

import pytest


@pytest.fixture
def seed() -> Iterator[int]:
    number = int(os.environ.get("TRIOMQ_SEED", random.randrange(1_000_000)))
    # Captured output is shown when the test fails.
    print(f"TRIOMQ_SEED={number}")
    yield number
