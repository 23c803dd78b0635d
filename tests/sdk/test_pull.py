"""Pulls: positions, filters, laziness, and whom they are sent to."""

from __future__ import annotations

import pytest
import trio
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.pull import PullMessageRequest

import triomq
from triomq import errors


async def fill(client, count, *, queue_id=0, tags=None):
    queue = triomq.MessageQueue("T", "broker-a", queue_id)
    async with client.producer("P") as producer:
        for number in range(count):
            await producer.send(triomq.Message("T", b"m%d" % number, tags=tags), queue=queue)
    return queue


def pulls(node):
    return [command.header(PullMessageRequest) for command in node.requests(RequestCode.PULL_MESSAGE)]


async def test_own_position_moves_on(autojump_clock, cluster):
    async with cluster.client() as client:
        queue = await fill(client, 5)
        consumer = client.pull_consumer("G")
        first = await consumer.pull(queue, max_messages=3)
        second = await consumer.pull(queue, max_messages=3)
        third = await consumer.pull(queue)
    assert [m.body for m in first] == [b"m0", b"m1", b"m2"]
    assert [m.body for m in second] == [b"m3", b"m4"]
    assert third.status is triomq.PullStatus.NO_NEW_MESSAGE
    assert (third.next_offset, third.min_offset, third.max_offset) == (5, 0, 5)
    assert [p.queue_offset for p in pulls(cluster.broker)] == [0, 3, 5]
