"""Pulling messages: code 11, and the templates of requests and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rules import BOTH, HEADER_RULES, INT32, INT64, TEXTS, HeaderCase, exchanged, received

from triomq_protocol.errors import HeaderError, LocalProtocolError
from triomq_protocol.requests import (
    PullMessageRequest,
    PullMessageResponse,
    decode_pull_answer,
    encode_pull_answer_head,
    encode_pull_request,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

HEADERS = [
    HeaderCase(
        PullMessageRequest,
        "consumerGroup* topic* queueId*:int32 queueOffset*:int64 maxMsgNums*:int32 sysFlag*:int32 commitOffset*:int64 suspendTimeoutMillis*:int64 subscription subVersion*:int64 expressionType bname",
        fixed=True,
    ),
    HeaderCase(
        PullMessageResponse,
        "suggestWhichBrokerId:int64 nextBeginOffset:int64 minOffset:int64 maxOffset:int64",
        fixed=True,
    ),
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


PULL: dict[str, Any] = {
    "consumer_group": "g", "topic": "T", "queue_id": 0, "queue_offset": 0, "max_msg_nums": 1, "sys_flag": 0,
    "commit_offset": 0, "suspend_timeout_millis": 0,
}  # fmt: skip
ODD_TEXTS = TEXTS | st.sampled_from(["\ud800", "\udc00\ud800", "\x00\x01\x02", "TAG", "a > 5 AND b = 'c'"])


@settings(max_examples=50)
@given(
    st.fixed_dictionaries({
        "consumer_group": ODD_TEXTS, "topic": ODD_TEXTS, "queue_id": INT32, "queue_offset": INT64, "max_msg_nums": INT32,
        "sys_flag": INT32, "commit_offset": INT64, "suspend_timeout_millis": INT64, "sub_version": INT64,
        "subscription": st.none() | ODD_TEXTS, "expression_type": st.none() | ODD_TEXTS,
    }),
    st.none() | ODD_TEXTS, INT32,
)  # fmt: skip
def test_the_request_template_is_the_encoder(values: dict[str, Any], broker: str | None, opaque: int) -> None:
    want = Command.request(11, PullMessageRequest(bname=broker, **values), opaque=opaque).encode()
    assert encode_pull_request(opaque, broker_name=broker, **values) == want


def test_a_request_that_does_not_fit_a_frame_is_our_mistake() -> None:
    values = PULL | {"subscription": "x" * 0xFFFFFF}
    with pytest.raises(LocalProtocolError, match="do not fit a frame"):
        encode_pull_request(1, **values)


@BOTH
@pytest.mark.parametrize(("remark", "body_bytes"), [("x" * 0xFFFFFF, 0), ("FOUND", 0x7FFFFFFF)])
def test_an_answer_that_does_not_fit_a_frame_is_our_mistake(serialize: int, remark: str, body_bytes: int) -> None:
    with pytest.raises(LocalProtocolError, match="do not fit a frame"):
        encode_pull_answer_head(
            Command(serialize=serialize), 0, remark, suggest_which_broker_id=0, next_begin_offset=0, min_offset=0, max_offset=0,
            body_bytes=body_bytes,
        )  # fmt: skip


@BOTH
@settings(max_examples=25)
@given(
    st.integers(0, 30), ODD_TEXTS, st.tuples(INT64, INT64, INT64, INT64), INT32, st.integers(0, 1 << 24),
    st.sampled_from([None, 0, 1]),
)  # fmt: skip
def test_the_answer_template_is_the_encoder(
    serialize: int, code: int, remark: str, offsets: tuple[int, int, int, int], opaque: int, size: int, form: int | None
) -> None:
    request = Command(opaque=opaque, serialize=serialize)
    names = ("suggest_which_broker_id", "next_begin_offset", "min_offset", "max_offset")
    values = dict(zip(names, offsets, strict=True))
    got = encode_pull_answer_head(request, code, remark, body_bytes=size, serialize=form, **values)
    assert got == request.answer(code, remark, PullMessageResponse(**values), serialize=form).encode_head(size)


@BOTH
def test_an_answer_reads_as_its_header_and_body(serialize: int) -> None:
    head = encode_pull_answer_head(
        Command(opaque=9, serialize=serialize), 0, "FOUND", suggest_which_broker_id=1, next_begin_offset=7, min_offset=-1,
        max_offset=1 << 62, body_bytes=4,
    )  # fmt: skip
    decoder = FrameDecoder()
    assert decoder.feed(head) == []
    (answer,) = decoder.feed(b"body")
    assert (answer.opaque, answer.remark, answer.body, answer.serialize) == (9, "FOUND", b"body", serialize)
    assert decode_pull_answer(answer) == PullMessageResponse(
        suggest_which_broker_id=1, next_begin_offset=7, min_offset=-1, max_offset=1 << 62
    )


@BOTH
def test_a_refusal_has_no_offsets(serialize: int) -> None:
    answer = exchanged(
        Command(serialize=serialize).answer(24, "the consumer's group info not exist", PullMessageResponse())
    )
    assert decode_pull_answer(answer) == PullMessageResponse()


@BOTH
def test_an_answer_with_a_malformed_offset_is_refused(serialize: int) -> None:
    with pytest.raises(HeaderError, match="nextBeginOffset"):
        decode_pull_answer(received({"nextBeginOffset": "soon"}, serialize))


def test_the_remarks_of_pulls_do_not_mix() -> None:
    for remark in ("FOUND", "OFFSET_TOO_SMALL", "FOUND", ""):
        head = encode_pull_answer_head(
            Command(),
            0,
            remark,
            suggest_which_broker_id=0,
            next_begin_offset=0,
            min_offset=0,
            max_offset=0,
            body_bytes=0,
        )
        assert FrameDecoder().feed(head)[0].remark == remark
