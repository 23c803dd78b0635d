"""Looking messages up: codes 12 and 33."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BOTH, HEADER_RULES, HeaderCase, exchanged

from triomq_protocol.requests import (
    UNIQUE_KEY_QUERY,
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from triomq_protocol.wire.command import Command

HEADERS = [
    HeaderCase(QueryMessageRequest, "topic* key* maxNum*:int32 beginTimestamp*:int64 endTimestamp*:int64 indexType"),
    HeaderCase(QueryMessageResponse, "indexLastUpdateTimestamp*:int64 indexLastUpdatePhyoffset*:int64"),
    HeaderCase(ViewMessageRequest, "offset*:int64"),
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BOTH
@pytest.mark.parametrize("unique", ["true", "false"])
def test_the_kind_of_key_travels_beside_the_header(unique: str, serialize: int) -> None:
    header = QueryMessageRequest(topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1)
    command = exchanged(Command.request(12, header, fields={UNIQUE_KEY_QUERY: unique}, serialize=serialize))
    assert command.header(QueryMessageRequest) == header
    assert (command.fields or {})["_UNIQUE_KEY_QUERY"] == unique


def test_nothing_found_is_two_zeros() -> None:
    answer = exchanged(
        Command(opaque=4).answer(
            22,
            "can not find message",
            QueryMessageResponse(index_last_update_timestamp=0, index_last_update_phyoffset=0),
        )
    )
    assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
    assert answer.code == 22
