"""The meaning of the cluster's answers, and a query's distance from the end."""

from __future__ import annotations

import json
import logging
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

pytest.importorskip("pyspark")

from fake_cluster import T0_MS, FakeCluster, stored_ms

from pyspark_rocketmq.clients import Session, borrowed
from pyspark_rocketmq.errors import BadOption, BrokersAway, DataLoss, SourceError, nearest
from pyspark_rocketmq.offsets import QueueId, tree_of
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.read.bounds import check_brokers, existing_starts, kept_starts, plan_batch
from pyspark_rocketmq.read.cluster_view import AWAY_LIMIT_S, data_topics, find_queues, offsets_at, row_bytes
from pyspark_rocketmq.read.lag import lag_of
from pyspark_rocketmq.read.planning import Bounds, QueueRange
from pyspark_rocketmq.read.stream_reader import reachable
from pyspark_rocketmq.read.task import key_of
from triomq import MessageQueue, PullResult, ReadPreference
from triomq.errors import RouteNotFound, TopicNotFound
from triomq_protocol.requests.route import BrokerData, QueueData, TopicRouteData

A, B, C = (QueueId("T", "broker-a", number) for number in range(3))


def test_topics_without_data_never_match_a_pattern() -> None:
    topics = [
        "orders", "orders_eu", "%RETRY%orders", "%DLQ%orders", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_SYNC_BROKER_MEMBER_a",
        "SCHEDULE_TOPIC_XXXX", "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "broker-a",
        "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    ]  # fmt: skip
    assert data_topics(topics, ["broker-a", "DefaultCluster"], ".*") == ["orders", "orders_eu"]
    assert data_topics(topics, [], "orders") == ["orders"], "the whole name has to match"


def test_a_start_whose_messages_were_deleted() -> None:
    bounds = {A: Bounds(10, 50), B: Bounds(0, 50)}
    with pytest.raises(DataLoss, match="offsets 3 to 10 of queue 0"):
        kept_starts({A: 3, B: 3}, bounds, {A: 50, B: 50}, fail=True)
    assert kept_starts({A: 3, B: 3}, bounds, {A: 50, B: 50}, fail=False) == {A: 10, B: 3}
    assert kept_starts({A: 3}, bounds, {A: 3}, fail=True) == {A: 3}, "nothing was to be read there"


def test_a_start_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    bounds = {A: Bounds(0, 50), B: Bounds(0, 50)}
    with pytest.raises(
        DataLoss, match=r"startingOffsets asks for queue 0 .* from 51, and it ends at 50; start earlier"
    ):
        existing_starts({A: 51, B: 3}, bounds, fail=True)
    assert existing_starts({A: 50, B: 3}, bounds, fail=True) == {A: 50, B: 3}
    with caplog.at_level(logging.WARNING):
        assert existing_starts({A: 51, B: 3}, bounds, fail=False) == {A: 50, B: 3}
    assert "ends at 50; starting at its end" in caplog.text
    # A slave that is behind says nothing about the end.
    assert existing_starts({A: 51}, {A: Bounds(0, 50, is_sure=False)}, fail=True) == {A: 51}


async def planned(deleted: int = 0, **options: str) -> list[QueueRange]:
    cluster = FakeCluster(random.Random(0))
    cluster.add_queue(A, 50)
    cluster.parts[A].deleted = deleted
    session = Session(SimpleNamespace(admin=cluster), None, cluster)  # type: ignore[arg-type]
    return await plan_batch(session, read_options({"namesrv": "n:1", **options}, streaming=False))


async def test_tasks_of_a_batch_are_cut_by_their_offsets() -> None:
    parts = await planned(topic="T", startingOffsets=json.dumps(tree_of({A: 5})), maxRecordsPerPartition="20")
    assert parts == [QueueRange(A, 5, 20), QueueRange(A, 20, 35), QueueRange(A, 35, 50)]


async def test_the_earliest_message_is_one_that_exists() -> None:
    # Brokers delete messages first, and their entries in queues later.
    assert await planned(30, topic="T") == [QueueRange(A, 30, 50)]
    assert await planned(30, topic="T", startingOffsets=json.dumps(tree_of({A: -2}))) == [QueueRange(A, 30, 50)]
    assert await planned(50, topic="T") == []
    assert await planned(45, topic="T", startingTimestamp=str(stored_ms(7))) == [QueueRange(A, 45, 50)]
    assert await planned(30, topic="T", startingOffsets=json.dumps(tree_of({A: 0}))) == [QueueRange(A, 0, 50)]


@pytest.mark.parametrize("deleted", [30, 50])
async def test_what_a_slave_has_deleted_is_planned_if_the_master_has_it(deleted: int) -> None:
    cluster = FakeCluster(random.Random(0))
    cluster.add_queue(A, 50)
    cluster.parts[A].slave_deleted = deleted
    cluster.prefers_slaves = True
    of_slave = [QueueRange(A, deleted, 50)] if deleted < 50 else []

    async def found(*, admits_masters: bool = True, **options: str) -> list[QueueRange]:
        session = Session(SimpleNamespace(admin=cluster), None, cluster, None, admits_masters)  # type: ignore[arg-type]
        return await plan_batch(session, read_options({"namesrv": "n:1", "topic": "T", **options}, streaming=False))

    assert await found() == [QueueRange(A, 0, 50)]
    assert await found(startingTimestamp=str(stored_ms(7))) == [QueueRange(A, 6, 50)], "6 to 8 are of one time"
    assert await found(admits_masters=False) == of_slave
    # The master is away.
    cluster.dead.add(A.broker_name)
    assert await found(endingOffsets=json.dumps(tree_of({A: 50}))) == of_slave


class NewTopic(FakeCluster):
    """Its slaves do not have the topic yet."""

    async def pull(
        self, queue: MessageQueue, offset: int, *, read_preference: ReadPreference | None = None, **options: Any
    ) -> PullResult:
        if read_preference is not ReadPreference.MASTER:
            raise TopicNotFound("pull", address="s:1")
        return await super().pull(queue, offset, read_preference=read_preference, **options)


async def test_a_read_is_planned_while_a_slave_lacks_the_topic() -> None:
    cluster = NewTopic(random.Random(0))
    cluster.add_queue(A, 50)
    session = Session(SimpleNamespace(admin=cluster), None, cluster)  # type: ignore[arg-type]
    for start in ({}, {"startingTimestamp": str(T0_MS)}):
        options = read_options({"namesrv": "n:1", "topic": "T", **start}, streaming=False)
        assert await plan_batch(session, options) == [QueueRange(A, 0, 50)]


@pytest.mark.parametrize("kind", [FakeCluster, NewTopic])
async def test_the_size_of_rows_is_that_of_the_master(kind: type[FakeCluster]) -> None:
    cluster = kind(random.Random(0))
    cluster.add_queue(A, 50)
    cluster.parts[A].slave_deleted = 50
    cluster.prefers_slaves = True
    session = Session(SimpleNamespace(admin=cluster), None, cluster)  # type: ignore[arg-type]
    assert (await row_bytes(session, {A: 0}, {A: Bounds(0, 50)}))[A] > len(cluster.parts[A].rows[0]["body"])


async def test_a_batch_fails_where_a_required_broker_is_away() -> None:
    assert await planned(topic="T", requiredBrokers="broker-a") == [QueueRange(A, 0, 50)]
    with pytest.raises(BrokersAway, match=r"names broker-b, .* no queue of topic T there.* Queues are at broker-a;"):
        await planned(topic="T", requiredBrokers="broker-a, broker-b")
    with pytest.raises(BrokersAway, match=r"names broker-b, .* topic T"):
        await planned(subscribePattern="T.*", requiredBrokers="broker-b,broker-a")
    with pytest.raises(BrokersAway, match="names broker-a, and no topic was found"):
        await planned(subscribePattern="Tx.*", requiredBrokers="broker-a")


def test_each_topic_needs_every_required_broker() -> None:
    queues = [A, QueueId("T", "broker-b", 0), QueueId("U", "broker-b", 0)]
    check_brokers(frozenset({"broker-b"}), ("T", "U"), queues)
    check_brokers(frozenset(), ("T", "U", "V"), queues)
    with pytest.raises(BrokersAway, match=r"names broker-a, .* topic U "):
        check_brokers(frozenset({"broker-a"}), (), queues)
    with pytest.raises(BrokersAway, match=r"topic V there: .* Queues are at no broker;"):
        check_brokers(frozenset({"broker-b"}), ("T", "U", "V"), queues)


async def test_a_batch_that_can_have_no_rows_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    beyond = json.dumps(tree_of({A: 99}))
    with pytest.raises(DataLoss, match="from 99, and it ends at 50"):
        await planned(topic="T", startingOffsets=beyond)
    with caplog.at_level(logging.WARNING):
        assert await planned(topic="T", startingOffsets=beyond, failOnDataLoss="false") == []
        assert "starting at its end" in caplog.text
        assert await planned(topic="T", startingOffsets="latest", endingOffsets=json.dumps(tree_of({A: 7}))) == []
        assert "start after their end: queue 0 of topic T at broker-a from 50 to 7" in caplog.text
        assert await planned(subscribePattern="Tx.*") == []
        assert "subscribePattern 'Tx.*' matches no topic of n:1" in caplog.text
        caplog.clear()
        assert await planned(subscribePattern="T.*") == [QueueRange(A, 0, 50)]
        assert caplog.text == ""


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        # Three messages are stored in each ms.
        ({"startingTimestamp": "T+4"}, {A: (12, 50), B: (12, 20), C: (0, 0)}),
        ({"endingTimestamp": "T+4"}, {A: (0, 12), B: (0, 12), C: (0, 0)}),
        ({"startingOffsetsByTimestamp": {A: 4}}, {A: (12, 50), B: (0, 20), C: (0, 0)}),
        ({"endingOffsetsByTimestamp": {A: 4}}, {A: (0, 12), B: (0, 20), C: (0, 0)}),
        (
            {"startingOffsetsByTimestamp": {A: 2, B: 3}, "endingOffsetsByTimestamp": {A: 5, B: 3, C: 3}},
            {A: (6, 15), B: (9, 9), C: (0, 0)},
        ),
        # Too young for the second queue: it starts at its end, by default and with the strategy `latest`.
        ({"startingTimestamp": "T+7"}, {A: (21, 50), B: (20, 20), C: (0, 0)}),
        (
            {"startingOffsetsByTimestamp": {B: 7}, "startingOffsetsByTimestampStrategy": "latest"},
            {A: (0, 50), B: (20, 20), C: (0, 0)},
        ),
        (
            {"startingOffsetsByTimestamp": {A: 7, B: 6}, "startingOffsetsByTimestampStrategy": "error"},
            {A: (21, 50), B: (18, 20), C: (0, 0)},
        ),
        ({"endingTimestamp": "T+7"}, {A: (0, 21), B: (0, 20), C: (0, 0)}),
    ],
)
async def test_times_become_offsets(
    options: dict[str, object], ranges: dict[QueueId, tuple[int, int]], seed: int
) -> None:
    session = three_queues(seed)
    parts = await plan_batch(session, read_options({"namesrv": "n:1", "topic": "T", **texts(options)}, streaming=False))
    assert {part.queue: (part.start, part.end) for part in parts} == {
        queue: span for queue, span in ranges.items() if span[0] < span[1]
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"startingTimestamp": "T+6"},
            "queue 2 of topic T at broker-a has no message stored at 2023-11-14T22:13:20.006Z",
        ),
        ({"startingTimestamp": "T+7"}, "queue 1 .* or later, and 1 more queues have none; start earlier"),
        ({"startingOffsetsByTimestamp": {A: 7, B: 7}}, "queue 1 .* or set startingOffsetsByTimestampStrategy=latest"),
    ],
)
async def test_a_start_without_a_message_that_young_can_be_an_error(options: dict[str, object], says: str) -> None:
    given = {"namesrv": "n:1", "topic": "T", **texts(options), "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(BadOption, match=says):
        await plan_batch(three_queues(0), read_options(given, streaming=False))


async def test_a_time_for_a_queue_that_is_not_read() -> None:
    other = QueueId("T", "broker-a", 9)
    given = {"namesrv": "n:1", "topic": "T", **texts({"endingOffsetsByTimestamp": {other: 7}})}
    with pytest.raises(
        BadOption, match=r"endingOffsetsByTimestamp gives a time for queue 9 .* does not exist, .* brokers are away"
    ):
        await plan_batch(three_queues(0), read_options(given, streaming=False))


@pytest.mark.parametrize("seed", range(20))
async def test_a_message_that_came_after_the_bounds_starts_nothing(seed: int) -> None:
    session = three_queues(seed)
    assert await offsets_at(session, {A: Bounds(0, 40)}, {A: T0_MS + 14}) == {A: None}
    assert await offsets_at(session, {A: Bounds(0, 40)}, {A: T0_MS + 13}) == {A: 39}


def three_queues(seed: int) -> Session:
    """Queues of 50, 20 and no messages."""
    cluster = FakeCluster(random.Random(seed))
    for queue, count in ((A, 50), (B, 20), (C, 0)):
        cluster.add_queue(queue, count)
    return Session(SimpleNamespace(admin=cluster), None, cluster)  # type: ignore[arg-type]


def texts(options: dict[str, object]) -> dict[str, str]:
    """Options whose times count from the first message."""
    return {
        name: json.dumps(tree_of({queue: T0_MS + after_ms for queue, after_ms in value.items()}))
        if isinstance(value, dict)
        else re.sub(r"^T\+(\d+)$", lambda found: str(T0_MS + int(found[1])), str(value))
        for name, value in options.items()
    }


def test_ends_of_a_trigger(caplog: pytest.LogCaptureFixture) -> None:
    bounds = {A: Bounds(0, 50), B: Bounds(0, 7)}
    assert reachable({A: 20}, bounds, None, fail=True) == {A: 50, B: 7}
    assert reachable({A: 20}, bounds, {A: 30}, fail=True) == {A: 30, B: 0}, "what is new since then has to wait"
    assert reachable({A: 60}, bounds, {A: 30}, fail=False)[A] == 50
    # A slave that is behind says nothing about the end.
    assert reachable({A: 60}, {A: Bounds(0, 50, is_sure=False)}, None, fail=True) == {A: 60}
    with pytest.raises(DataLoss, match="ends at 50, before offset 60"):
        reachable({A: 60}, bounds, None, fail=True)
    with caplog.at_level(logging.WARNING):
        assert reachable({A: 60}, bounds, None, fail=False)[A] == 50
    assert "going on at its end" in caplog.text


def test_lag() -> None:
    reached, latest = json.dumps(tree_of({A: 40})), json.dumps(tree_of({A: 50, B: 7}))
    assert lag_of(reached, latest) == {A: 10, B: 7}
    assert lag_of(latest, latest) == {}
    for other in (None, "", "5", "[1]", '{"topic": {"0": 5}}', "x"):
        assert lag_of(other, latest) is None
    for value in ('"x"', "null", "[1]", "1.5", "true"):
        text = f'{{"t": {{"b": {{"0": {value}}}}}}}'
        assert lag_of(text, text) is None


def test_nearest_names() -> None:
    assert nearest("namesvr", ["namesrv", "topic"]) == "; did you mean namesrv?"
    assert nearest("quite other", ["namesrv", "topic"]) == ""


@pytest.mark.parametrize(("options", "limit_s"), [({}, 60.0), ({"rocketmq.route_wait_s": "90"}, 150.0)])
def test_planning_waits_for_routes_as_long_as_the_client(options: dict[str, str], limit_s: float) -> None:
    key = key_of(read_options({"namesrv": "127.0.0.1:1", "topic": "T", **options}, streaming=True))
    with borrowed(key) as client:
        assert client.session.plan_limit_s == limit_s
        client.close()


async def test_brokers_that_never_answer_are_given_up(autojump_clock: trio.testing.MockClock) -> None:
    class Silent:
        async def route(self, _topic: str) -> None:
            await trio.sleep_forever()

    session = Session(SimpleNamespace(admin=Silent()), None, None, 90.0)  # type: ignore[arg-type]
    start = trio.current_time()
    with pytest.raises(SourceError, match="have not answered within 150 s"):
        await find_queues(session, read_options({"namesrv": "h:1", "topic": "T"}, streaming=True).topics)
    assert trio.current_time() - start == pytest.approx(150.0)


class RestartedCluster:
    """Topic T is on broker-b alone, which is away for some time, and T2 on both brokers."""

    name_servers = ("n:1",)

    def __init__(self, away_s: float) -> None:
        self._away_s = away_s
        self.admin = self

    async def topics(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["T2"]

    async def route(self, topic: str) -> TopicRouteData:
        await trio.lowlevel.checkpoint()
        names = [*["broker-a"] * (topic == "T2"), *["broker-b"] * (trio.current_time() >= self._away_s)]
        if not names:
            raise RouteNotFound(f"no route to topic {topic}")
        return TopicRouteData(
            broker_datas=[BrokerData(broker_name=name, broker_addrs={0: "m:1"}) for name in names],
            queue_datas=[QueueData(broker_name=name, read_queue_nums=1, perm=6) for name in names],
        )


WHOLE = {"topic": ({"topic": "T"}, r"know no topic 'T'; did you mean T2\?; create it, .*rocketmq.route_wait_s"),
         "assign": ({"assign": '{"T2": {"broker-a": [0], "broker-b": [0]}}'},
                    "assign names queue 0 of topic T2 at broker-b, which does not exist, .*rocketmq.route_wait_s")}  # fmt: skip


@pytest.mark.parametrize("what", WHOLE)
@pytest.mark.parametrize(
    ("route_wait_s", "was_there", "waits_s"),
    [(60.0, False, 60.0), (60.0, True, 60.0), (0.0, True, 0.0), (None, True, AWAY_LIMIT_S), (None, False, 0.0)],
)
async def test_a_topic_whose_brokers_restart_is_waited_for(
    autojump_clock: trio.testing.MockClock, what: str, route_wait_s: float | None, was_there: bool, waits_s: float
) -> None:
    option, says = WHOLE[what]
    topics = read_options({"namesrv": "h:1", **option}, streaming=True).topics

    async def found(away_s: float) -> dict[QueueId, bool]:
        session = Session(RestartedCluster(trio.current_time() + away_s), None, None, route_wait_s)  # type: ignore[arg-type]
        return await find_queues(session, topics, was_there=was_there)

    if waits_s:
        assert [queue.broker_name for queue in await found(waits_s - 1.5)][-1] == "broker-b"
        assert waits_s - 1.5 <= trio.current_time() <= waits_s
    start_s = trio.current_time()
    with pytest.raises(BadOption, match=says):
        await found(waits_s + 1.5)
    assert trio.current_time() - start_s == pytest.approx(waits_s)


async def test_only_assigned_queues_are_read(autojump_clock: trio.testing.MockClock) -> None:
    options = read_options({"namesrv": "h:1", "assign": '{"T2": {"broker-b": [0]}}'}, streaming=True)
    session = Session(RestartedCluster(0.0), None, None, 0.0)  # type: ignore[arg-type]
    assert await find_queues(session, options.topics) == {QueueId("T2", "broker-b", 0): True}
