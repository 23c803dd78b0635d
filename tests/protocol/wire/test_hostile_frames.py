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


def test_a_decoder_keeps_failing_after_a_fault() -> None:
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


def _ext(members: bytes) -> Command:
    (command,) = FrameDecoder().feed(json_frame(b'{"code":1,"extFields":{%b}}' % members))
    return command


@pytest.mark.parametrize(
    ("value", "text"), [(b"[1e300]", "[1.0E300]"), (b'{"a":{}}', '{"a":{}}'), (b'[[["x"]]]', '[[["x"]]]')]
)
def test_lists_and_objects_as_ext_fields_have_a_limit(value: bytes, text: str) -> None:
    """Making Java's text of 256 KiB of them takes up to 0.4 s."""
    filled = b'"topic":"%b","other":' % (b"x" * (4096 - len(b'{"topic":"","other":}') - len(value)))
    assert (_ext(filled + value).fields or {})["other"] == text
    for more in (1, 20_000):
        with pytest.raises(HeaderError, match="extFields"):
            _ext(filled + value + b" " * more).field_pairs()
    command = _ext(b'"topic":"A","other":[' + b"1e300," * 40_000 + b"0]")
    assert command.header(GetRouteInfoRequest).topic == "A"  # which makes no text of the other field


@pytest.mark.parametrize("name", [b"%d", b"\xff%d"])
def test_the_number_of_ext_fields_in_json_is_limited(name: bytes) -> None:
    members = [b'"%b":%d' % (name % number, number) for number in range(4097)]
    assert len(_ext(b",".join(members[:-1])).fields or {}) == 4096
    with pytest.raises(HeaderError, match="has more than 4096 members"):
        _ext(b",".join(members)).field_pairs()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"7", "7"), (b"1e5", "100000.0"), (b"true", "true"), (b"null", None), (b'"a\xff"', "a\ufffd"), (b'"\\ud83d\\ude00"', "😀"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [10, 5000, 20_000])
def test_values_of_ext_fields_behind_long_ones(length: int, value: bytes, text: str | None) -> None:
    pairs = _ext(b'"long":"%b","value":%b' % (b"x" * length, value)).field_pairs()
    assert pairs == [("long", "x" * length), ("value", text)]


@pytest.mark.parametrize("depth", [66, 300, 500, 900, 20_000])
def test_a_deep_remark_is_no_header(depth: int) -> None:
    with pytest.raises(RemoteProtocolError, match=r"not JSON|unusual form"):
        FrameDecoder().feed(json_frame(b'{"code":1,"remark":%b}' % (b"[" * depth + b"]" * depth)))


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"{code:105,}", 105), (b"{'code':'105'}", 105), (b'{"code":105.9}', 105), (b'{"code":null}', 0), (b'{"code":""}', 0),
        (b'/**/{"code":105}//x', 105), (b'{"code":4294967401}', 105), (b'{"code":-2147483649}', 2147483647), (b'{"code":1,"code":105}', 105),
        (b'\t{ "code" : 105 }\n', 105), (b'{"code":"1,05"}', 105), (b'{"code":"105.0"}', 105), (b'{"code":"+105"}', 105),
        (b'{"code":"NULL"}', 0), (b'{"code":true}', 1), (b'{"code":1.05e2}', 105),
    ],
)  # fmt: skip
def test_header_numbers_in_odd_spellings(header: bytes, code: int) -> None:
    assert FrameDecoder().feed(json_frame(header))[0].code == code


@pytest.mark.parametrize("rest", [b"", b',"language":"GO","version":407'])
@pytest.mark.parametrize("name", [b"Code", b"CODE", b"co_de", b"c-o-d-e", b"_Code_", rb"\u0043ode"])
def test_names_of_members_in_other_spellings(name: bytes, rest: bytes) -> None:
    (command,) = FrameDecoder().feed(
        json_frame(b'{"opaque":3,"%b":105,"serializeTypeCurrentRPC":"JSON"%b}' % (name, rest))
    )
    assert (command.code, command.opaque) == (105, 3)


