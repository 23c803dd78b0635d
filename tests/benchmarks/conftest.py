"""Small clusters as child processes, for runs of seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from triomq_benchmarks.clusters.cluster import SingleBroker, open_single_broker
from triomq_benchmarks.clusters.servers import Kind


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleBroker]:
    with open_single_broker(
        Kind.OURS, tmp_path_factory.mktemp("ours"), settings={"mappedFileSizeCommitLog": 16 << 20}
    ) as started:
        yield started
