"""Queues that a stream meets in the middle: they are read from the message that was the first when they were met, or not
read to the end without an error."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from fake_stream import A, FakeStream, lent
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_rocketmq.errors import DataLoss
from pyspark_rocketmq.offsets import QueueId, offsets_of
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.read.lag import lag_of
from pyspark_rocketmq.read.stream_reader import StreamReader
from pyspark_rocketmq.rows.schema import READ_SCHEMA

B = QueueId("T", "broker-b", 0)


class Stream(FakeStream):
    """A streaming read of one queue, whose offsets go through JSON, as Spark keeps them."""

    def __init__(self, **options: str) -> None:
        super().__init__()
        self._options = read_options({"namesrv": "n:1", "topic": "T", **options}, streaming=True)
        self.reader = StreamReader(self._options, READ_SCHEMA)
        self.reached = json.dumps({"T": {"broker-a": {"0": 50}}})

    def restart(self) -> None:
        self.reader = StreamReader(self._options, READ_SCHEMA)

    def plan(self) -> str:
        """The end of the next trigger."""
        return json.dumps(self.reader.latestOffset(json.loads(self.reached), ReadAllAvailable()))

    def ranges(self, end: str) -> dict[QueueId, tuple[int, int]]:
        """What the tasks up to there read."""
        parts = [each.part for each in self.reader.partitions(json.loads(self.reached), json.loads(end))]  # type: ignore[attr-defined]
        return {part.queue: (part.start, part.end) for part in parts}


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stream]:
    return lent(monkeypatch, Stream)


def delete(query: Stream, queue: QueueId, start: int, *, known: bool = True) -> None:
    """Delete messages; brokers note that in the queue later."""
    part = query.cluster.parts[queue]
    part.deleted = start
    part.start = start if known else part.start


@pytest.mark.parametrize("first", [0, 5])
def test_messages_deleted_before_a_replay_are_data_loss(stream: Callable[..., Stream], first: int) -> None:
    query = stream()
    query.cluster.add_queue(B, 20)
    delete(query, B, first)
    end = query.plan()
    assert query.ranges(end) == {B: (first, 20)}
    delete(query, B, 8)
    query.restart()
    with pytest.raises(DataLoss, match=rf"offsets {first} to 8 of queue 0 of topic T at broker-b are gone"):
        query.ranges(end)


def test_all_of_them_deleted(stream: Callable[..., Stream]) -> None:
    query = stream()
    query.cluster.add_queue(B, 20)
    end = query.plan()
    delete(query, B, 20)
    query.restart()
    with pytest.raises(DataLoss, match="offsets 0 to 20"):
        query.ranges(end)


def test_data_loss_may_be_logged(stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture) -> None:
    query = stream(failOnDataLoss="false")
    query.cluster.add_queue(B, 20)
    end = query.plan()
    delete(query, B, 8)
    with caplog.at_level(logging.WARNING):
        assert query.ranges(end) == {B: (8, 20)}
    assert "offsets 0 to 8" in caplog.text


def test_what_was_deleted_before_the_queue_was_met_is_not_missed(stream: Callable[..., Stream]) -> None:
    query = stream()
    query.cluster.add_queue(B, 20)
    delete(query, B, 8, known=False)
    end = query.plan()
    delete(query, B, 8)
    query.restart()
    assert query.ranges(end) == {B: (8, 20)}


def test_offsets_keep_their_form_where_a_queue_starts_at_0(stream: Callable[..., Stream]) -> None:
    query = stream()
    query.cluster.add_queue(B, 20)
    assert query.plan() == '{"T": {"broker-a": {"0": 50}, "broker-b": {"0": 20}}}'


def test_a_new_queue_makes_one_trigger(stream: Callable[..., Stream]) -> None:
    query = stream()
    query.cluster.add_queue(B, 20)
    delete(query, B, 5)
    end = query.plan()
    assert offsets_of(json.loads(end)) == {A: 50, B: 20}
    query.reached = end
    assert query.plan() == end, "Spark runs a trigger when the text is another one"
    query.cluster.append(B, 1)
    assert query.plan() == '{"T": {"broker-a": {"0": 50}, "broker-b": {"0": 21}}}'
    assert query.ranges(query.plan()) == {B: (20, 21)}


def test_the_lag_is_known_meanwhile(stream: Callable[..., Stream]) -> None:
    query = stream()
    query.cluster.add_queue(B, 20)
    delete(query, B, 5)
    end = query.plan()
    query.cluster.append(B, 3)
    assert lag_of(end, json.dumps(query.reader.reportLatestOffset())) == {B: 3}
