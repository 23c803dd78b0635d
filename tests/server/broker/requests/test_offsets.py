"""Requests about offsets (docs/protocol/broker-api.md §7) beyond those replayed in test_exchanges."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_protocol.codes import RequestCode as C
from triomq_protocol.wire.command import Command


def ask(code: int, **fields: object) -> Command:
    return Command.request(code, fields={name: str(value) for name, value in fields.items()})


async def test_a_new_group_starts_at_0_while_the_first_message_is_at_hand(open_broker: Any) -> None:
    async with open_broker(memoryBytes=1000) as broker:
        peer = await broker.peer()
        await peer.put()
        query = {"consumerGroup": "CG", "topic": "T1", "queueId": 0}
        assert (await peer.ask(ask(C.QUERY_CONSUMER_OFFSET, **query))).fields == {"offset": "0"}
        for _ in range(10):
            await peer.put(body=bytes(100))
        answer = await peer.ask(ask(C.QUERY_CONSUMER_OFFSET, **query))
    assert (answer.code, answer.fields) == (22, {})
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


async def test_commits_are_unconditional(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for offset in (9, 3):
            fields = {"consumerGroup": "CG", "topic": "Nope", "queueId": 77, "commitOffset": offset}
            answer = await peer.ask(ask(C.UPDATE_CONSUMER_OFFSET, **fields))
            assert (answer.code, answer.fields) == (0, {})
        answer = await peer.ask(Command.request(C.GET_ALL_CONSUMER_OFFSET))
    assert answer.body == b'{"offsetTable":{"Nope@CG":{77:3}}}'


@pytest.mark.parametrize("compat", [False, True])
async def test_numbers_that_no_queue_can_have_are_refused(open_broker: Any, compat: bool) -> None:
    async with open_broker(**({"compat": "4.9"} if compat else {})) as broker:
        peer = await broker.peer()
        for queue_id in (-1, 65_536):
            fields = {"consumerGroup": "CG", "topic": "T", "queueId": queue_id, "commitOffset": 1}
            answer = await peer.ask(ask(C.UPDATE_CONSUMER_OFFSET, **fields))
            assert answer.code == (0 if compat else 1)
            assert compat or f"queueId[{queue_id}] cannot be a queue's number" in answer.remark
        answer = await peer.ask(Command.request(C.GET_ALL_CONSUMER_OFFSET))
    assert (b"T@CG" in answer.body) == compat


@pytest.mark.parametrize(
    ("code", "fields", "answered"),
    [
        (C.GET_MAX_OFFSET, {}, {"offset": "3"}),
        (C.GET_MIN_OFFSET, {}, {"offset": "0"}),
        (C.GET_MAX_OFFSET, {"topic": "Nope"}, {"offset": "0"}),
        (C.GET_MIN_OFFSET, {"queueId": 99}, {"offset": "0"}),
        (C.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 0}, {"offset": "0"}),
        (C.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 4_000_000_000_000}, {"offset": "2"}),
        (C.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 5, "topic": "Nope"}, {"offset": "0"}),
        (C.GET_EARLIEST_MSG_STORETIME, {"topic": "Nope"}, {"timestamp": "-1"}),
    ],
)
async def test_offsets_of_queues(
    open_broker: Any, code: int, fields: dict[str, object], answered: dict[str, str]
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for _ in range(3):
            await peer.put()
        answer = await peer.ask(ask(code, **{"topic": "T1", "queueId": 0, **fields}))
    assert (answer.code, answer.fields) == (0, answered)


@pytest.mark.parametrize("code", [C.GET_MAX_OFFSET, C.QUERY_CONSUMER_OFFSET, C.PULL_MESSAGE, C.UPDATE_CONSUMER_OFFSET])
async def test_a_missing_field_is_named(open_broker: Any, code: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.ask(ask(code, topic="T1", consumerGroup="CG"))
    assert answer.code == 1
    assert "queueId" in answer.remark


async def test_delay_offsets(open_broker: Any) -> None:
    async with open_broker() as broker:
        answer = await (await broker.peer()).ask(Command.request(C.GET_ALL_DELAY_OFFSET))
    assert (answer.code, answer.body) == (0, b'{"offsetTable":{}}')
