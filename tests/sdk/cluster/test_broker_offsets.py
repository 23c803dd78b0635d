"""Offsets that a broker refuses keep none of the others back."""

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors
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
