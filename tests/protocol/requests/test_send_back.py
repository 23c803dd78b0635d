"""Messages sent back: code 36."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BOTH, HEADER_RULES, HeaderCase, received

from triomq_protocol.requests import ConsumerSendMsgBackRequest

HEADERS = [
    HeaderCase(
        ConsumerSendMsgBackRequest,
        "offset*:int64 group* delayLevel*:int32 originMsgId originTopic unitMode:bool=False maxReconsumeTimes:int32 bname",
    ),
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BOTH
@pytest.mark.parametrize("level", [-1, 0, 18])
def test_a_message_is_sent_back_with_any_delay_level(level: int, serialize: int) -> None:
    fields: dict[str, str | None] = {"offset": "5", "group": "g", "delayLevel": str(level), "unitMode": "yes"}
    header = received(fields, serialize).header(ConsumerSendMsgBackRequest)
    assert header == ConsumerSendMsgBackRequest(offset=5, group="g", delay_level=level)
