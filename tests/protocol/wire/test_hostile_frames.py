"""Frames at the limits of a decoder, byte by byte, in both header dialects; whatever comes, the error is a
ProtocolError."""

from __future__ import annotations

import pytest

from triomq_protocol.codes import SerializeType
from triomq_protocol.errors import HeaderError, RemoteProtocolError
from triomq_protocol.requests import GetRouteInfoRequest
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

BOTH = pytest.mark.parametrize("serialize", list(SerializeType))
KINDS = {
    "empty": Command(),
    "fields": Command.request(105, fields={"topic": "T", "世": "界"}),
    "body": Command.request(310, body=b"\x00\x01\x02", oneway=True),
    "answer": Command(opaque=-5).answer(17, "no topic\n😀", fields={"a": "b"}, body=b"x" * 300),
}


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def of_dialect(kind: str, serialize: int) -> bytes:
    source = KINDS[kind]
    return Command(
        code=source.code, flag=source.flag, opaque=source.opaque, remark=source.remark, body=source.body, extra=source.extra,
        serialize=serialize,
    ).encode()  # fmt: skip


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_byte_by_byte(kind: str, serialize: int) -> None:
    frame, decoder = of_dialect(kind, serialize), FrameDecoder()
    for _ in range(2):
        for byte in frame[:-1]:
            assert decoder.feed(bytes([byte])) == []
        (command,) = decoder.feed(frame[-1:])
        assert command.encode() == frame
        assert command.serialize == serialize
        assert command.body == KINDS[kind].body
    assert decoder.fault is None


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_at_and_above_the_limit(kind: str, serialize: int) -> None:
    frame = of_dialect(kind, serialize)
    assert len(FrameDecoder(max_frame_bytes=len(frame)).feed(frame)) == 1
    for size in (4, 8, len(frame)):
        with pytest.raises(RemoteProtocolError, match=f"frame of {len(frame)} bytes, the limit is {len(frame) - 1}"):
            FrameDecoder(max_frame_bytes=len(frame) - 1).feed(frame[:size])


@pytest.mark.parametrize("mark", [2, 3, 0x7F, 0x80, 0xFF])
def test_an_unknown_serialization_is_named(mark: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unknown header encoding {mark}$"):
        FrameDecoder().feed(json_frame(b"{}").replace(b"\x00\x00\x00\x02", bytes([mark, 0, 0, 2]), 1))


def test_a_fault_stays() -> None:
    decoder, good = FrameDecoder(), of_dialect("empty", 0)
    with pytest.raises(RemoteProtocolError) as first:
        decoder.feed(b"GET / HTTP/1.1\r\n")
    for data in (good, b""):
        with pytest.raises(RemoteProtocolError) as again:
            decoder.feed(data)
        assert again.value is first.value is decoder.fault


@pytest.mark.parametrize("depth", [66, 300, 500, 900, 20_000])
@pytest.mark.parametrize("member", ["topic", "other"])
def test_deep_values_of_ext_fields_make_an_unusable_request(depth: int, member: str) -> None:
    """An answer is possible, for instance code 1, so such a header must not end in a RecursionError."""
    frame = json_frame(b'{"code":1,"extFields":{"%b":%b}}' % (member.encode(), b"[" * depth + b"]" * depth))
    decoder = FrameDecoder()
    try:
        (command,) = decoder.feed(frame)
    except RemoteProtocolError:
        assert depth > 900  # too deep for the parser of standard JSON as well
        return
    with pytest.raises(HeaderError) as caught:
        _ = command.fields
    assert caught.value.field == "extFields"


@pytest.mark.parametrize("depth", [66, 300, 500, 900, 20_000])
def test_a_deep_remark_is_no_header(depth: int) -> None:
    with pytest.raises(RemoteProtocolError, match="not JSON"):
        FrameDecoder().feed(json_frame(b'{"code":1,"remark":%b}' % (b"[" * depth + b"]" * depth)))


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"{code:105,}", 105), (b"{'code':'105'}", 105), (b'{"code":105.9}', 105), (b'{"code":null}', 0), (b'{"code":""}', 0),
        (b'/**/{"code":105}//x', 105), (b'{"code":4294967401}', 105), (b'{"code":-2147483649}', 2147483647), (b'{"code":1,"code":105}', 105),
        (b'\t{ "code" : 105 }\n', 105),
    ],
)  # fmt: skip
def test_header_numbers_in_odd_spellings(header: bytes, code: int) -> None:
    assert FrameDecoder().feed(json_frame(header))[0].code == code


@pytest.mark.parametrize(
    "header", [b"", b" ", b"{", b'{"code":}', b'{"code":[]}', b'{"code":"2147483648"}', b'{"code":NaN}', b'{"code":1e999}',
               b'{"code":"x"}', b"{}{}", b'{"extFields":5,"flag":"1"}', b"\x00\x00", b"\xff"],
)  # fmt: skip
def test_headers_that_nothing_can_be_made_of(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(json_frame(header))


def test_an_escaped_pair_and_a_lone_surrogate_in_a_header() -> None:
    (command,) = FrameDecoder().feed(json_frame(rb'{"remark":"\ud83d\ude00","extFields":{"topic":"a\ud800"}}'))
    assert command.remark == "😀"
    assert command.header(GetRouteInfoRequest).topic in ("a\ud800", "a?")
    assert b'"topic":"a?"' in command.encode()
