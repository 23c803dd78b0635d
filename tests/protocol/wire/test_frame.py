"""The frame decoder: any split, caps, broken input, and no quadratic work."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.codes import LanguageCode, SerializeType
from triomq_protocol.errors import ProtocolError, RemoteProtocolError
from triomq_protocol.requests import GetRouteInfoRequest, SendMessageRequestV2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import MAX_FRAME_BYTES, FrameDecoder

TEXT = st.text(max_size=40)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
FIELDS = st.none() | st.dictionaries(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=30), max_size=20)
COMMANDS = st.builds(
    Command,
    code=st.integers(0, 32767),
    flag=st.integers(0, 3),
    opaque=INT32,
    version=st.integers(0, 32767),
    remark=st.none() | st.text(min_size=1, max_size=60),
    serialize=st.sampled_from(list(SerializeType)),
    body=st.binary(max_size=200),
    language_name=st.sampled_from([code.name for code in LanguageCode]),
    extra=FIELDS,
)


def summary(command: Command) -> tuple[object, ...]:
    return (
        command.code, command.flag, command.opaque, command.version, command.remark, command.language, command.body,
        command.serialize, command.fields or None,
    )  # fmt: skip


@given(st.lists(COMMANDS, max_size=5), st.data())
def test_encoded_frames_are_decoded_in_any_split(commands: list[Command], data: st.DataObject) -> None:
    stream = b"".join(command.encode() for command in commands)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    got = [c for start, end in pairwise([0, *cuts, len(stream)]) for c in decoder.feed(stream[start:end])]
    assert [summary(command) for command in got] == [summary(command) for command in commands]
    frame = Command(opaque=5).encode()
    assert [command.opaque for command in decoder.feed(frame)] == [5]  # no byte was left over


@given(st.lists(COMMANDS, min_size=1, max_size=3))
def test_bytes_that_arrive_one_by_one_make_the_same_frames(commands: list[Command]) -> None:
    decoder = FrameDecoder()
    for command in commands:
        frame = command.encode()
        for byte in frame[:-1]:
            assert decoder.feed(bytes([byte])) == []
        assert [summary(c) for c in decoder.feed(frame[-1:])] == [summary(command)]


@given(COMMANDS, st.integers(0, 30))
def test_bytes_after_a_frame_start_the_next_one(command: Command, count: int) -> None:
    frame = command.encode()
    decoder = FrameDecoder()
    assert len(decoder.feed(frame + frame[:count])) == (2 if count >= len(frame) else 1)
    assert len(decoder.feed(frame[count:])) == (1 if count < len(frame) else 0)


@given(COMMANDS)
def test_encoding_twice_gives_the_same_bytes(command: Command) -> None:
    frame = command.encode()
    assert FrameDecoder().feed(frame)[0].encode() == frame
    assert command.encode_head(len(command.body)) + command.body == frame


def frame_of(total: int, mark: int, rest: bytes = b"") -> bytes:
    return total.to_bytes(4, "big", signed=True) + mark.to_bytes(4, "big") + rest


def feed_slowly(decoder: FrameDecoder, data: bytes) -> None:
    for byte in data:
        decoder.feed(bytes([byte]))


@pytest.mark.parametrize(
    "data",
    [
        frame_of(-1, 0),
        frame_of(0, 0),
        frame_of(3, 0),
        frame_of(4, 0),
        frame_of(MAX_FRAME_BYTES - 3, 2),
        frame_of(0x7FFFFFFF, 2),
        frame_of(10, 7, b"{}    "),
        frame_of(6, 2 << 24 | 2, b"{}"),
        frame_of(6, 0xFF << 24 | 2, b"{}"),
        frame_of(6, 2, b"[]"),
        frame_of(8, 4, b"null"),
        frame_of(5, 1, b"7"),
        frame_of(6, 2, b"{\xff"),
        frame_of(18, 14, b'{"code":"zehn"'),
        frame_of(19, 15, b'{"code":"zehn"}'),
        frame_of(18, 14, b'{"flag":[1,2]}'),
        frame_of(4 + 20, 1 << 24 | 20, bytes(20)),
    ],
)
def test_broken_frames_end_the_link(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(data)
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        feed_slowly(decoder, data)


def test_good_frames_in_front_of_garbage_are_not_lost_with_it() -> None:
    good = Command.request(105, GetRouteInfoRequest(topic="T"), opaque=7)
    for garbage in (frame_of(-1, 0), frame_of(6, 2, b"[]"), b"GET / HTTP/1.1\r\n\r\n"):
        decoder = FrameDecoder()
        assert [c.opaque for c in decoder.feed(good.encode() + good.encode() + garbage)] == [7, 7]
        assert isinstance(decoder.fault, RemoteProtocolError)
        with pytest.raises(RemoteProtocolError):
            decoder.feed(good.encode())


def test_the_length_alone_is_enough_to_refuse() -> None:
    decoder = FrameDecoder(max_frame_bytes=1000)
    with pytest.raises(RemoteProtocolError, match="limit is 1000"):
        decoder.feed((997).to_bytes(4, "big"))


def test_a_header_full_of_empty_fields_is_refused_at_once() -> None:
    area = bytes(6 * 100_000)
    header = bytes(17) + len(area).to_bytes(4, "big") + area
    with pytest.raises(RemoteProtocolError, match="4096"):
        FrameDecoder().feed(frame_of(4 + len(header), 1 << 24 | len(header), header))


@pytest.mark.parametrize(
    "area",
    [
        b"\x00",
        b"\x00\x01",
        b"\x00\x01k",
        b"\x00\x01k\x00\x00",
        b"\x00\x01k\x00\x00\x00\x02v",
        b"\x00\x09k\x00\x00\x00\x00",
    ],
)
def test_binary_fields_that_end_too_early(area: bytes) -> None:
    header = bytes(17) + len(area).to_bytes(4, "big") + area
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(frame_of(4 + len(header), 1 << 24 | len(header), header))
    longer = bytes(17) + (len(area) + 1).to_bytes(4, "big") + area
    with pytest.raises(RemoteProtocolError, match="in a header of"):
        FrameDecoder().feed(frame_of(4 + len(longer), 1 << 24 | len(longer), longer))


def test_the_longest_frame_is_taken() -> None:
    header = b"{}"
    frame = frame_of(996, 2, header + bytes(990))
    assert len(frame) == 1000
    assert len(FrameDecoder(max_frame_bytes=1000).feed(frame)[0].body) == 990


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waits(data: bytes) -> None:
    decoder = FrameDecoder(max_frame_bytes=4096)
    try:
        decoder.feed(data)
    except ProtocolError:
        assert decoder.fault is not None


@given(COMMANDS, st.data())
def test_flipped_bytes_never_break_the_decoder(command: Command, data: st.DataObject) -> None:
    frame = bytearray(command.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        for got in FrameDecoder().feed(bytes(frame)):
            assert got.fields is None or isinstance(got.fields, dict)
            assert got.language is None or isinstance(got.language, LanguageCode)
            got.header(GetRouteInfoRequest)
            got.header(SendMessageRequestV2)
    except ProtocolError:
        pass


@given(st.binary(min_size=1, max_size=120), st.sampled_from([0, 1 << 24]))
def test_noise_as_a_header(noise: bytes, kind: int) -> None:
    try:
        for got in FrameDecoder().feed(frame_of(4 + len(noise), kind | len(noise), noise)):
            assert got.field_pairs() is None or got.fields is not None
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, '{"a":' * 50_000, '{"extFields":' + "[" * 50_000, "{{" * 50_000,
        '{"code":"310","extFields":{"a":' + "[" * 600 + "]" * 600 + "}}",
    ],
)  # fmt: skip
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(frame_of(4 + len(text), len(text), text.encode()))


def test_a_large_body_in_pieces_costs_linear_work() -> None:
    frame = Command.request(310, body=bytes(8 << 20)).encode()

    def spent(piece: int) -> float:
        decoder, start, out = FrameDecoder(), time.perf_counter(), []
        for at in range(0, len(frame), piece):
            out += decoder.feed(frame[at : at + piece])
        assert len(out) == 1
        assert len(out[0].body) == 8 << 20
        return time.perf_counter() - start

    # 4096 pieces; joining again and again would copy 16 GiB, some ten seconds.
    assert spent(2048) < 2


def test_a_small_frame_does_not_keep_its_chunk_in_memory() -> None:
    frame = Command.request(105, fields={"topic": "T"}, body=b"x").encode()
    first, *_ = FrameDecoder().feed(frame * 1000)
    assert len(memoryview(first.raw_ext).obj) < len(frame)  # type: ignore[arg-type]
    assert first.body == b"x"


@pytest.mark.parametrize("serialize", list(SerializeType))
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_length_that_is_off_by_one(serialize: SerializeType, off_by: int) -> None:
    """One byte too few goes missing from the body; one too many is waited for, and taken from what follows."""
    frame = bytearray(Command(code=10, opaque=7, body=b"body", serialize=serialize).encode())
    frame[:4] = (int.from_bytes(frame[:4], "big") + off_by).to_bytes(4, "big")
    decoder = FrameDecoder()
    found = list(decoder.feed(bytes(frame)))
    if off_by < 0:
        assert [command.body for command in found] == [b"bod"]
    else:
        assert found == []
        (command,) = decoder.feed(b"!")
        assert command.body == b"body!"


def test_frames_are_decoded_so_many_at_once() -> None:
    frames = b"".join(Command.request(10, opaque=number).encode() for number in range(7))
    for cut in (0, 1, 20, len(frames) - 1, len(frames)):
        decoder = FrameDecoder(frames_at_once=3)
        rounds = []
        for data in (frames[:cut], frames[cut:]):
            rounds.append([command.opaque for command in decoder.feed(data)])
            while decoder.more:
                rounds.append([command.opaque for command in decoder.feed(b"")])
        assert [opaque for one in rounds for opaque in one] == list(range(7))
        assert max(map(len, rounds)) == 3
        assert not decoder.incomplete


def test_few_unusual_headers_are_decoded_at_once() -> None:
    header = b"{'code':10,'opaque':1,'extFields':{'a':'" + b"x" * 1000 + b"'}}"
    unusual = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    usual = Command.request(10, opaque=2).encode()
    decoder = FrameDecoder(frames_at_once=1000)
    rounds = [len(decoder.feed(unusual * 10 + usual * 10))]
    while decoder.more:
        rounds.append(len(decoder.feed(b"")))
    assert rounds == [4, 4, 12]
    assert len(FrameDecoder().feed(unusual * 10)) == 10, "a client has no other connections to be fair to"


def test_few_binary_headers_of_very_many_fields_are_decoded_at_once() -> None:
    fields = {f"name{number}": "value" for number in range(1000)}
    many, usual = (
        Command.request(1, fields=some, serialize=SerializeType.ROCKETMQ).encode() for some in (fields, {"a": "b"})
    )
    decoder = FrameDecoder(frames_at_once=1000)
    rounds = [len(decoder.feed(many * 10 + usual * 10))]
    while decoder.more:
        rounds.append(len(decoder.feed(b"")))
    assert rounds == [3, 3, 3, 11]
    assert len(FrameDecoder().feed(many * 10)) == 10, "a client has no other connections to be fair to"


def test_what_is_no_frame_behind_those_decoded_at_once_is_a_fault_later() -> None:
    decoder = FrameDecoder(frames_at_once=1)
    assert len(decoder.feed(Command.request(10).encode() * 2 + b"\xff" * 8)) == 1
    assert decoder.fault is None
    assert len(decoder.feed(b"")) == 1
    assert not decoder.more
    assert isinstance(decoder.fault, RemoteProtocolError)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (frame_of(-1, 0), "frame length -1"),
        (frame_of(3, 0), "frame length 3"),
        (frame_of(97, 0), "frame of 101 bytes, the limit is 100"),
        (b"HTTP/1.1", "frame of 1213486164 bytes, the limit is 100: the peer speaks HTTP, this is a web server's port"),
        (b"HTTQ/1.1", "frame of 1213486165 bytes, the limit is 100"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00", "frame of 352518404 bytes, the limit is 100: the peer speaks TLS"),
        (b"\x16\x03\x01\x00\xc8\x01\x00\x00", "frame of 369295620 bytes, the limit is 100: the peer speaks TLS"),
        (b"\x16\x02\x01\x00\xc8\x01\x00\x00", "frame of 369230084 bytes, the limit is 100"),
        (b"\x17\x03\x01\x00\xc8\x01\x00\x00", "frame of 386072836 bytes, the limit is 100"),
        (frame_of(96, 2 << 24), "unknown header encoding 2"),
        (frame_of(96, 0xFF000000), "unknown header encoding 255"),
        (frame_of(96, 41), "header of 41 bytes, the limit is 40"),
        (frame_of(96, 1 << 24 | 41), "header of 41 bytes, the limit is 40"),
        (frame_of(4, 1), "header of 1 bytes in a frame of 4 bytes"),
        (frame_of(43, 40), "header of 40 bytes in a frame of 43 bytes"),
    ],
)
def test_errors_of_impossible_frames(data: bytes, message: str) -> None:
    """In one piece as in single bytes, and before anything behind the two lengths has come."""
    with pytest.raises(RemoteProtocolError) as whole:
        FrameDecoder(100, 40).feed(data)
    decoder = FrameDecoder(100, 40)
    with pytest.raises(RemoteProtocolError) as single:
        feed_slowly(decoder, data)
    assert str(whole.value) == str(single.value) == message
    with pytest.raises(RemoteProtocolError) as again:
        decoder.feed(b"")
    assert again.value is decoder.fault is single.value


def test_a_frame_up_to_its_limits() -> None:
    header = b'{"code":5}' + b" " * 30
    (command,) = FrameDecoder(100, 40).feed(frame_of(96, 40, header + b"b" * 52))
    assert (command.code, command.body) == (5, b"b" * 52)
    (command,) = FrameDecoder(100, 40).feed(frame_of(44, 40, header))
    assert (command.code, command.body) == (5, b"")


@pytest.mark.parametrize("count", [4, 5, 6, 7])
@pytest.mark.parametrize(("total", "legal"), [(3, False), (4, True), (50, True), (96, True), (97, False), (-1, False)])
def test_a_length_is_checked_before_the_second_one_has_come(count: int, total: int, legal: bool) -> None:
    decoder = FrameDecoder(100, 40)
    start = frame_of(total, 0)[:count]
    if legal:
        assert decoder.feed(start) == []
        assert decoder.incomplete == start
    else:
        with pytest.raises(RemoteProtocolError, match=r"frame length|limit is 100"):
            decoder.feed(start)


def test_a_reader_in_front_gets_what_is_incomplete_once_a_frame_may_be_whole() -> None:
    frame = Command.request(105, GetRouteInfoRequest(topic="T"), opaque=7).encode()
    decoder = FrameDecoder()
    assert decoder.join(b"new") == b"new"
    assert decoder.feed(frame[:10]) == []
    assert decoder.join(frame[10:12]) == b""
    assert decoder.join(frame[12:-1]) == b""
    assert decoder.incomplete == frame[:-1]
    assert decoder.join(frame[-1:] + b"next") == frame + b"next"
    assert decoder.incomplete == b""
    assert [command.opaque for command in decoder.feed(frame)] == [7]


def test_a_reader_in_front_goes_on_with_frames_that_are_left() -> None:
    frame = Command(opaque=5).encode()
    decoder = FrameDecoder(frames_at_once=1)
    assert len(decoder.feed(frame * 2)) == 1
    assert decoder.more
    assert decoder.join(b"") == frame
    assert not decoder.more
    assert decoder.incomplete == b""
    assert decoder.feed(frame)[0].opaque == 5


def test_a_reader_in_front_may_keep_whole_frames_for_later() -> None:
    frame = Command(opaque=5).encode()
    decoder = FrameDecoder()
    assert not decoder.keep(b"")
    assert not decoder.keep(frame[:-1])
    assert not decoder.more
    assert decoder.keep(frame * 2 + frame[:3])
    assert decoder.more
    assert decoder.join(b"") == frame * 2 + frame[:3]
    assert decoder.keep(frame * 2 + frame[:3])
    assert [command.opaque for command in decoder.feed(frame[3:])] == [5, 5, 5]
    assert not decoder.more


def test_a_reader_in_front_takes_nothing_behind_a_fault() -> None:
    frame = Command(opaque=5).encode()
    decoder = FrameDecoder()
    decoder.feed(frame[:9])
    with pytest.raises(RemoteProtocolError):
        decoder.feed(b"\xff" * 200)
    assert decoder.join(b"new") == b"new"
    assert not decoder.keep(frame)
