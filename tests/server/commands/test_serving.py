"""Running a server: what a start does to the garbage collection of its process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio

from triomq_server.commands.serving import run_server
from triomq_server.config import NamesrvConfig


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_a_start_is_not_interrupted_by_collections() -> None:
    """They begin when the server is ready, and pass over what the start has made."""
    seen: list[tuple[object, bool, bool]] = []
    frozen = gc.get_freeze_count()

    async def serve(*, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        seen.append(("starting", gc.isenabled(), gc.get_freeze_count() > frozen))
        task_status.started("address")
        await trio.lowlevel.checkpoint()

    def ready(address: object) -> None:
        seen.append((address, gc.isenabled(), gc.get_freeze_count() > frozen))

    run_server(serve, ready, NamesrvConfig())
    assert seen == [("starting", False, False), ("address", True, True)]


def test_a_start_that_fails_leaves_collections_on() -> None:
    async def serve(*, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        raise RuntimeError("it fails")

    with pytest.raises(BaseExceptionGroup):
        run_server(serve, print, NamesrvConfig())
    assert gc.isenabled()
