"""The clients of one process, and what a worker of Spark does before its first one."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext

from pyspark_rocketmq import clients
from pyspark_rocketmq.clients import ClientKey, borrowed
from pyspark_rocketmq.options import read_options

KEY = ClientKey(read_options({"namesrv": "127.0.0.1:1", "topic": "T"}, streaming=False).client, None)


class FakeClient:
    def __init__(self, _pool: object, key: ClientKey) -> None:
        self.key = key
        self.users = 0
        self.is_over = False


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each call of `gc.freeze`."""
    calls: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(None))
    monkeypatch.setattr(clients, "PooledClient", FakeClient)
    monkeypatch.setattr(clients, "_pool", clients._Pool())
    return calls


def test_a_worker_exempts_its_imports_from_the_search_for_garbage_once(monkeypatch, frozen):
    monkeypatch.setattr(TaskContext, "get", lambda: object())

    for _ in range(3):
        with borrowed(KEY) as client:
            assert client.key == KEY
            assert len(frozen) == 1


def test_a_process_that_runs_no_task_is_left_as_it_is(monkeypatch, frozen):
    monkeypatch.setattr(TaskContext, "get", lambda: None)

    with borrowed(KEY):
        assert not frozen
