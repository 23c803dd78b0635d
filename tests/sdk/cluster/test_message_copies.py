"""Copies of stored messages, as operators send them."""

from __future__ import annotations

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import encode_properties


async def test_a_copy_of_a_message_that_a_broker_kept_until_a_time_is_delivered_at_once(
    autojump_clock, cluster, properties_of
):
    """A broker without a timer wheel would refuse it."""
    kept = {"colour": "green", "TIMER_DELAY_SEC": "8", "TIMER_OUT_MS": "1000", "TIMER_DEQUEUE_MS": "1007"}
    cluster.broker.store("T", 0, b"late", encode_properties(kept).encode())
    async with cluster.client() as client:
        message = await client.messages.at(triomq.MessageQueue("T", "broker-a", 0), 0)
        await client.messages.send_copy(message, "T")
    [sent] = cluster.broker.requests(RequestCode.SEND_MESSAGE_V2)
    assert [name for name in properties_of(sent) if name in kept] == ["colour"]
