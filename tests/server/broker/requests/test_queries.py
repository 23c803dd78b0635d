"""Messages by key and by id: 12 and 33 (docs/protocol/broker-api.md §6)."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_protocol.codes import RequestCode, SerializeType
from triomq_protocol.requests import QueryMessageRequest, QueryMessageResponse, ViewMessageRequest

FOREVER = (1 << 63) - 1


def by_key(key: str, max_num: int = 64, begin: int = 0, end: int = FOREVER) -> QueryMessageRequest:
    return QueryMessageRequest(topic="T", key=key, max_num=max_num, begin_timestamp=begin, end_timestamp=end)


@pytest.mark.parametrize("name", ["raw_query_msg_none", "raw_view_bad"])
async def test_answers_are_those_of_the_real_broker(desk: Any, exchanges: Any, name: str) -> None:
    request, response = exchanges[name]
    assert await desk.frame(request) == response


async def test_messages_are_found_by_key_in_log_order(desk: Any) -> None:
    first = desk.store("T", 0, 10_000, 20_000, keys="k1 k2")
    desk.store("T", 1, 15_000, keys="other")
    answer = await desk.ask(RequestCode.QUERY_MESSAGE, by_key("k2"), serialize=SerializeType.ROCKETMQ)
    assert answer.code == 0
    assert answer.serialize == SerializeType.JSON
    assert answer.body == b"".join(bytes(desk.broker.store.record_at(offset)) for offset in first)
    reach = answer.header(QueryMessageResponse)
    assert reach.index_last_update_timestamp == 15_000
    assert reach.index_last_update_phyoffset > first[1]


async def test_key_queries_have_a_limit(desk: Any) -> None:
    offsets = desk.store("T", 0, *range(1000, 71_000, 1000), keys="k")
    size = len(bytes(desk.broker.store.record_at(offsets[0])))
    assert len((await desk.ask(RequestCode.QUERY_MESSAGE, by_key("k", 500))).body) == 64 * size
    assert len((await desk.ask(RequestCode.QUERY_MESSAGE, by_key("k", 3))).body) == 3 * size
    unique = {"_UNIQUE_KEY_QUERY": "true"}
    assert len((await desk.ask(RequestCode.QUERY_MESSAGE, by_key("k", 3), fields=unique)).body) == 32 * size


async def test_key_queries_look_at_store_times(desk: Any) -> None:
    (_, second) = desk.store("T", 0, 10_000, 20_000, keys="k")
    answer = await desk.ask(RequestCode.QUERY_MESSAGE, by_key("k", begin=15_000, end=25_000))
    assert answer.body == bytes(desk.broker.store.record_at(second))


async def test_a_message_is_viewed_by_its_offset(desk: Any) -> None:
    (_, offset) = desk.store("T", 0, 1000, 2000)
    answer = await desk.ask(
        RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset), serialize=SerializeType.ROCKETMQ
    )
    assert (answer.code, answer.fields, answer.serialize) == (0, None, SerializeType.JSON)
    assert answer.body == bytes(desk.broker.store.record_at(offset))


async def test_an_offset_inside_a_record_is_not_a_message(desk: Any) -> None:
    (offset,) = desk.store("T", 0, 1000)
    assert (await desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset + 3))).code == 1
