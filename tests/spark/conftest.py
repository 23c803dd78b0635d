"""One Spark session for the whole run, since starting it costs more than most tests; skipped with the reason where it
cannot run."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.cluster import OurCluster, open_cluster
from triomq_benchmarks.spark.environment import check_spark, open_session, ready_class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


from source_topics import Topics, open_topics

MASTER = "local[2]"
WRITES_CLASSES = "test_a_run_on_a_standalone_cluster_and_its_end"
"""Runs first: it has a JVM write its classes, which takes longer than a session's start, and the JVMs of all others start
with them for half of the processor time."""
# Spark's Python processes wait this long for Spark; its default of 15 s is short on a busy machine.
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "120")


@functools.cache
def _reason_to_skip() -> str | None:
    try:
        check_spark()
    except ToolUnavailableError as error:
        return str(error)
    return None


class _Unavailable(pytest.Module):
    """A module that cannot be imported here."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(_reason_to_skip() or "", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Import nothing of this suite if pyspark is missing."""
    if importlib.util.find_spec("pyspark") is None:
        return _Unavailable.from_parent(parent, path=module_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip only this suite if pyspark or Java is missing; Spark's own warnings are ignored."""
    here = [item for item in items if "tests/spark/" in item.nodeid]
    if not here:
        return
    last = {id(item) for item in here if item.name != WRITES_CLASSES}
    items.sort(key=lambda item: id(item) in last)
    reason = _reason_to_skip()
    for item in here:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        item.add_marker(pytest.mark.filterwarnings("default::DeprecationWarning:pyspark"))
        item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The common session of this suite: `local[2]`, data sources in Python with filter push-down."""
    settings = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    archive = ready_class_archive()
    with open_session(MASTER, name="triomq-tests", settings=settings, short_lived=True, archive=archive) as session:
        yield session


@pytest.fixture(scope="session")
def cluster() -> Iterator[OurCluster]:
    """Two masters with a slave each, for tests that kill no server."""
    with open_cluster(masters=2) as running:
        yield running


@pytest.fixture(scope="session")
def topics(cluster: OurCluster) -> Iterator[Topics]:
    """Topics in that cluster."""
    with open_topics(cluster) as made:
        yield made
