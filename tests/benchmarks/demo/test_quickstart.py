"""The quickstart: what it reports if sends fail, or the slave ends too."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio.testing

import triomq
from triomq_benchmarks.demo.body_check import BodyCheck
from triomq_benchmarks.demo.quickstart import Quickstart, QuickstartError, _Sent
from triomq_benchmarks.demo.quickstart_output import as_object, table_of
from triomq_benchmarks.workload.flights import DataSet


def quickstart() -> Quickstart:
    return Quickstart(DataSet("lines", "lines", None, lambda: iter(())), lambda _what, _done, _total: None)


async def test_the_first_failed_send_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run = quickstart()
    for text in ("the disk [is] full", "another"):
        _Sent(run, 1).on_exception(triomq.errors.MessageIllegal(text))
    figures = run.figures
    figures.rows, figures.send_s, figures.pull_s, figures.comparison = 2, 1.0, 1.0, BodyCheck().compare()
    found = json.loads(as_object(figures))
    assert (found["send_failures"], found["clean"]) == (2, False)
    assert found["first_send_failure"].startswith("the disk [is] full")
    table_of(figures)
    assert "2 sends failed, the first: the disk [is] full" in " ".join(capsys.readouterr().out.split())


async def test_a_slave_that_ends_is_an_error_of_one_line(autojump_clock: trio.testing.MockClock) -> None:
    """Queues are pulled within a nursery, which makes a group of the errors of several."""
    run = quickstart()
    queues = [triomq.MessageQueue("lines", "broker-a", number) for number in range(3)]

    async def fetch_queues(_topic: str) -> list[triomq.MessageQueue]:
        return queues

    async def pull(queue: triomq.MessageQueue, **_options: object) -> None:
        raise triomq.errors.ConnectFailed(f"pull of {queue.queue_id}", address="127.0.0.1:1")

    consumer = SimpleNamespace(fetch_queues=fetch_queues, pull=pull)
    client: Any = SimpleNamespace(pull_consumer=lambda _group: consumer)
    cluster: Any = SimpleNamespace(kill_node=lambda _name: None)
    for queue in queues:
        run.body_check.acknowledge(queue.queue_id, 0, 1)
    with pytest.raises(QuickstartError, match=r"pulling from the slave failed: .*127.0.0.1:1"):
        await run._lose_master_and_pull(client, cluster)
