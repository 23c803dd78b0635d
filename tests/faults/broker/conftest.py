"""The seed of the random schedules; set TRIOMQ_SEED to repeat a failure."""

import os
import random

import pytest


@pytest.fixture
def seed() -> int:
    number = int(os.environ.get("TRIOMQ_SEED", random.randrange(1_000_000)))
    # Captured output is shown when the test fails.
    print(f"TRIOMQ_SEED={number}")
    return number
