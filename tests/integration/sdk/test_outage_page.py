"""The page about outages shows what the commands print: each of them is run again in the same outage."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

import triomq
from triomq._producer import compiled
from triomq_server.broker.admin import runtime
from triomq_server.cluster import Cluster, open_cluster

PAGE = Path(__file__).parents[3] / "docs/how-to/outages.md"


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    for module in (runtime, compiled):
        monkeypatch.setattr(module, "STATE", "used")  # the page has no notice that compiled modules are missing
    settings = {
        "mappedFileSizeCommitLog": "4194304",
        "flushConsumerOffsetInterval": "100",
        "flushDiskType": "ASYNC_FLUSH",
    }
    async with open_cluster(masters=2, settings=settings) as running:
        yield running


def comparable(text: str) -> str:
    """Without addresses, line breaks and columns; of `admin ha` the sentence, since states follow with time."""
    text = text[text.index("Error:") :] if text.startswith("BROKER ") else text
    return " ".join(re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", text).split())


def is_copied(slave: Path) -> bool:
    """Whether a slave has both queues to their ends, and the group's offsets."""
    offsets = slave / "config" / "consumerOffset.json"
    queues = [slave / "consumequeue" / "orders" / str(n) / f"{0:020d}" for n in range(2)]
    if not all(path.exists() for path in (offsets, *queues)):
        return False
    ends = [path.read_bytes()[9 * 20 : 10 * 20] for path in queues]
    return '"orders@billing":{0:4,1:4' in re.sub(r"\s", "", offsets.read_text()) and all(map(any, ends))


async def test_the_page_shows_what_is_printed(cluster: Cluster, client: triomq.Client, call: Any) -> None:
    await client.admin.create_topic("orders", queues=2)
    queues = [triomq.MessageQueue("orders", name, n) for name in ("broker-a", "broker-b") for n in range(2)]
    async with client.producer("shop") as producer:
        for queue in queues:
            for _ in range(10):
                await producer.send(triomq.Message("orders", b"x"), queue=queue)
    async with client.lite_pull_consumer("billing", auto_commit=False) as consumer:
        await consumer.subscribe("orders")
        await consumer.commit({})
    await client.groups.set_offsets("billing", dict.fromkeys(queues, 4))
    with trio.fail_after(120):
        for name in ("broker-a", "broker-b"):
            while not is_copied(cluster.directory / f"{name}-s"):  # noqa: ASYNC110 - files have no events
                await trio.sleep(0.1)
    _, one, none = re.split(r"^## .*$", PAGE.read_text(), flags=re.MULTILINE)
    for stopped, part in (("broker-a", one), ("broker-b", none)):
        await cluster[stopped].stop()
        shown = re.findall(r"```text\n\$ triomq (.*?)\n(.*?)```", part, flags=re.DOTALL)
        assert [command for command, _ in shown] == [
            "groups billing", "offsets show billing", "topics", "admin ha", "doctor",
        ]  # fmt: skip
        for command, text in shown:
            code, out, err = await call(*command.split())
            assert (code, comparable(out + err)) == (1, comparable(text)), command
