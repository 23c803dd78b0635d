"""Copies of stored messages, as operators send them."""

from __future__ import annotations

import pytest

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import encode_properties


async def test_a_copy_of_a_message_that_a_broker_kept_until_a_time_is_delivered_at_once(
    autojump_clock, cluster, properties_of
):
    """A broker without a timer wheel would refuse it."""
    kept = {
        "colour": "green",
        "TIMER_DELAY_SEC": "8",
        "TIMER_OUT_MS": "1000",
        "TIMER_DEQUEUE_MS": "1007",
        "__STARTDELIVERTIME": "9",
    }
    cluster.broker.store("T", 0, b"late", encode_properties(kept).encode())
    async with cluster.client() as client:
        message = await client.messages.at(triomq.MessageQueue("T", "broker-a", 0), 0)
        await client.messages.send_copy(message, "T")
    [sent] = cluster.broker.requests(RequestCode.SEND_MESSAGE_V2)
    assert [name for name in properties_of(sent) if name in kept] == ["colour"]


async def test_an_error_of_the_report_ends_a_redrive_whatever_it_says(autojump_clock, cluster):
    """The program has perhaps stored the report with a client of its own; no broker of dead letters is silent."""
    other = cluster.add_master("broker-b")
    cluster.name_server.add_route("%DLQ%G", cluster.broker, other, queues=1)
    for broker in (cluster.broker, other):
        broker.store("%DLQ%G", 0, b"dead", b"RETRY_TOPIC\x01T\x02UNIQ_KEY\x01id\x02")

    def report(_redriven):
        raise triomq.errors.RequestTimeout("the report")

    async with cluster.client() as client:
        with pytest.raises(triomq.errors.RequestTimeout, match="the report"):
            await client.dead_letters.redrive("G", report=report)
        assert len(cluster.broker.bodies("T") + other.bodies("T")) == 1
        assert await client.dead_letters.count("G") == 1
