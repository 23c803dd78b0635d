"""Common to all suites: the location of the golden bytes, and figures that are printed at the end of a run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# A busy machine is not a failure: examples have no deadline, and slow ones are not a defect of the code.
settings.register_profile("triomq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("triomq")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: some tests wait."""
    return (os.cpu_count() or 1) + 1


def pytest_collection() -> None:
    """Pause garbage collection: it took half of the time of collecting tests, and nearly all objects made here stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests, half a million objects, from garbage collection, because they stay."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of golden bytes; the environment variable TRIOMQ_VECTORS sets another one."""
    return Path(os.environ.get("TRIOMQ_VECTORS", TESTS / "vectors"))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to the figures that are printed when the whole run has ended, also with several workers."""

    def add(line: str) -> None:
        request.node.user_properties.append(("figures", line))

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = [
        line
        for report in reports
        if report.when == "call"
        for name, line in report.user_properties
        if name == "figures"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