def test_all_members_in_other_spellings() -> None:
    header = b'{"CODE":105,"ext_fields":{"Topic":"A"},"Flag":2,"LANGUAGE":"GO","Opaque":3,"Remark":"x","VERSION":7,"New":[{}]}'
    (command,) = FrameDecoder().feed(json_frame(header))
    assert (command.code, command.flag, command.opaque, command.version) == (105, 2, 3, 7)
    assert (command.remark, command.language_name, command.fields) == ("x", "GO", {"Topic": "A"})


@pytest.mark.parametrize("name", [b"c\xc3\xb8de", b"isCode", b"setCode", b"codes", b"cod"])
def test_names_that_are_no_spelling_of_a_member_are_unknown(name: bytes) -> None:
    assert FrameDecoder().feed(json_frame(b'{"%b":105,"opaque":3}' % name))[0].code == 0


@pytest.mark.parametrize(
    ("start", "most", "text"),
    [
        (b'{"code":"105"', 1 << 14, "header of 16385 bytes in an unusual form, the limit is 16384"),
        (b'{"Code":105', 1 << 14, "header of 16385 bytes in an unusual form, the limit is 16384"),
        (b'{"code":105,"new":[]', 1 << 14, "header of 16385 bytes in an unusual form, the limit is 16384"),
        (b"{code:105", 1 << 12, "header is not JSON: JSON: 4097 bytes of non-standard JSON, the limit is 4096"),
    ],
)
def test_a_header_in_an_unusual_form_has_a_limit(start: bytes, most: int, text: str) -> None:
    rest = b',"remark":"%b"}' % (b"x" * (most - len(start) - len(b',"remark":""}')))
    assert FrameDecoder().feed(json_frame(start + rest))[0].code == 105
    with pytest.raises(RemoteProtocolError, match=text):
        FrameDecoder().feed(json_frame(start + b" " + rest))
    assert FrameDecoder().feed(json_frame(b'{"code":105' + rest + b" " * most))[0].code == 105


def test_of_several_spellings_the_first_counts() -> None:
    assert FrameDecoder().feed(json_frame(b'{"Code":5,"code":6,"opaque":3}'))[0].code == 5
    assert FrameDecoder().feed(json_frame(b'{"code":6,"Code":5,"opaque":3}'))[0].code == 6


@pytest.mark.parametrize("value", [b'"JSON"', b'"ROCKETMQ"', b"null", b'"X"', b"7"])
def test_the_serialization_named_in_a_header_is_ignored(value: bytes) -> None:
    (command,) = FrameDecoder().feed(json_frame(b'{"code":105,"serializeTypeCurrentRPC":%b,"version":407}' % value))
    assert (command.code, command.serialize, command.version) == (105, SerializeType.JSON, 407)


@pytest.mark.parametrize(
    "header", [b"", b" ", b"{", b'{"code":}', b'{"code":[]}', b'{"code":"2147483648"}', b'{"code":NaN}', b'{"code":1e999}',
               b'{"code":"x"}', b'{"code":"1_0"}', b'{"code":" 1"}', b'{"code":"1.5"}', b'{"code":1_0}', b'{"version":"4_07"}', b"{}{}", b'{"extFields":5,"flag":"1"}', b"\x00\x00", b"\xff"],
)  # fmt: skip
def test_headers_that_cannot_be_decoded(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(json_frame(header))


def test_an_escaped_pair_and_a_lone_surrogate_in_a_header() -> None:
    (command,) = FrameDecoder().feed(json_frame(rb'{"remark":"\ud83d\ude00","extFields":{"topic":"a\ud800"}}'))
    assert command.remark == "😀"
    assert command.header(GetRouteInfoRequest).topic in ("a\ud800", "a?")
    assert b'"topic":"a?"' in command.encode()
