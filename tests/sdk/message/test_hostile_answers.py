"""Answers of peers that are broken or hostile: refused, or bounded."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import triomq
from triomq._cluster.route import QUEUES_MOST, make_route
from triomq._message.compression import MAX_DECOMPRESSED_BYTES, ZlibCompressor
from triomq._message.received import Page
from triomq._producer.attempts.request import outcome_of
from triomq._transport.link import HEADER_BYTES_MAX, Link
from triomq.errors import REMARK_CHARS_MAX, MQError, ProtocolViolation
from triomq_protocol.codes import RequestCode
from triomq_protocol.record.layout import BLANK_MAGIC
from triomq_protocol.record.view import record_starts, records_end
from triomq_protocol.requests import (
    GetMaxOffsetResponse,
    GetMinOffsetResponse,
    MessageQueue,
    QueryConsumerOffsetResponse,
    SearchOffsetResponse,
    TopicRouteData,
)
from triomq_protocol.requests.pull import PullMessageResponse
from triomq_protocol.requests.route import BrokerData, QueueData
from triomq_protocol.wire.command import Command


def route_with(**numbers: int) -> TopicRouteData:
    queues = QueueData(**{"broker_name": "b", "read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, **numbers})
    brokers = [BrokerData(cluster="c", broker_name="b", broker_addrs={0: "127.0.0.1:1"})]
    return TopicRouteData(queue_datas=[queues], broker_datas=brokers)


@pytest.mark.parametrize("number", [(1 << 31) - 1, QUEUES_MOST, -1])
@pytest.mark.parametrize("member", ["read_queue_nums", "write_queue_nums"])
def test_a_route_with_too_many_queues_is_refused(member: str, number: int) -> None:
    with pytest.raises(ProtocolViolation, match="queues"):
        make_route("T", route_with(**{member: number}))


@pytest.mark.parametrize("order", ["b:2147483647", "b:x", "b:-1", "b:9999999999", "b:\u0661"])
def test_an_order_configuration_with_too_many_queues_is_refused(order: str) -> None:
    data = route_with()
    data.order_topic_conf = order
    with pytest.raises(ProtocolViolation, match="queues"):
        make_route("T", data)


def test_an_usual_route_is_read() -> None:
    data = route_with()
    data.order_topic_conf = "b:3;"
    route = make_route("T", data)
    assert (len(route.publish_queues), len(route.subscribe_queues)) == (3, 4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"msgId": "A"},
        {"queueOffset": "1"},
        {"msgId": "A", "queueOffset": "abc"},
        {"msgId": "A", "queueOffset": "-7"},
        {"msgId": "A", "queueOffset": str(2**63)},
        {"msgId": "A", "queueOffset": str(2**63 - 1)},
        {"msgId": "A", "queueOffset": str(2**70)},
    ],
)
def test_an_answer_to_a_send_without_its_fields_is_no_result(fields: dict[str, str]) -> None:
    answer = Command.request(0, fields=fields)
    outcome = outcome_of(answer, MessageQueue("T", "b", 0), "key", "127.0.0.1:1")
    assert isinstance(outcome, ProtocolViolation)


def test_what_one_answer_keeps_decompressed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from triomq._message import received

    kept: list[object] = []

    class Record:
        body = ZlibCompressor().compress(bytes(MAX_DECOMPRESSED_BYTES // 8 * 3))
        sys_flag = ZlibCompressor.sys_flag

    page = Page(b"", MessageQueue("T", "b", 0))
    for _ in range(4):
        message = received.ReceivedMessage(Record(), page.queue)  # type: ignore[arg-type]
        message.page = page
        assert len(message.body) == MAX_DECOMPRESSED_BYTES // 8 * 3
        kept.append(message._body)
    assert [body is not None for body in kept] == [True, True, False, False]


QUEUE = triomq.MessageQueue("T", "broker-a", 0)


def scan_records(scanned: list[bytes], body: bytes) -> tuple[int, int]:
    """What the Spark source has done by its compiled module."""
    scanned.append(body)
    starts = record_starts(body)
    return len(starts), records_end(body, starts)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: random.Random(1).randbytes(5000),
        lambda body: b"",
        lambda body: body + b"x",
        lambda body: body[:-1],
        lambda body: body + bytes(200),
        lambda body: body + body[:4] + BLANK_MAGIC.to_bytes(4, "big", signed=True) + body[8:],
        # The second of two records: its size, then its magic number, then the length of its body.
        lambda body: body + b"\xff" + body[1:],
        lambda body: body + body[:4] + b"\x00" + body[5:],
        lambda body: body + body[:84] + b"\x7f" + body[85:],
    ],
)
@pytest.mark.parametrize("kind", ["pull", "scanned", "push"])
async def test_bytes_that_are_no_records_are_refused_when_they_are_pulled(
    autojump_clock: None, group_cluster: Any, change: Callable[[bytes], bytes], kind: str, caplog: Any
) -> None:
    cluster = group_cluster
    for number in range(2):
        cluster.broker.store("T", 0, b"%d" % number)
    good = bytes(cluster.broker.queues["T", 0][0])
    header = PullMessageResponse(suggest_which_broker_id=0, next_begin_offset=2, min_offset=0, max_offset=2)
    cluster.broker.script(RequestCode.PULL_MESSAGE, lambda command: command.answer(0, header=header, body=change(good)))
    async with cluster.client() as client:
        if kind != "push":
            consumer = client.pull_consumer("G")
            scanned: list[bytes] = []
            if kind == "scanned":
                consumer._scan_with(partial(scan_records, scanned))
            with pytest.raises(ProtocolViolation, match="not a record"):
                await consumer.pull(QUEUE)
            assert scanned == [change(good)] * (kind == "scanned")
            assert await consumer.position(QUEUE) == 0
            return
        async with client.push_consumer("G", start_from="earliest") as pushed:
            await pushed.subscribe("T")
            # None is lost: what the next answers hold begins where the refused one did.
            assert [(await anext(pushed)).message.body for _ in range(2)] == [b"0", b"1"]
    assert "not a record" in caplog.text


@pytest.mark.parametrize(
    "offsets",
    [
        {"next_begin_offset": -(1 << 63)},
        {"next_begin_offset": (1 << 63) - 1},
        {"next_begin_offset": 0},
        {"next_begin_offset": None},
        {"min_offset": -2},
        {"max_offset": -(1 << 63)},
    ],
)
async def test_offsets_of_a_pull_that_are_out_of_range_are_refused(
    autojump_clock: None, cluster: Any, offsets: dict[str, int | None]
) -> None:
    cluster.broker.store("T", 0, b"x")
    body = bytes(cluster.broker.queues["T", 0][0])
    numbers = {"suggest_which_broker_id": 0, "next_begin_offset": 1, "min_offset": 0, "max_offset": 1, **offsets}
    header = PullMessageResponse(**numbers)
    cluster.broker.script(RequestCode.PULL_MESSAGE, lambda command: command.answer(0, header=header, body=body))
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        with pytest.raises(ProtocolViolation, match="offset"):
            await consumer.pull(QUEUE)
        assert await consumer.position(QUEUE) == 0


async def test_other_offsets_that_are_out_of_range_are_refused(autojump_clock: None, cluster: Any) -> None:
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        bounds = client.bounds
        for code, answer, call in (
            (RequestCode.GET_MAX_OFFSET, GetMaxOffsetResponse, lambda: bounds.max_offset(QUEUE)),
            (RequestCode.GET_MIN_OFFSET, GetMinOffsetResponse, lambda: bounds.min_offset(QUEUE)),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetResponse, lambda: bounds.offset_by_time(QUEUE, 0)),
            (RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetResponse, lambda: consumer.position(QUEUE)),
        ):
            header = answer(offset=-(1 << 40))
            cluster.broker.script(code, lambda command, header=header: command.answer(0, header=header))
            with pytest.raises(ProtocolViolation):
                await call()


async def test_a_huge_remark_costs_no_memory(nursery: trio.Nursery) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    link = Link("b:1", ours)
    await nursery.start(link.run)
    request = Command.request(RequestCode.GET_MAX_OFFSET)
    answer = request.answer(1, "\u20ac" * 5_000_000)
    answer.opaque = 1
    frame = answer.encode()

    async def peer() -> None:
        await theirs.receive_some()
        try:
            for at in range(0, len(frame), 1 << 16):
                await theirs.send_all(frame[at : at + (1 << 16)])
        except trio.BrokenResourceError:
            pass

    tracemalloc.start()
    try:
        nursery.start_soon(peer)
        with pytest.raises(ProtocolViolation, match=f"the limit is {HEADER_BYTES_MAX}"):
            await link.request(request, 60)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20


async def test_an_error_keeps_a_bounded_part_of_a_remark(autojump_clock: None, cluster: Any) -> None:
    remark = "x" * 100_000
    cluster.broker.script(RequestCode.GET_MAX_OFFSET, lambda command: command.answer(1, remark))
    async with cluster.client() as client:
        with pytest.raises(MQError, match=r"xxx\.\.\. \(100000 characters\)") as caught:
            await client.bounds.max_offset(QUEUE)
    assert len(str(caught.value)) < REMARK_CHARS_MAX + 400


async def test_the_limit_of_headers_is_an_option(autojump_clock: None, cluster: Any) -> None:
    cluster.broker.script(RequestCode.GET_MAX_OFFSET, lambda command: command.answer(1, "x" * 3000))
    async with cluster.client(max_header_bytes=2000) as client:
        with pytest.raises(ProtocolViolation, match="the limit is 2000"):
            await client.bounds.max_offset(QUEUE)
