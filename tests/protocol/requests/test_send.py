"""Sending messages: codes 10, 310, 320 and 324 to 326, and the templates of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rules import BOTH, HEADER_RULES, INT32, INT64, TEXTS, HeaderCase, exchanged

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.requests import (
    V2_NAMES,
    ReplyMessageRequest,
    SendMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
    encode_send_answer,
    encode_send_request_v2,
)
from triomq_protocol.requests.send import with_code
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

HEADERS = [
    HeaderCase(
        SendMessageRequest,
        "producerGroup* topic= defaultTopic= defaultTopicQueueNums:int32 queueId*:int32 sysFlag*:int32 bornTimestamp*:int64 flag*:int32 properties reconsumeTimes:int32 unitMode:bool=False batch:bool=False maxReconsumeTimes:int32 bname",
    ),
    HeaderCase(
        SendMessageRequestV2,
        "a>producer_group* b>topic= c>default_topic= d>default_topic_queue_nums:int32 e>queue_id*:int32 f>sys_flag*:int32 g>born_timestamp*:int64 h>flag*:int32 i>properties j>reconsume_times:int32 k>unit_mode:bool=False l>max_reconsume_times:int32 m>batch:bool=False n>bname",
        fixed=True,
    ),
    HeaderCase(SendMessageResponse, "msgId queueId:int32 queueOffset:int64 transactionId", fixed=True),
    HeaderCase(
        ReplyMessageRequest,
        "producerGroup* topic* defaultTopic* defaultTopicQueueNums*:int32 queueId*:int32 sysFlag*:int32 bornTimestamp*:int64 flag*:int32 properties reconsumeTimes:int32 unitMode:bool=False bornHost* storeHost* storeTimestamp*:int64",
    ),
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


ODD_TEXTS = TEXTS | st.sampled_from(["\ud800", "\udc00\ud800", "\x00\x01\x02", "\x1f\x80\x9f", "\u2029"])


@settings(max_examples=50)
@given(
    st.fixed_dictionaries({
        "producer_group": ODD_TEXTS, "topic": ODD_TEXTS, "default_topic": ODD_TEXTS, "properties": ODD_TEXTS,
        "default_topic_queue_nums": INT32, "queue_id": INT32, "sys_flag": INT32, "born_timestamp": INT64, "flag": INT32,
        "reconsume_times": INT32, "max_reconsume_times": st.none() | INT32, "unit_mode": st.booleans(), "batch": st.booleans(),
    }),
    st.none() | ODD_TEXTS, st.binary(max_size=20), st.sampled_from([310, 320, 325]), st.booleans(), INT32,
)  # fmt: skip
def test_the_request_template_is_the_encoder(
    values: dict[str, Any], broker: str | None, body: bytes, code: int, oneway: bool, opaque: int
) -> None:
    header = SendMessageRequestV2(bname=broker, **values)
    want = Command.request(code, header, body=body, oneway=oneway, opaque=opaque).encode()
    got = encode_send_request_v2(opaque, code=code, broker_name=broker, body=body, oneway=oneway, **values)
    assert got == want


def test_what_the_request_template_leaves_out_takes_javas_defaults() -> None:
    frame = encode_send_request_v2(
        7, producer_group="g", topic="T", queue_id=1, sys_flag=0, born_timestamp=5, flag=0, properties="", body=b""
    )
    (command,) = FrameDecoder().feed(frame)
    assert (command.code, command.flag, command.opaque, command.body) == (310, 0, 7, b"")
    assert command.fields == {
        "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "5", "h": "0", "i": "", "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip


def test_a_request_that_does_not_fit_a_frame_is_our_mistake() -> None:
    same = {
        "producer_group": "g",
        "topic": "T",
        "queue_id": 1,
        "sys_flag": 0,
        "born_timestamp": 5,
        "flag": 0,
        "body": b"",
    }
    frame = encode_send_request_v2(7, properties="", **same)
    room = 0xFFFFFF - (len(frame) - 8)
    at_limit = encode_send_request_v2(7, properties="x" * room, **same)
    assert at_limit[4:8] == b"\x00\xff\xff\xff"
    for too_much in ("x" * (room + 1), "x" * (2 * room)):
        with pytest.raises(LocalProtocolError, match="do not fit a frame"):
            encode_send_request_v2(7, properties=too_much, **same)


@BOTH
def test_an_answer_that_does_not_fit_a_frame_is_our_mistake(serialize: int) -> None:
    with pytest.raises(LocalProtocolError, match="do not fit a frame"):
        encode_send_answer(Command(serialize=serialize), "A" * 0xFFFFFF, 0, 0)


@BOTH
@settings(max_examples=40)
@given(
    st.integers(0, 300), st.sampled_from(["7F00000100004E8F0000000000000000", "A,B"]), INT32, INT64, INT32, st.booleans(),
    st.sampled_from(["DefaultRegion", "", 'a"\\', "\x7f"]),
)  # fmt: skip
def test_the_answer_template_is_the_encoder(
    serialize: int, code: int, msg_id: str, queue_id: int, offset: int, opaque: int, trace: bool, region: str
) -> None:
    request = Command(opaque=opaque, serialize=serialize)
    header = SendMessageResponse(msg_id=msg_id, queue_id=queue_id, queue_offset=offset)
    fields = {"MSG_REGION": region, "TRACE_ON": "true" if trace else "false"}
    want = request.answer(code, header=header, fields=fields).encode()
    got = encode_send_answer(request, msg_id, queue_id, offset, code=code, region=region, trace_on=trace)
    assert got == want
    stored = encode_send_answer(request, msg_id, queue_id, offset, region=region, trace_on=trace)
    assert with_code(stored, code) == want


@BOTH
def test_an_answer_reads_as_its_header(serialize: int) -> None:
    (answer,) = FrameDecoder().feed(encode_send_answer(Command(opaque=9, serialize=serialize), "A,B", 2, 55))
    assert answer.header(SendMessageResponse) == SendMessageResponse(msg_id="A,B", queue_id=2, queue_offset=55)
    assert (answer.opaque, answer.is_response, answer.code, answer.serialize) == (9, True, 0, serialize)
    assert {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}.items() <= (answer.fields or {}).items()


@pytest.mark.parametrize("region", ["\u4e2d", "\x80", "\ud800"])
def test_a_region_is_ascii(region: str) -> None:
    with pytest.raises(LocalProtocolError, match="ASCII"):
        encode_send_answer(Command(), "A", 0, 0, region=region)


@BOTH
def test_a_refusal_has_no_fields_of_its_own(serialize: int) -> None:
    answer = exchanged(Command(serialize=serialize).answer(1, "no", SendMessageResponse()))
    assert answer.header(SendMessageResponse) == SendMessageResponse()


def test_both_headers_say_the_same() -> None:
    long = SendMessageRequest(
        producer_group="g", topic="T", queue_id=-1, sys_flag=4, born_timestamp=5, flag=6, batch=True
    )
    fields = exchanged(Command.request(10, long)).fields or {}
    letters = {letter: attribute for attribute, letter in V2_NAMES.items()}
    assert "".join(sorted(letters)) == "abcdefghijklmn"
    short = SendMessageRequestV2(**{name: getattr(long, name) for name in letters.values()})
    camel = {letter: re.sub("_(.)", lambda m: m[1].upper(), name) for letter, name in letters.items()}
    short_fields = exchanged(Command.request(310, short)).fields or {}
    assert {camel[letter]: text for letter, text in short_fields.items()} == fields
