"""The compiled way to store sends: byte for byte what the handlers do, whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from burst_twins import compare, small_files

from triomq_server.compiled import USED
from triomq_server.config import BrokerConfig

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")


@pytest.fixture
def config(config: BrokerConfig) -> Any:
    return small_files(config)


@pytest.mark.parametrize("seed", range(8))
async def test_both_ways_store_and_answer_the_same(
    seed: int, new_desk: Callable[[], AbstractAsyncContextManager[Any]]
) -> None:
    counts = await compare(seed, 40, new_desk)
    assert counts["taken_bytes"] > counts["bytes"] * 0.2
