"""The topic and the files that Spark reads in a measurement: any allowed size of bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import triomq
from triomq_benchmarks.spark import read


@pytest.mark.parametrize(("rows", "body_bytes"), [(900, 1), (130, 65_536), (5, 1 << 20)])
async def test_bodies_of_each_size_are_sent(rows: int, body_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [triomq.MessageQueue(read.TOPIC, "broker-a", number) for number in range(2)]
    sent: list[triomq.Message] = []

    async def create_topic(*_args: object, **_others: object) -> None:
        pass

    async def all_queues(_topic: str) -> list[triomq.MessageQueue]:
        return queues

    async def send_batch(messages: Sequence[triomq.Message], *, queue: triomq.MessageQueue) -> None:
        assert queue in queues
        assert len(messages) * body_bytes < 4 << 20
        sent.extend(messages)

    @asynccontextmanager
    async def open_client(_name_servers: str) -> AsyncIterator[Any]:
        producer = SimpleNamespace(queues=all_queues, send_batch=send_batch)
        yield SimpleNamespace(admin=SimpleNamespace(create_topic=create_topic), producer=lambda _group: producer)

    monkeypatch.setattr(triomq, "open_client", open_client)
    await read._fill("", rows, body_bytes, len(queues))
    assert {len(message.body) for message in sent} == {body_bytes}
    assert sorted(str(message.keys) for message in sent) == sorted(f"key-{number}" for number in range(rows))


@pytest.mark.parametrize(("body_bytes", "is_long"), [(1, False), (1024, False), (65_536, True), (1 << 20, True)])
def test_parquet_buffers_no_more_than_a_small_heap_holds(body_bytes: int, is_long: bool) -> None:
    options: dict[str, int] = {}
    written: list[str] = []

    def option(name: str, value: int) -> SimpleNamespace:
        options[name] = value
        return writer

    writer = SimpleNamespace(option=option, parquet=written.append)
    rows: Any = SimpleNamespace(write=writer)
    read._write_parquet(rows, body_bytes, "folder")
    assert written == ["folder"]
    checks = {"parquet.page.size.row.check.min": 1, "parquet.block.size.row.check.min": 1}
    assert options == ({"parquet.block.size": 16 << 20, **checks} if is_long else {})
