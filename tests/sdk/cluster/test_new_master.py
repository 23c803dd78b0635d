"""A slave has become master: senders find it within the send, readers from the first error on.

No task waits for the route's periodic refresh.
"""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq_protocol.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize("old_master", ["gone", "a slave now"])
async def test_a_send_finds_the_new_master(autojump_clock, cluster, old_master):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"before"))
        if old_master == "gone":
            await cluster.broker.stop()
        else:
            cluster.broker.script(SEND, *[lambda command: command.answer(14, "the broker is slave")] * 3)
        slave.broker_id = 0
        cluster.name_server.add_route("T", slave)
        started = trio.current_time()
        result = await producer.send(triomq.Message("T", b"after"))
        assert result.status is triomq.SendStatus.SEND_OK
        assert trio.current_time() - started < 1
        assert len(slave.requests(SEND)) == 1
        # And from now on the old one is no longer tried first.
        await producer.send(triomq.Message("T", b"later"))
        assert len(slave.requests(SEND)) == 2
