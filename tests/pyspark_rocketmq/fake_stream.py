"""A streaming read of a fake cluster, for tests of what its driver plans."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import trio
from fake_cluster import FakeCluster

from pyspark_rocketmq.clients import Session
from pyspark_rocketmq.offsets import QueueId
from pyspark_rocketmq.read import stream_reader

A = QueueId("T", "broker-a", 0)


class FakeStream:
    """What a reader of this cluster borrows; queue A has 50 messages."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(random.Random(0))
        self.cluster.add_queue(A, 50)

    def call(self, run: Callable[[Session], Any]) -> Any:
        session = Session(SimpleNamespace(admin=self.cluster), None, self.cluster)  # type: ignore[arg-type]
        return trio.run(run, session)


S = TypeVar("S", bound=FakeStream)


def lent(monkeypatch: pytest.MonkeyPatch, kind: Callable[..., S]) -> Callable[..., S]:
    """Makes streams of a kind; readers borrow the one that was made last."""
    opened: list[S] = []

    def make(**options: str) -> S:
        opened.append(kind(**options))
        return opened[-1]

    @contextmanager
    def borrowed(_key: object) -> Iterator[S]:
        yield opened[-1]

    monkeypatch.setattr(stream_reader, "borrowed", borrowed)
    return make
