"""Our own name server, master and slave on real sockets, for the SDK's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import triomq
from triomq_server.cluster import Cluster, open_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(settings={"mappedFileSizeCommitLog": "4194304"}) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(cluster.name_servers) as opened:
        yield opened
