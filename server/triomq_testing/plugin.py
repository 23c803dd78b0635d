"""The fixtures that pytest finds: `rocketmq`, `rocketmq_cluster`, `rocketmq_faults`."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # every run of pytest imports this module
    from triomq_testing.clusters.servers import Servers
    from triomq_testing.clusters.sharing import SharedCluster
    from triomq_testing.rocketmq import RocketMQ
    from triomq_testing.steered.faults import Faults

_URL = "triomq_testing_url"
_shared: pytest.StashKey[SharedCluster] = pytest.StashKey()

_NAME_CHARACTERS = 40


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "rocketmq(masters=1, slaves=0, topics=(), settings=None): what the broker of the fixture `rocketmq` is like",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the address of the run's cluster to a worker of `pytest-xdist`; called in the controller."""
    from triomq_testing.clusters.sharing import SharedCluster

    if not node.gateway.spec.popen:
        return  # perhaps on another machine: it has its own cluster
    if _shared not in node.config.stash:
        node.config.stash[_shared] = SharedCluster()
    node.workerinput[_URL] = node.config.stash[_shared].url


@pytest.hookimpl
def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the run's cluster, after the workers."""
    shared = config.stash.get(_shared, None)
    if shared is not None:
        del config.stash[_shared]
        shared.close()


@pytest.fixture(scope="session")
def _rocketmq_servers() -> Iterator[Servers]:
    from triomq_testing.clusters.servers import Servers

    with Servers() as servers:
        yield servers


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest, _rocketmq_servers: Servers) -> Iterator[RocketMQ]:
    """A name server and a broker of the test's own, stopped when the test ends; the marker `rocketmq` configures them."""
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("rocketmq"):
        if marker.args:
            raise TypeError(f"pytest.mark.rocketmq takes arguments by name, such as masters=2, and not {marker.args!r}")
        options = marker.kwargs | options
    with _rocketmq_servers.open(**options, faults="rocketmq_faults" in request.fixturenames) as rocketmq:
        yield rocketmq


@pytest.fixture
def rocketmq_faults(rocketmq: RocketMQ) -> Faults:
    """Breaks the nodes of the fixture `rocketmq`."""
    return rocketmq.faults


@pytest.fixture(scope="session")
def _rocketmq_session(pytestconfig: pytest.Config, _rocketmq_servers: Servers) -> Iterator[RocketMQ]:
    url = getattr(pytestconfig, "workerinput", {}).get(_URL)
    with _rocketmq_servers.open() if url is None else _rocketmq_servers.join(url) as rocketmq:
        yield rocketmq


_numbers = itertools.count(1)


@pytest.fixture
def rocketmq_cluster(request: pytest.FixtureRequest, _rocketmq_session: RocketMQ) -> RocketMQ:
    """One cluster for the whole run; the names that this test makes begin with a prefix of its own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    test = re.sub(r"[^0-9A-Za-z]+", "_", request.node.name)[:_NAME_CHARACTERS].strip("_")
    return _rocketmq_session.with_prefix(f"{worker}-{next(_numbers)}-{test}-")
