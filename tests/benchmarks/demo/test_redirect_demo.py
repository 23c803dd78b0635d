"""The demonstration of a slow consumer, with brokers that are counters: no pull may see a copy that lags."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from triomq_benchmarks.demo import redirect

SLAVE = "127.0.0.1:2"


class Brokers:
    """A master that takes every message, and a slave that copies one message per question."""

    def __init__(self) -> None:
        self.ends: Counter[int] = Counter()
        self.copied: Counter[int] = Counter()
        self.lags: list[int] = []

    async def send(self, _message: object, *, queue: Any) -> object:
        self.ends[queue.queue_id] += 1
        return SimpleNamespace(queue_offset=self.ends[queue.queue_id] - 1)

    async def max_offset(self, address: str, _topic: str, queue_id: int) -> int:
        assert address == SLAVE
        self.copied[queue_id] += self.copied[queue_id] < self.ends[queue_id]
        return self.copied[queue_id]

    async def pull(self, queue: Any, *, offset: int, max_messages: int) -> object:
        assert max_messages == 1
        self.lags.append(self.ends[queue.queue_id] - offset)
        assert self.copied == self.ends, "a pull while the copy lags"
        message = SimpleNamespace(queue_offset=offset)
        return SimpleNamespace(messages=[message], broker_address="127.0.0.1:1", max_offset=self.ends[queue.queue_id])


async def test_no_pull_sees_a_copy_that_lags(autojump_clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    nodes = {
        redirect.MASTER: SimpleNamespace(address="127.0.0.1:1", role="master"),
        redirect.SLAVE: SimpleNamespace(address=SLAVE, role="slave"),
    }
    monkeypatch.setattr(redirect, "max_offset", brokers.max_offset)
    demo = redirect.Demo(SimpleNamespace(nodes=nodes, name_servers=""), memory_bytes=4 << 20)  # type: ignore[arg-type]
    await demo._fall_behind(brokers, brokers)  # type: ignore[arg-type]
    assert brokers.lags[:: redirect.QUEUES] == sorted(set(brokers.lags)), "the consumer falls behind from pull to pull"
    assert sum(brokers.ends.values()) >= int((4 << 20) * redirect.LAG_SHARE) // redirect.BODY_BYTES * 0.8
