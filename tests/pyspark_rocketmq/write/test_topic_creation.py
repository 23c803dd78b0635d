"""Topics that a write creates."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

import trio
from trio.testing import MockClock

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.write.sending import cause_of
from pyspark_rocketmq.write.topic_creation import REGISTERED_LIMIT_S, TopicCreation
from triomq.errors import BrokerNotFound, BrokerUnavailable, MQError, RouteNotFound
from triomq_protocol.requests.route import QueueData, TopicRouteData


class Cluster:
    """Two masters, which register a topic after a while.

    Args:
        delay_s: how long that takes.
        failure: of the masters.
        outage: of the name server.
    """

    def __init__(self, *, delay_s: float = 0, failure: MQError | None = None, outage: MQError | None = None) -> None:
        self.topics: dict[str, dict[str, int]] = {}
        self.created: list[tuple[str, int]] = []
        self.looks = 0
        self._delay_s = delay_s
        self._failure = failure
        self._outage = outage

    async def route(self, topic: str) -> TopicRouteData:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        if self._outage is not None:
            raise self._outage
        brokers = self.topics.get(topic)
        if not brokers:
            raise RouteNotFound(f"no route to topic {topic}")
        return TopicRouteData(
            queue_datas=[QueueData(broker_name=name, write_queue_nums=queues) for name, queues in brokers.items()]
        )

    async def create_topic(self, topic: str, *, queues: int) -> list[str]:
        self.created.append((topic, queues))
        if self._failure is not None:
            raise self._failure
        for broker in ("broker-a", "broker-b"):
            await trio.sleep(self._delay_s)
            self.topics.setdefault(topic, {})[broker] = queues
        return ["a:1", "b:1"]


def creation(cluster: Any, queues: int | None = 4) -> Callable[[str], Awaitable[None]]:
    return functools.partial(TopicCreation(queues).ensure, cluster)


async def test_a_missing_topic_is_created_once_on_every_master() -> None:
    cluster = Cluster()
    topics = creation(cluster)
    await topics("T")
    looks = cluster.looks
    await topics("T")
    assert cluster.created == [("T", 4)]
    assert cluster.topics["T"] == {"broker-a": 4, "broker-b": 4}
    assert cluster.looks == looks, "asked once, not for each batch"
    await topics("U")
    assert cluster.created == [("T", 4), ("U", 4)], "topics may come from a column"


async def test_a_topic_that_exists_is_not_changed() -> None:
    cluster = Cluster()
    cluster.topics["T"] = {"broker-a": 1}
    await creation(cluster)("T")
    assert cluster.created == []


async def test_by_default_nothing_is_created() -> None:
    cluster = Cluster()
    await creation(cluster, None)("T")
    assert (cluster.created, cluster.looks) == ([], 0)


async def test_tasks_that_race_give_the_same_topic(autojump_clock: MockClock) -> None:
    cluster = Cluster(delay_s=0.5)
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(creation(cluster), "T")
            await trio.sleep(0.1 * number)
    assert cluster.topics["T"] == {"broker-a": 4, "broker-b": 4}
    assert set(cluster.created) == {("T", 4)}


class SlowNameServer(Cluster):
    """Knows a topic of its second master late, or never."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self._after_s = after_s

    async def route(self, topic: str) -> TopicRouteData:
        data = await super().route(topic)
        if trio.current_time() < self._after_s:
            del (data.queue_datas or [])[1:]
        return data


async def test_rows_wait_until_all_masters_are_registered(autojump_clock: MockClock) -> None:
    await creation(SlowNameServer(trio.current_time() + 3))("T")
    assert trio.current_time() >= 3
    with pytest.raises(WriteFailed, match="2 masters have created topic U, and the name servers do not know it of all"):
        await creation(SlowNameServer(trio.current_time() + REGISTERED_LIMIT_S + 1))("U")


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (Cluster(failure=BrokerUnavailable("create topic T", address="b:1")), "createTopic: BrokerUnavailable: create"),
        (Cluster(outage=BrokerNotFound("no broker is registered")), "createTopic: BrokerNotFound: .*cluster-status"),
    ],
)
async def test_a_failure_reports_that_nothing_was_sent(cluster: Cluster, says: str) -> None:
    with pytest.raises(WriteFailed, match=f"{says}.*no row was sent to topic T"):
        await creation(cluster)("T")


def test_the_error_for_a_missing_topic_names_the_option() -> None:
    assert cause_of(RouteNotFound("no route to topic T")).endswith(
        "(the option createTopic=true creates the topic, with queues on every master)"
    )
    assert "createTopic" not in cause_of(BrokerNotFound("no broker is registered"))
