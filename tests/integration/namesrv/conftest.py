"""A name server on a real socket and real files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv


@pytest.fixture
def start_namesrv(nursery, tmp_path) -> Callable[..., Awaitable[str]]:
    """Start a name server in the test's nursery and return its address."""

    async def start(**settings: object) -> str:
        config = NamesrvConfig(
            bind_address="127.0.0.1",
            **{"listen_port": 0, **settings},
            kv_config_path=str(tmp_path / "ns" / "kvConfig.json"),
            config_store_path=str(tmp_path / "ns" / "namesrv.properties"),
        )

        async def run(task_status):
            await serve_namesrv(config, task_status=task_status)

        return await nursery.start(run)

    return start
