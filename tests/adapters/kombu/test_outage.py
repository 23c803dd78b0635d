"""The transport of Kombu while not all brokers answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from kombu.transport.virtual import Channel

import triomq
import triomq_adapters.kombu  # noqa: F401 - makes the transport known
from triomq.admin import GroupProgress
from triomq_protocol.requests import OffsetWrapper, TopicOffset

Q0 = triomq.MessageQueue("jobs", "broker-a", 0)
COMMITTED = {Q0: OffsetWrapper(broker_offset=7, consumer_offset=3, last_timestamp=0)}
OUTAGE = {"broker-b": "no answer in time"}


class Groups:
    """The progress of the workers, and what was reset."""

    def __init__(self, progress: GroupProgress | triomq.MQError) -> None:
        self.answer = progress
        self.resets: list[str] = []
        self.END = -1

    def progress(self, _group: str, _topic: str) -> GroupProgress:
        if isinstance(self.answer, triomq.MQError):
            raise self.answer
        return self.answer

    def reset(self, _group: str, topic: str, _time_ms: int, *, new_group: bool) -> None:
        self.resets.append(topic)


def channel_of(groups: Groups, stats: Any = None, brokers: tuple[str, ...] = ("broker-a", "broker-b")) -> Any:
    """A channel with the durable queue `jobs`, which these brokers have, over a client of these answers."""
    transport: Any = Connection("rocketmq://127.0.0.1:9876/").transport
    table = {Q0: TopicOffset(min_offset=2, max_offset=7)} if stats is None else stats
    answer = SimpleNamespace(offset_table=table, without_master={}, refused={})
    route = SimpleNamespace(broker_datas=[SimpleNamespace(broker_name=name) for name in brokers])
    admin = SimpleNamespace(topic_stats=lambda _topic: answer, route=lambda _topic: route)
    transport._client = SimpleNamespace(groups=groups, admin=admin)
    transport.declared.add("jobs")
    channel: Any = transport.create_channel(transport)
    channel.exchange_declare("work", "direct")
    channel.queue_bind("jobs", "work", "jobs")
    return channel


UNKNOWN = [
    GroupProgress({}, OUTAGE),
    GroupProgress(COMMITTED, OUTAGE),
    GroupProgress(COMMITTED, {}, {"broker-b": "b:1 refuses"}),
    triomq.errors.NoNameServer("no name server answers"),
]


@pytest.mark.parametrize("progress", UNKNOWN, ids=["none", "some", "refused", "no name server"])
def test_an_unknown_size_is_not_zero(progress: Any) -> None:
    groups = Groups(progress)
    channel = channel_of(groups)
    with pytest.raises(triomq.MQError) as caught:
        channel.queue_declare("jobs", passive=True)
    assert isinstance(caught.value, channel.connection.connection_errors), "Kombu tries it again"
    with pytest.raises(triomq.MQError):
        channel.queue_delete("jobs", if_empty=True)
    assert not groups.resets
    # Each sender declares its queue: that does not fail, since other brokers may take its message.
    assert channel.queue_declare("jobs").message_count == 0


@pytest.mark.parametrize(
    ("progress", "size"),
    [(GroupProgress(COMMITTED, {}), 4), (GroupProgress({}, {}), 5)],
    ids=["committed", "no worker yet"],
)
def test_a_known_size(progress: GroupProgress, size: int) -> None:
    groups = Groups(progress)
    channel = channel_of(groups)
    for passive in (False, True):
        assert channel.queue_declare("jobs", passive=passive).message_count == size
    channel.queue_delete("jobs", if_empty=True)
    assert not groups.resets
    channel.queue_delete("jobs")
    assert groups.resets == ["jobs"]


@pytest.mark.parametrize(
    ("progress", "size"),
    [
        (GroupProgress(COMMITTED, OUTAGE), 4),
        (GroupProgress(COMMITTED, {}, {"broker-b": "b:1 refuses"}), 4),
        (GroupProgress({}, OUTAGE), 5),
    ],
    ids=["no master", "refused", "no worker yet"],
)
def test_only_the_brokers_of_a_queue_count(progress: GroupProgress, size: int) -> None:
    groups = Groups(progress)
    channel = channel_of(groups, brokers=("broker-a",))
    assert channel.queue_declare("jobs", passive=True).message_count == size
    channel.queue_delete("jobs", if_empty=True)
    assert not groups.resets


def test_a_broker_with_messages_counts_although_the_route_lacks_it() -> None:
    """The offsets of a slave are older than those of its master."""
    channel = channel_of(
        Groups(GroupProgress(COMMITTED, {"broker-a": "no master is registered"})), brokers=("broker-b",)
    )
    with pytest.raises(triomq.errors.BrokerNotFound):
        channel.queue_declare("jobs", passive=True)


def test_an_empty_queue_is_deleted() -> None:
    groups = Groups(GroupProgress({}, {}))
    channel = channel_of(groups, {})
    assert isinstance(channel, Channel)
    channel.queue_delete("jobs", if_empty=True)
    assert groups.resets == ["jobs"]
