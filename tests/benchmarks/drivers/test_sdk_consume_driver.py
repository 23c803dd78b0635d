"""The driver of our consumers: how it fills a topic."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import triomq
from triomq_benchmarks.drivers.sdk_consume_driver import Command, _send_batches


@pytest.mark.parametrize(("count", "body_bytes"), [(1, 1), (450, 100), (130, 65_536), (3, 1 << 20)])
async def test_a_batch_is_no_larger_than_a_broker_takes(count: int, body_bytes: int) -> None:
    sent: list[int] = []

    async def send_batch(messages: Sequence[triomq.Message]) -> None:
        sent.append(len(messages))
        assert len(messages) * body_bytes < 4 << 20

    producer: Any = SimpleNamespace(send_batch=send_batch)
    values = {"op": "fill", "nameServers": "", "topic": "t", "count": count, "bodyBytes": body_bytes}
    await _send_batches(producer, triomq.Message("t", bytes(body_bytes)), msgspec.convert(values, Command))
    assert sum(sent) == count
    assert max(sent) <= 200
