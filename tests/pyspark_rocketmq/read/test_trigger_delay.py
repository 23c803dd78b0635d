"""Triggers of a stream that wait for messages, and what Spark's limits and restarts make of that."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

import trio
from fake_stream import A, FakeStream, lent
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pyspark_rocketmq.errors import SourceError
from pyspark_rocketmq.offsets import NEW_FROM, QueueId, offsets_of, tree_of
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.read.stream_reader import COMMIT_AGAIN_S, StreamReader
from pyspark_rocketmq.rows.schema import READ_SCHEMA
from triomq import MessageQueue
from triomq.errors import ConnectFailed

B = QueueId("T", "broker-a", 1)


class Stream(FakeStream):
    """A streaming read of one cluster: its driver's offsets, and a clock that is set."""

    def __init__(self, **options: str) -> None:
        super().__init__()
        self.now_s = 1000.0
        given = {"namesrv": "n:1", "topic": "T", "minOffsetsPerTrigger": "40", "maxTriggerDelay": "1m"}
        self.options = read_options({**given, **options}, streaming=True)
        self.reached = {A: 0}
        self.restart()

    def restart(self) -> None:
        self.reader = StreamReader(self.options, READ_SCHEMA, lambda: self.now_s)

    def trigger(self, limit: Any = None, *, after_s: float = 0) -> dict[QueueId, int]:
        """Where the next trigger ends; it starts where the last one ended."""
        self.now_s += after_s
        limit = limit if limit is not None else self.reader.getDefaultReadLimit()
        self.reached = offsets_of(self.reader.latestOffset(tree_of(self.reached), limit))
        return self.reached


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stream]:
    return lent(monkeypatch, Stream)


def test_a_trigger_is_empty_until_there_is_enough(stream: Callable[..., Stream]) -> None:
    query = stream()
    assert query.reader.getDefaultReadLimit() == ReadMinRows(40)
    assert query.trigger() == {A: 50}
    query.cluster.append(A, 39)
    assert query.trigger(after_s=30) == {A: 50}
    query.cluster.add_queue(B, 0)
    assert query.trigger() == {A: 50}, "a new queue does not make a trigger either"
    query.cluster.append(B, 1)
    assert query.trigger() == {A: 89, B: 1}, "40 are enough, whatever their queues"


def test_a_trigger_waits_no_longer_than_its_delay(stream: Callable[..., Stream]) -> None:
    query = stream()
    assert query.trigger() == {A: 50}
    query.cluster.append(A, 1)
    assert query.trigger(after_s=59) == {A: 50}
    assert query.trigger(after_s=1) == {A: 51}
    query.cluster.append(A, 1)
    assert query.trigger(after_s=59) == {A: 51}, "the delay counts from the trigger before"
    assert query.trigger(after_s=1) == {A: 52}


def test_a_restart_takes_at_once_what_remained(stream: Callable[..., Stream]) -> None:
    query = stream()
    for end in (50, 51, 52):
        query.restart()
        assert query.trigger() == {A: end}
        query.cluster.append(A, 1)
        assert query.trigger() == {A: end}


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_least_and_most_go_together(stream: Callable[..., Stream], name: str) -> None:
    query = stream(**{name: "45"})
    first = query.trigger()
    assert 0 < first[A] < 50
    assert query.trigger(ReadAllAvailable()) == {A: 50}
    query.cluster.append(A, 39)
    assert query.trigger() == {A: 50}
    query.cluster.append(A, 20)
    assert 50 < query.trigger()[A] < 109


def test_both_limits_hold(stream: Callable[..., Stream]) -> None:
    few_bytes = stream(maxBytesPerTrigger="45").trigger()[A]
    assert 0 < few_bytes < 41
    options = {"minOffsetsPerTrigger": "1", "maxOffsetsPerTrigger": "41"}
    both = stream(maxBytesPerTrigger="45", **options)
    assert both.trigger() == {A: few_bytes}
    assert both.trigger(ReadMaxRows(30)) == {A: few_bytes + 30}, "a limit of Spark's own"
    assert stream(maxBytesPerTrigger="1000000", **options).trigger() == {A: 41}


def test_limits_of_spark_itself_do_not_wait(stream: Callable[..., Stream]) -> None:
    query = stream()
    assert query.trigger() == {A: 50}
    query.cluster.append(A, 9)
    assert query.trigger(ReadMaxRows(5)) == {A: 55}
    assert query.trigger(ReadAllAvailable()) == {A: 59}, "as a query that runs once is given"


def test_available_now_reads_to_its_target_and_ends(stream: Callable[..., Stream]) -> None:
    query = stream()
    query.reached = {A: 45}
    query.reader.prepareForTriggerAvailableNow()
    query.cluster.append(A, 100)
    assert query.trigger() == {A: 50}
    assert query.trigger() == {A: 50}


def test_a_queue_that_went_back_is_not_waited_for(
    stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture
) -> None:
    query = stream(failOnDataLoss="false")
    assert query.trigger() == {A: 50}
    query.cluster.add_queue(A, 7)
    assert [query.trigger(), query.trigger()] == [{A: 7}, {A: 7}]
    assert caplog.text.count("going on at its end") == 1


