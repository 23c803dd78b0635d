"""Offsets of many queues are sent together; those that a broker refuses keep none of the others back."""

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors
from triomq._cluster.broker_offsets import AT_ONCE, OFFSET_TIMEOUT_S, BrokerOffsets
from triomq._consumer.group.positions import END_TIMEOUT_S, PERSIST_ALL_S
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.offset import UpdateConsumerOffsetRequest


@pytest.fixture
def deleted_topic(group_cluster):
    """Topic A, of which the broker takes no offset any more, as one of RocketMQ 5 after the topic was deleted."""
    broker = group_cluster.broker
    group_cluster.name_server.add_route("A", broker)
    update = broker.update_offset

    def refuse(command):
        if command.header(UpdateConsumerOffsetRequest).topic == "A" and group_cluster.is_deleted:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, "the topic A not exist")
        return update(command)

    group_cluster.is_deleted = False
    broker.update_offset = refuse
    return group_cluster


@pytest.mark.parametrize("has_route", [True, False])
async def test_a_topic_that_was_deleted(autojump_clock, deleted_topic, caplog, has_route):
    async with (
        deleted_topic.client() as client,
        client.lite_pull_consumer("G", start_from="earliest") as consumer,
    ):
        await consumer.subscribe("A")
        await consumer.subscribe("T")
        await until(lambda: len(consumer.assignment) == 4)
        deleted_topic.is_deleted = True
        if not has_route:
            del deleted_topic.name_server.routes["A"]
        for topic in ("A", "T"):
            deleted_topic.broker.store(topic, 0, b"m")
        polled = 0
        while polled < 2:
            polled += len(await consumer.poll())
        await consumer.poll(1.0)
        await trio.sleep(60)
        assert deleted_topic.broker.offsets["G", "T", 0] == 1
        with pytest.raises(errors.MQError, match="topic A"):
            await consumer.commit({triomq.MessageQueue("A", "broker-a", 0): 1})
    assert "offsets could not be persisted" in caplog.text
    requests = deleted_topic.broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert len(requests) < 100


@pytest.mark.parametrize("has_route", [True, False])
async def test_what_was_stored_is_not_sent_again(autojump_clock, deleted_topic, has_route):
    """Each five seconds the refused offset is sent, and not those of the topic's and the broker's other queues."""
    broker = deleted_topic.broker
    async with (
        deleted_topic.client() as client,
        client.lite_pull_consumer("G", start_from="earliest") as consumer,
    ):
        await consumer.assign([triomq.MessageQueue(topic, "broker-a", 0) for topic in ("A", "T")])
        deleted_topic.is_deleted = True
        if not has_route:
            del deleted_topic.name_server.routes["A"]
        for topic in ("A", "T"):
            broker.store(topic, 0, b"m")
        polled = 0
        while polled < 2:
            polled += len(await consumer.poll())
        await consumer.poll(0.0)
        await trio.sleep(120)
        assert broker.consumers.commits.count(("G", "T", 0, 1)) <= 120 / PERSIST_ALL_S + 1


class Distant:
    """The link to brokers whose answers take 60 ms: those of `silent` never answer, and `refused` is refused.

    Attributes:
        sent: the number of the queue in each request.
        most: the most requests that waited for an answer together.
    """

    address = "b:1"

    def __init__(self, *, silent: str = "", refused: int | None = None) -> None:
        self.sent: list[int] = []
        self.waiting: set[int] = set()
        self.most = 0
        self._silent = silent
        self._refused = refused

    async def of(self, _queue, *, only_master=False):
        assert only_master
        await trio.lowlevel.checkpoint()
        return self

    def topic_of(self, queue):
        return queue.topic

    async def request(self, command, timeout_s):
        header = command.header(UpdateConsumerOffsetRequest)
        number = header.queue_id
        self.sent.append(number)
        assert number not in self.waiting
        self.waiting.add(number)
        self.most = max(self.most, len(self.waiting))
        if header.bname == self._silent:
            await trio.sleep(timeout_s)
            raise errors.RequestTimeout("no answer in time")
        await trio.sleep(0.06)
        self.waiting.discard(number)
        return command.answer(ResponseCode.SYSTEM_ERROR if number == self._refused else 0)


def queues_of(count, brokers=("broker-a",)):
    return {triomq.MessageQueue("T", brokers[number % len(brokers)], number): number for number in range(count)}


async def test_many_queues_at_a_distant_broker(autojump_clock):
    distant = Distant()
    began = trio.current_time()
    await BrokerOffsets("G", distant).commit(queues_of(64))
    assert trio.current_time() - began < END_TIMEOUT_S / 2
    assert sorted(distant.sent) == list(range(64))
    assert distant.most == AT_ONCE


async def test_one_that_is_refused_among_many(autojump_clock):
    distant = Distant(refused=3)
    with pytest.raises(errors.MQError, match="committing offset 3 of group G"):
        await BrokerOffsets("G", distant).commit(queues_of(64))
    assert sorted(distant.sent) == list(range(64))


async def test_one_in_doubt_among_many(autojump_clock):
    distant = Distant()

    def look_again(queue, offset):
        if queue.queue_id == 3:
            raise errors.LinkLost("in doubt")
        return offset

    with pytest.raises(errors.LinkLost, match="in doubt"):
        await BrokerOffsets("G", distant, look_again).commit(queues_of(64))
    assert sorted({*distant.sent, 3}) == list(range(64))


async def test_a_broker_that_is_silent_among_others(autojump_clock):
    distant = Distant(silent="broker-a")
    began = trio.current_time()
    with pytest.raises(errors.RequestTimeout):
        await BrokerOffsets("G", distant).commit(queues_of(64, ("broker-a", "broker-b")))
    # The offsets that wait meanwhile are not sent to it; those of the other broker are.
    assert trio.current_time() - began < 2 * OFFSET_TIMEOUT_S
    assert {number for number in range(64) if number % 2} <= set(distant.sent)
    assert sum(number % 2 == 0 for number in distant.sent) <= AT_ONCE
