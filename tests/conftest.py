"""Common to all suites: the location of the golden bytes, and figures that are printed at the end of a run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from tempfile import gettempdir
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Pause garbage collection: it took half of the time of collecting tests, and nearly all objects made here stay."""
    gc.disable()
    with _first_or_after_the_first():
        return (yield)


@contextmanager
def _first_or_after_the_first() -> Iterator[None]:
    """Let one worker of a run collect, then all others.

    In a new environment most of what collecting costs is compiling: all workers would compile the same modules at once.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        yield
        return
    path = Path(gettempdir(), f"triomq-collecting-{run}")
    with path.open("wb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            flock(file, LOCK_SH)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


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


@pytest.fixture
def sigint_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell has it ignored, as for jobs in the background of scripts."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)
