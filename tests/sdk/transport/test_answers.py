"""Answers that are no success, or cannot be read."""

from __future__ import annotations

import pytest

from triomq import errors
from triomq._transport.answers import checked, header_of, short_body_of
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import ConsumerIdList, QueryConsumerOffsetResponse
from triomq_protocol.wire.command import Command

ADDRESS = "127.0.0.1:10911"
REQUEST = Command.request(RequestCode.QUERY_CONSUMER_OFFSET)


def test_a_success_is_returned() -> None:
    answer = REQUEST.answer(ResponseCode.SUCCESS)
    assert checked(answer, "the offset", ADDRESS) is answer


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ResponseCode.SYSTEM_BUSY, errors.BrokerBusy),
        (ResponseCode.NO_PERMISSION, errors.PermissionDenied),
        (999, errors.BrokerRefused),
    ],
)
def test_a_refusal_names_the_request_and_the_server(code: int, kind: type[errors.MQError]) -> None:
    with pytest.raises(kind) as caught:
        checked(REQUEST.answer(code, "not now"), "the offset", ADDRESS)
    error = caught.value
    assert (error.what, error.address, error.code, error.remark) == ("the offset", ADDRESS, code, "not now")


def test_what_cannot_be_read_names_the_request_and_the_server() -> None:
    answer = REQUEST.answer(ResponseCode.SUCCESS, body=b"[")
    for read, kind in ((header_of, QueryConsumerOffsetResponse), (short_body_of, ConsumerIdList)):
        with pytest.raises(errors.ProtocolViolation) as caught:
            read(kind, answer, "the members", ADDRESS)  # type: ignore[operator]
        assert (caught.value.what, caught.value.address) == ("the members", ADDRESS)
        assert caught.value.remark
