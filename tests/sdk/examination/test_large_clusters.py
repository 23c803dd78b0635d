"""The doctor on a cluster with 10,000 topics and thousands of groups: requests are limited, and the limits named."""

from __future__ import annotations

import pytest
import trio

from triomq._admin import long_bodies
from triomq._examination.doctor import AT_ONCE, GROUPS_MAX, MEMBERS_MAX
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ConsumerConnection,
    ConsumeStatsList,
    GetConsumerConnectionListRequest,
    KVTable,
    MessageQueue,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.requests.group_admin import ClientConnection, ConsumeStats, OffsetWrapper
from triomq_protocol.requests.heartbeat import CONSUME_PASSIVELY
from triomq_protocol.requests.registration import TopicConfig

TOPICS = 10_000
MEMBERS_EACH = 2


class LargeBroker:
    """Gives a master of a FakeCluster the tables, and counts what it is asked at the same time."""

    def __init__(self, broker, groups: int, *, silent: bool = False, queues: int = 1, quote: bytes = b'"') -> None:
        self.groups = [f"G{n:05}" for n in range(groups)]
        self.asked: list[str] = []
        self.states = self.now = self.most = 0
        self.silent = silent
        self.queues = queues
        serve = broker.serve

        def answer(command):
            make = {
                RequestCode.GET_BROKER_RUNTIME_INFO: lambda: KVTable(table={"commitLogMaxOffset": "1"}),
                RequestCode.GET_ALL_TOPIC_CONFIG: self.topics,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.known_groups,
                RequestCode.GET_BROKER_CONSUME_STATS: self.progress,
            }.get(command.code)
            if make is not None:
                return command.answer(
                    0, body=make().encode().replace(b'"brokerOffset"', quote + b"brokerOffset" + quote)
                )
            if command.code in (RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_CONSUMER_RUNNING_INFO):
                return self.later(command)
            return serve(command)

        broker.serve = answer

    def topics(self):
        names = [f"T{n:05}" for n in range(TOPICS)]
        return TopicConfigTable(topic_config_table={name: TopicConfig(topic_name=name) for name in names})

    def known_groups(self):
        table = {name: SubscriptionGroupConfig(group_name=name) for name in self.groups}
        return SubscriptionGroupTable(subscription_group_table=table)

    def progress(self):
        """The later a group's name, the more it lags."""
        lists = []
        for n, name in enumerate(self.groups):
            queues = {
                MessageQueue("T00000", "broker-a", at): OffsetWrapper(broker_offset=n) for at in range(self.queues)
            }
            lists.append({name: [ConsumeStats(offset_table=queues)]})
        return ConsumeStatsList(consume_stats_list=lists)

    async def later(self, command):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await trio.sleep(1e6 if self.silent else 0.01)
        finally:
            self.now -= 1
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self.states += 1
            return command.answer(1, "the consumer is not online")
        group = command.header(GetConsumerConnectionListRequest).consumer_group
        self.asked.append(group)
        members = [ClientConnection(client_id=f"{group}-{n}", client_addr="h:1") for n in range(MEMBERS_EACH)]
        online = ConsumerConnection(connection_set=members, consume_type=CONSUME_PASSIVELY)
        return command.answer(0, body=online.encode())


@pytest.fixture(autouse=True)
def _answers_are_read_in_the_loop(monkeypatch):
    """A virtual clock does not see worker threads, and would pass all deadlines meanwhile."""
    monkeypatch.setattr(long_bodies, "SHORT_BODY_BYTES", 1 << 30)


async def left_out(client) -> str:
    return " ".join(each.what for each in await client.doctor.findings() if each.kind == "not_looked_at")


@pytest.mark.parametrize(("groups", "named"), [(1000, False), (GROUPS_MAX + 7, True)])
async def test_groups_and_members_with_the_most_lag_are_asked(autojump_clock, cluster, groups, named) -> None:
    large = LargeBroker(cluster.broker, groups)
    async with cluster.client() as client:
        text = await left_out(client)
    expected = min(groups, GROUPS_MAX)
    assert set(large.asked) == set(large.groups[-expected:])
    assert large.most <= AT_ONCE
    assert large.states == MEMBERS_MAX
    assert f"{expected * MEMBERS_EACH - MEMBERS_MAX} members of groups were not asked for their state." in text
    assert ("The members of 7 groups with little lag were not asked for." in text) == named


async def test_members_that_do_not_answer_cost_the_timeout_and_no_more(autojump_clock, cluster) -> None:
    large = LargeBroker(cluster.broker, 1000, silent=True)
    async with cluster.client() as client:
        start = trio.current_time()
        text = await left_out(client)
        took = trio.current_time() - start
    assert took == pytest.approx(30, abs=0.1)
    assert not large.asked
    assert "The cluster could not be looked at wholly within 30 s." in text


async def test_progress_that_is_too_long_to_be_read_is_named(autojump_clock, cluster) -> None:
    large = LargeBroker(cluster.broker, 1000, queues=80, quote=b"'")  # as no broker writes it
    async with cluster.client() as client:
        text = await left_out(client)
    assert "Broker broker-a:0" in text
    assert "does not report the progress of its groups" in text
    assert set(large.asked) == set(large.groups)
    assert "the answer has" in text
    assert "bytes, at most 4,194,304 are read of this form" in text


async def test_progress_names_what_has_been_looked_at(autojump_clock, cluster) -> None:
    large = LargeBroker(cluster.broker, 100)
    seen = []
    async with cluster.client() as client:
        await client.doctor.findings(progress=seen.append)
    by_kind = {kind: [each for each in seen if each.kind == kind] for kind in {each.kind: 0 for each in seen}}
    assert {kind: steps[0].total for kind, steps in by_kind.items()} == {
        "name servers": 1, "brokers": 1, "masters' groups": 1, "groups": 100, "members": 200,
    }  # fmt: skip
    for steps in by_kind.values():
        assert [each.done for each in steps] == list(range(steps[0].total + 1))
        assert steps[0].name == ""
    assert (
        {each.name for each in by_kind["groups"][1:]}
        == {each.name for each in by_kind["members"][1:]}
        == set(large.groups)
    )
