"""Small clusters as child processes, for runs of seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from triomq_benchmarks.targets import Kind, Target, target


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(Kind.OURS, tmp_path_factory.mktemp("ours"), settings={"mappedFileSizeCommitLog": 16 << 20}) as started:
        yield started
