"""Sends that go well: what travels, what comes back."""

from __future__ import annotations

import zlib

import pytest
import trio
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.send import SendMessageRequestV2

import triomq
from triomq import errors


async def test_send_returns_where_the_message_lies(cluster, properties_of):
    async with cluster.client() as client:
        producer = client.producer("G")
        result = await producer.send(triomq.Message("T", b"one", tags="a", keys=("k1", "k2"), properties={"u": "v"}))
    (request,) = cluster.broker.requests(RequestCode.SEND_MESSAGE_V2)
    header = request.header(SendMessageRequestV2)
    properties = properties_of(request)
    assert result.status is triomq.SendStatus.SEND_OK
    assert result.message_id == properties["UNIQ_KEY"]
    assert result.queue == triomq.MessageQueue("T", "broker-a", header.queue_id)
    assert (result.queue_offset, result.offset_message_id) == (0, "7F00000100002A9F0000000000000000")
    assert (result.region_id, result.trace_on, result.transaction_id) == ("DefaultRegion", True, None)
    assert properties == {"u": "v", "KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": result.message_id}
    assert (header.producer_group, header.bname, header.default_topic) == ("G", "broker-a", "TBW102")
    assert header.born_timestamp == 1_700_000_000_000
    assert request.body == b"one"


async def test_sends_go_round_the_queues(cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        ids = [(await producer.send(triomq.Message("T", b"x"))).queue.queue_id for _ in range(6)]
    assert ids in ([0, 1] * 3, [1, 0] * 3)
