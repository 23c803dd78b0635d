"""Offset ids and unique ids: known values, every field at its edges, ids of another shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.hosts import pack_host
from triomq_protocol.message_id import (
    OffsetMessageId,
    UniqueIdGenerator,
    decode_offset_message_id,
    offset_message_id,
    offset_message_ids,
)


def test_offset_ids() -> None:
    text = offset_message_id(pack_host("127.0.0.1", 10911), 1234)
    assert text == "7F00000100002A9F00000000000004D2"
    assert decode_offset_message_id(text) == OffsetMessageId("127.0.0.1", 10911, 1234)


@pytest.mark.parametrize("text", ["", "7F", "zz" * 16, "00" * 17, " " * 32, "00 " * 16, "中" * 32])
def test_ids_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(BodyError):
        decode_offset_message_id(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7F", "offset message id: 2 characters"),
        ("00 " * 16, "offset message id: 48 characters"),
        ("xyz", "offset message id: 'xyz' is not hexadecimal"),
        ("z" * 5000, f"offset message id: '{'z' * 60}' is not hexadecimal"),
    ],
)
def test_errors_of_malformed_ids(text: str, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        decode_offset_message_id(text)
    assert str(caught.value) == message


@given(
    st.sampled_from([8, 20]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.integers(0, (1 << 63) - 1),
)
def test_offset_ids_are_decoded_as_they_were_encoded(host: bytes, offset: int) -> None:
    text = offset_message_id(host, offset)
    assert text == text.upper()
    for shown in (text, text.lower()):
        decoded = decode_offset_message_id(shown)
        assert decoded.physical_offset == offset
        assert decoded.port == int.from_bytes(host[-4:], "big", signed=True)
    assert offset_message_ids(host, [offset]) == text


def test_known_ids_of_ipv6() -> None:
    text = offset_message_id(pack_host("fd00::2", 10911), 1234)
    assert text == "FD00000000000000000000000000000200002A9F00000000000004D2"
    assert decode_offset_message_id(text) == OffsetMessageId("fd00::2", 10911, 1234)


def test_the_ids_of_a_batch_are_separated_by_commas() -> None:
    host = pack_host("127.0.0.1", 10911)
    offsets = [0, 255, 1 << 40]
    assert offset_message_ids(host, offsets).split(",") == [offset_message_id(host, offset) for offset in offsets]
    assert offset_message_ids(host, []) == ""


def test_a_negative_offset_is_written_and_read_as_int64() -> None:
    text = offset_message_id(pack_host("127.0.0.1", 1), -2)
    assert text == "7F00000100000001FFFFFFFFFFFFFFFE"
    assert decode_offset_message_id(text).physical_offset == -2


def fields(text: str) -> tuple[str, str, str, int, int]:
    """Address, process id and instance in hex; milliseconds of the month and counter as numbers."""
    return text[:-24], text[-24:-20], text[-20:-12], int(text[-12:-4], 16), int(text[-4:], 16)


def test_unique_ids_count_and_follow_the_month() -> None:
    make = UniqueIdGenerator(bytes([10, 0, 0, 1]), 70000, -1, month_start_ms=1000, next_month_ms=5000)
    assert fields(make.next_id(3000)) == ("0A000001", "1170", "FFFFFFFF", 2000, 0)
    assert fields(make.next_id(3000)) == ("0A000001", "1170", "FFFFFFFF", 2000, 1)
    assert not make.needs_month(4999)
    assert make.needs_month(5000)
    make.start_month(5000, 9000)
    assert not make.needs_month(8999)
    assert fields(make.next_id(5001))[3:] == (1, 2)


def test_the_counter_wraps_at_16_bits() -> None:
    make = UniqueIdGenerator(bytes(4), 1, 1, counter=0xFFFF)
    assert [fields(make.next_id(0))[4] for _ in range(3)] == [0xFFFF, 0, 1]


@pytest.mark.parametrize(
    ("now_ms", "millis"),
    [
        (1_000_000, 0),
        (1_000_001, 1),
        (999_999, 0),  # a clock that went back a little
        (1, 0),
        (0, (1 << 32) - 1_000_000),  # and one that went back by more
        (1_000_000 + (1 << 31), 1 << 31),  # a month has more milliseconds than an int32 counts
        (1_000_000 + (1 << 32) + 5, 5),
    ],
)
def test_milliseconds_of_the_month(now_ms: int, millis: int) -> None:
    assert fields(UniqueIdGenerator(bytes(4), 1, 1, month_start_ms=1_000_000).next_id(now_ms))[3] == millis


@given(
    st.sampled_from([4, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.integers(0, 1 << 22), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 2_678_400_000), st.integers(0, 65535),
)  # fmt: skip
def test_unique_ids_hold_what_they_were_made_of(ip: bytes, pid: int, instance: int, millis: int, counter: int) -> None:
    text = UniqueIdGenerator(ip, pid, instance, month_start_ms=77, counter=counter).next_id(77 + millis)
    assert len(text) == {4: 32, 16: 56}[len(ip)]
    assert bytes.fromhex(text) == (
        ip + (pid & 0xFFFF).to_bytes(2, "big") + instance.to_bytes(4, "big", signed=True)
        + millis.to_bytes(4, "big") + counter.to_bytes(2, "big")
    )  # fmt: skip


@pytest.mark.parametrize("ip", [b"", b"123", b"12345", bytes(15), bytes(17)])
def test_an_address_has_4_or_16_bytes(ip: bytes) -> None:
    with pytest.raises(LocalProtocolError, match=f"^address of {len(ip)} bytes$"):
        UniqueIdGenerator(ip, 1, 1)
