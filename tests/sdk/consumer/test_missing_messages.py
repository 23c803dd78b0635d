"""Messages that a broker has deleted while its queue still lists them: counted, and reported once."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq import PullStatus
from triomq._cluster.counters import Counters
from triomq._consumer.group.missing import REPORTED_EVERY_S, MissingMessages
from triomq_protocol.properties import encode_properties

QUEUE = triomq.MessageQueue("T", "broker-a", 0)


def fill(cluster, count, *, deleted):
    for number in range(count):
        cluster.broker.store("T", 0, b"%d" % number)
    for offset in deleted:
        cluster.broker.queues["T", 0][offset] = b""


def missing(client):
    return [each.missing for each in client.statistics().pulls if each.topic == "T"]


async def test_a_pull_reports_how_many_messages_are_missing(autojump_clock, group_cluster):
    fill(group_cluster, 10, deleted=[0, 1, 2, 3, 6])
    events = []
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G", on_event=events.append)
        results = [await consumer.pull(QUEUE, max_messages=2) for _ in range(5)]
        assert [(each.status.name, each.next_offset, each.missing) for each in results] == [
            ("NO_MATCHED_MESSAGE", 2, 2),
            ("NO_MATCHED_MESSAGE", 4, 2),
            ("FOUND", 6, 0),
            ("FOUND", 8, 1),
            ("FOUND", 10, 0),
        ]
        assert missing(client) == [5]
        # The second stretch is too soon after the first one for an event of its own.
        assert [(each.kind, each.queue) for each in events] == [("messages_missing", QUEUE)]
        assert f"4 of the messages of {QUEUE} between offsets 0 and 3 were not delivered" in events[0].text
        await trio.sleep(REPORTED_EVERY_S)
        await consumer.pull(QUEUE, 9)
        assert "1 of the messages" in events[1].text


@pytest.mark.parametrize("wanted", [{"tags": "a"}, {"sql": "a = 1"}])
async def test_with_a_filter_they_cannot_be_distinguished_from_others(autojump_clock, group_cluster, wanted):
    fill(group_cluster, 4, deleted=[0, 1])
    async with group_cluster.client() as client:
        await client.pull_consumer("G").pull(QUEUE, 0, **wanted)
        assert missing(client) == [0]


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_a_consumer_reports_what_it_did_not_get(autojump_clock, group_cluster, caplog, kind):
    fill(group_cluster, 100, deleted=range(70))
    events = []
    callbacks = triomq.ConsumerCallbacks(on_event=events.append)
    async with group_cluster.client() as client:
        make = client.push_consumer if kind == "push" else client.lite_pull_consumer
        async with make("G", start_from="earliest", callbacks=callbacks) as consumer:
            await consumer.subscribe("T")
            message = await anext(consumer)
            assert getattr(message, "message", message).body == b"70"
            assert missing(client) == [70]
    assert [(each.kind, each.queue) for each in events] == [("messages_missing", QUEUE)]
    assert f"70 of the messages of {QUEUE} between offsets 0 and 95 were not delivered" in events[0].text
    assert "messages_missing" in caplog.text


def answer(status, *, next_offset, missing):
    return triomq.PullResult(
        status,
        QUEUE,
        next_offset=next_offset,
        min_offset=0,
        max_offset=100,
        suggested_broker_id=0,
        broker_address="10.0.0.5:10911",
        missing=missing,
    )


async def test_a_queue_that_is_given_up_reports_everything(autojump_clock):
    told = []
    noted = MissingMessages("G", Counters(), told.append)
    noted.note(answer(PullStatus.NO_MATCHED_MESSAGE, next_offset=30, missing=20), 10)
    assert told == []
    assert noted
    noted.end(QUEUE)
    noted.end(QUEUE)
    assert [each.text.partition(" were")[0] for each in told] == [
        f"20 of the messages of {QUEUE} between offsets 10 and 29"
    ]
    assert not noted


async def test_what_a_new_subscription_leaves_out_is_not_missing(autojump_clock, group_cluster):
    events = []
    callbacks = triomq.ConsumerCallbacks(on_event=events.append)
    async with (
        group_cluster.client() as client,
        client.push_consumer("G", start_from="earliest", callbacks=callbacks) as consumer,
    ):
        await consumer.subscribe("T")
        await trio.sleep(5)
        # The broker holds a pull for all tags, and knows of the new ones when the messages come.
        await consumer.subscribe("T", "a")
        group_cluster.broker.store("T", 0, b"0", encode_properties({"TAGS": "b"}).encode())
        group_cluster.broker.store("T", 0, b"1", encode_properties({"TAGS": "a"}).encode())
        group_cluster.broker.consumers.arrived()
        assert (await anext(consumer)).message.body == b"1"
        assert missing(client) == [0]
    assert events == []
