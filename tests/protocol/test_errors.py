"""The texts of errors, and the values that handlers read from them."""

from __future__ import annotations

import pytest

from triomq_protocol.errors import (
    BodyError,
    BodyTooLongError,
    HeaderError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LocalProtocolError("too long"), "too long"),
        (RemoteProtocolError("frame length -1"), "frame length -1"),
        (HeaderError("queueId", "is missing"), "header field 'queueId' is missing"),
        (HeaderError("e", "is malformed: 'zz'"), "header field 'e' is malformed: 'zz'"),
        (BodyError("TopicList", "the body is not a JSON object"), "TopicList: the body is not a JSON object"),
        (BodyTooLongError("JSON", 20000, 16384), "JSON: 20000 bytes of non-standard JSON, the limit is 16384"),
        (
            BodyTooLongError("TopicList", 20000, 16384, "key expected"),
            "TopicList: 20000 bytes of non-standard JSON, the limit is 16384: key expected",
        ),
    ],
)
def test_texts(error: ProtocolError, text: str) -> None:
    assert str(error) == text
    assert isinstance(error, ProtocolError)


def test_what_handlers_read() -> None:
    assert HeaderError("queueId", "is missing").field == "queueId"
    assert BodyError("TopicList", "x").what == "TopicList"
    long = BodyTooLongError("TopicList", 20000, 16384)
    assert (long.what, long.size_bytes, long.limit_bytes) == ("TopicList", 20000, 16384)
    assert isinstance(long, BodyError)


def test_an_unusable_request_does_not_end_the_link() -> None:
    """Servers answer what is unusable and close only for RemoteProtocolError, so none of the others may be one."""
    for error in (HeaderError("a", "b"), BodyError("a", "b"), BodyTooLongError("a", 2, 1), LocalProtocolError("a")):
        assert not isinstance(error, RemoteProtocolError)
