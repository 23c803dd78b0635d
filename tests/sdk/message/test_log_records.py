"""The fields of log records in addition to their text, and the lines that follow one message."""

from __future__ import annotations

import json
import logging

import pytest
import trio
from consumer_broker import until

import triomq
from triomq_protocol.codes import RequestCode, ResponseCode


def fields(record):
    return {name: getattr(record, name, None) for name in ("topic", "group", "broker", "queue", "offset", "message_id")}


async def test_a_message_is_followed_through_its_send(autojump_clock, cluster, caplog):
    cluster.broker.script(
        RequestCode.SEND_MESSAGE_V2, lambda request: request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "no")
    )
    with caplog.at_level(logging.DEBUG, "triomq.producer"):
        async with cluster.client() as client:
            result = await client.producer("G").send(triomq.Message("T", b"x"))
    lines = [record for record in caplog.records if getattr(record, "message_id", "") == result.message_id]
    begun, again, stored = lines
    assert "is being sent" in begun.message
    assert "sent again" in again.message
    assert "SERVICE_NOT_AVAILABLE" in again.message
    assert fields(again)["broker"] == "broker-a"
    assert "is stored" in stored.message
    assert fields(stored) == {
        "topic": "T",
        "group": "G",
        "broker": "broker-a",
        "queue": result.queue.queue_id,
        "offset": 0,
        "message_id": result.message_id,
    }


async def test_a_message_is_followed_through_its_deliveries(autojump_clock, group_cluster, caplog):
    group_cluster.broker.store("T", 0, b"x", b"UNIQ_KEY\x01K1")
    seen = trio.Event()

    async def fail(message):
        seen.set()
        raise ValueError("no")

    with caplog.at_level(logging.DEBUG, "triomq.consumer"):
        async with group_cluster.client() as client, client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, fail)
                await seen.wait()
                await until(lambda: group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK))
                consumer.drain()
    lines = [record for record in caplog.records if getattr(record, "message_id", "") == "K1"]
    texts = [record.message for record in lines]
    assert ["given out" in text for text in texts].count(True) == 1
    assert any("is not consumed: ValueError" in text for text in texts)
    assert any(record.levelno == logging.ERROR and "the handler failed" in record.message for record in lines)
    assert any("given back for a retry" in text for text in texts)
    assert {record.topic for record in lines} == {"T"}
    assert {record.queue for record in lines} == {0}


async def test_without_debug_no_hook_is_made(autojump_clock, cluster, caplog):
    with caplog.at_level(logging.INFO, "triomq.producer"):
        async with cluster.client() as client:
            producer = client.producer("G")
            assert producer._hooks == ()
            await producer.send(triomq.Message("T", b"x"))
    assert caplog.records == []


@pytest.mark.parametrize("logger", ["triomq.producer", "triomq.consumer"])
def test_fields_may_be_written_as_json(logger):
    record = logging.getLogger(logger).makeRecord(
        logger, logging.INFO, "", 0, "text", (), None, extra={"topic": "T", "queue": 0, "message_id": "K1"}
    )
    assert json.loads(json.dumps(fields(record)))["topic"] == "T"


async def test_the_text_of_a_message_is_one_line(autojump_clock, cluster):
    """Any sender chooses the id, and logs repeat the text."""
    cluster.broker.store("T", 0, b"x", b"UNIQ_KEY\x01K1\nERROR forged")
    cluster.broker.store("T", 0, b"x", b"UNIQ_KEY\x01" + b"k" * 30_000)
    async with cluster.client() as client:
        first, second = await client.pull_consumer("G").pull(triomq.MessageQueue("T", "broker-a", 0), 0)
    assert repr(first) == "<ReceivedMessage T queue 0 offset 0 id K1?ERROR forged>"
    assert first.message_id == "K1\nERROR forged"
    assert len(repr(second)) < 400
