"""Answers of peers that are broken or hostile: refused, or bounded."""

from __future__ import annotations

import pytest

from triomq._cluster.routes import QUEUES_MOST, make_route
from triomq._message.compression import MAX_DECOMPRESSED_BYTES, ZlibCompressor
from triomq._message.received import Page
from triomq._producer.request import outcome_of
from triomq.errors import ProtocolViolation
from triomq_protocol.requests import MessageQueue, TopicRouteData
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
