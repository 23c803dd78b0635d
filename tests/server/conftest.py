"""Fixtures for several suites of the servers."""

from __future__ import annotations

from typing import Any

import pytest
from memory_disk import MemoryDisk

from triomq_server.disk import Disk, RealDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: Any) -> Disk:
    return RealDisk() if request.param == "real" else MemoryDisk()