def test_tasks_of_a_trigger_are_cut_by_their_offsets(stream: Callable[..., Stream]) -> None:
    query = stream(maxRecordsPerPartition="20")
    parts = query.reader.partitions(tree_of({A: 5}), tree_of({A: 50}))
    assert [(part.value.start, part.value.end) for part in parts] == [(5, 20), (20, 35), (35, 50)]


def test_the_reader_that_tasks_get_is_pickled(stream: Callable[..., Stream]) -> None:
    reader = StreamReader(stream().options, READ_SCHEMA)
    assert pickle.loads(pickle.dumps(reader)).getDefaultReadLimit() == ReadMinRows(40)


def test_a_checkpoint_with_other_topics_is_reported_once(
    stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture
) -> None:
    query = stream()
    query.trigger()
    assert "the checkpoint" not in caplog.text
    query.restart()
    query.reached = {A: 20, QueueId("U", "broker-a", 0): 5, QueueId("U", "broker-a", 1): 6}
    for _ in range(2):
        assert query.trigger() == {A: 50, QueueId("U", "broker-a", 0): 5, QueueId("U", "broker-a", 1): 6}
    says = "the checkpoint holds the place of 2 queues that the options do not name, the first is queue 0 of topic U at"
    assert caplog.text.count(says) == 1


def test_offsets_of_another_source(stream: Callable[..., Stream]) -> None:
    reader = stream().reader
    with pytest.raises(SourceError, match=r'the checkpoint holds {"orders": {"0": 12}}, and no offsets of this source'):
        reader.latestOffset({"orders": {"0": 12}}, ReadAllAvailable())
    with pytest.raises(SourceError, match="start with a new checkpoint"):
        reader.partitions({}, {"logOffset": 5})


@pytest.mark.parametrize("value", ["5", None, 1.5, True, -1, 2**63, {"x": 1}])
def test_a_value_in_a_checkpoint_that_is_no_offset(stream: Callable[..., Stream], value: object) -> None:
    reader = stream().reader
    bad: dict[str, Any] = {"T": {"broker-a": {"0": value}}}
    said = re.escape(f"the checkpoint holds the offset {json.dumps(value)} of queue 0 of topic T at broker-a")
    with pytest.raises(SourceError, match=said):
        reader.latestOffset(bad, ReadAllAvailable())
    with pytest.raises(SourceError, match="Restore it, or start with a new checkpoint"):
        reader.partitions(tree_of({A: 5}), bad)
    with pytest.raises(SourceError, match=said):
        reader.partitions(tree_of({}), {**tree_of({A: 50}), NEW_FROM: bad})


def test_a_queue_id_in_a_checkpoint_that_is_none(stream: Callable[..., Stream]) -> None:
    with pytest.raises(SourceError, match="the offset 5 of queue -1 of topic T at broker-a, and offsets and queue ids"):
        stream().reader.latestOffset({"T": {"broker-a": {"-1": 5}}}, ReadAllAvailable())


def test_an_offset_that_was_not_committed_is_committed_later_without_new_messages(
    stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture
) -> None:
    query = stream(consumerGroup="g")
    tried: list[tuple[int, int]] = []
    away = {B.queue_id}

    async def commit(queue: MessageQueue, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        tried.append((queue.queue_id, offset))
        if queue.queue_id in away:
            raise ConnectFailed("commit", address="broker:1")

    query.cluster.commit = commit  # type: ignore[attr-defined]
    query.cluster.add_queue(B, 7)
    query.reached = {A: 50, B: 7}
    query.trigger()
    query.trigger(after_s=COMMIT_AGAIN_S - 1)
    assert sorted(tried) == [(A.queue_id, 50), (B.queue_id, 7)]
    query.trigger(after_s=1)
    query.trigger()
    away.clear()
    query.trigger(after_s=COMMIT_AGAIN_S)
    query.trigger(after_s=COMMIT_AGAIN_S)
    assert tried[2:] == 2 * [(B.queue_id, 7)]
    assert [each.message.count("are not committed") for each in caplog.records] == [1, 1]


def test_an_offset_is_committed_later_although_others_fail_at_each_trigger(stream: Callable[..., Stream]) -> None:
    """As those of a master that is away for long, whose slave is read."""
    query = stream(consumerGroup="g")
    committed: list[tuple[int, int]] = []
    away = {A.queue_id, B.queue_id}

    async def commit(queue: MessageQueue, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        if queue.queue_id in away:
            raise ConnectFailed("commit", address="broker:1")
        committed.append((queue.queue_id, offset))

    query.cluster.commit = commit  # type: ignore[attr-defined]
    query.cluster.add_queue(B, 7)
    query.reached = {A: 50, B: 7}
    query.trigger()
    away.discard(B.queue_id)
    for number in range(1, 5):
        query.cluster.add_queue(A, 50 + number)
        query.reached[A] = 50 + number
        query.trigger(after_s=COMMIT_AGAIN_S / 2)
    assert committed == [(B.queue_id, 7)]
