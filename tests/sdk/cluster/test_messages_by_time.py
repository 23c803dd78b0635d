"""Messages of a queue by time, whose broker deletes the first ones meanwhile."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse

QUEUE = triomq.MessageQueue("T", "broker-a", 0)


def without_messages(code, following):
    header = PullMessageResponse(suggest_which_broker_id=0, next_begin_offset=following, min_offset=0, max_offset=6)
    return lambda command: command.answer(code, header=header)


@pytest.mark.parametrize("code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY])
async def test_messages_behind_deleted_ones_are_found(autojump_clock, cluster, code):
    for number in range(6):
        cluster.broker.store("T", 0, b"m%d" % number)
    cluster.broker.script(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda command: command.answer(0, fields={"offset": "0"})
    )
    cluster.broker.script(RequestCode.PULL_MESSAGE, without_messages(code, 2))
    async with cluster.client() as client:
        found = await client.messages.by_time(QUEUE, 0, max_messages=3)
    assert [each.body for each in found] == [b"m2", b"m3", b"m4"]


async def test_a_queue_ends_at_its_end(autojump_clock, cluster):
    cluster.broker.store("T", 0, b"m0")
    cluster.broker.script(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda command: command.answer(0, fields={"offset": "0"})
    )
    async with cluster.client() as client:
        assert [each.body for each in await client.messages.by_time(QUEUE, 0, max_messages=3)] == [b"m0"]


@pytest.mark.parametrize(
    ("look", "kind"),
    [
        (lambda client: client.messages.by_time(QUEUE, 0), triomq.errors.RequestTimeout),
        (lambda client: client.dead_letters.read("G"), triomq.errors.BrokerNotFound),
    ],
)
async def test_a_broker_without_messages_is_given_up(autojump_clock, cluster, look, kind):
    """It answers each offset with a later one, and never with a message."""

    async def later(command):
        await trio.sleep(0.5)
        following = command.header(PullMessageRequest).queue_offset + 1
        return without_messages(ResponseCode.PULL_RETRY_IMMEDIATELY, following)(command)

    cluster.name_server.add_route("%DLQ%G", cluster.broker, queues=1)
    cluster.broker.script(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda command: command.answer(0, fields={"offset": "0"})
    )
    cluster.broker.script(RequestCode.GET_MAX_OFFSET, lambda command: command.answer(0, fields={"offset": str(2**62)}))
    cluster.broker.script(RequestCode.PULL_MESSAGE, *[later] * 100)
    async with cluster.client() as client:
        began = trio.current_time()
        with pytest.raises(kind, match="no message for 15 s, the last one before offset 30"):
            await look(client)
        assert trio.current_time() - began == pytest.approx(15)
