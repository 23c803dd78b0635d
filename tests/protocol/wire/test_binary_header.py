"""The binary header: known bytes, lengths at their edges, and maps that end in the wrong place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.codes import LanguageCode
from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError
from triomq_protocol.wire.binary_header import decode_area, decode_binary_header, encode_area, encode_binary_header

# docs/protocol/remoting.md §3: the header of a route request, and of an answer with a remark.
ROUTE = bytes.fromhex("0069 00 0197 00000000 00000000 00000000 00000011 0005 746f706963 00000006 546f70696341")
REFUSED = bytes.fromhex(
    "0003 00 0197 000003ea 00000001 00000020 207265717565737420747970652039393939206e6f7420737570706f72746564 00000000"
)


def header(remark_bytes: int, remark: bytes, area_bytes: int, area: bytes) -> bytes:
    lengths = [size.to_bytes(4, "big", signed=True) for size in (remark_bytes, area_bytes)]
    return bytes(13) + lengths[0] + remark + lengths[1] + area


def test_documented_headers() -> None:
    parts = decode_binary_header(ROUTE)
    assert (parts.code, parts.language_name, parts.version, parts.opaque, parts.flag) == (105, "JAVA", 407, 0, 0)
    assert (parts.remark, decode_area(parts.area), parts.end) == (None, [("topic", "TopicA")], len(ROUTE))
    assert encode_binary_header(105, LanguageCode.JAVA, 407, 0, 0, None, encode_area([("topic", "TopicA")])) == ROUTE
    parts = decode_binary_header(REFUSED)
    assert (parts.code, parts.opaque, parts.flag, parts.remark) == (3, 1002, 1, " request type 9999 not supported")
    assert (parts.area, parts.end) == (b"", len(REFUSED))
    assert encode_binary_header(3, None, 407, 1002, 1, parts.remark, b"") == REFUSED


@pytest.mark.parametrize("data", [ROUTE, REFUSED])
def test_a_header_cut_anywhere_is_refused(data: bytes) -> None:
    for count in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_binary_header(data[:count])


@pytest.mark.parametrize("size", [-1, -(1 << 31)])
def test_a_negative_length_reads_as_none(size: int) -> None:
    parts = decode_binary_header(header(size, b"", size, b"rest"))
    assert (parts.remark, parts.area, parts.end) == (None, b"", 21)


@pytest.mark.parametrize("size", [5, 1 << 20, (1 << 31) - 1])
def test_a_length_beyond_the_header_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"remark of {size} bytes"):
        decode_binary_header(header(size, b"four", 0, b""))
    with pytest.raises(RemoteProtocolError, match=f"ext fields of {size} bytes"):
        decode_binary_header(header(0, b"", size, b"four"))


def test_bytes_after_the_map_belong_to_the_body() -> None:
    area = encode_area([("a", "b")])
    assert decode_binary_header(header(2, b"hi", len(area), area + b"body")).end == 21 + 2 + len(area)


@pytest.mark.parametrize(
    ("area", "message"),
    [
        (b"\x00", "inside a length"),
        (b"\x00\x01", "ext field of 1 bytes"),
        (b"\x00\x01a", "inside a length"),
        (b"\x00\x01a\x00\x00\x00", "inside a length"),
        (b"\x00\x01a\x00\x00\x00\x02b", "ext field of 2 bytes"),
        (b"\x00\x01a\x7f\xff\xff\xffb", "ext field of 2147483647 bytes"),
        (b"\x7f\xffa\x00\x00\x00\x00", "ext field of 32767 bytes"),
    ],
)
def test_a_map_that_ends_inside_an_entry_is_refused(area: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        decode_area(area)
    with pytest.raises(RemoteProtocolError, match=message):
        decode_binary_header(header(0, b"", len(area), area))


@pytest.mark.parametrize("length", [b"\x00\x00", b"\xff\xff", b"\x80\x00"])
def test_names_and_values_without_length_are_null(length: bytes) -> None:
    assert decode_area(length + b"\x00\x00\x00\x01v") == [(None, "v")]
    assert decode_area(b"\x00\x01n\x00\x00" + length if length == b"\x00\x00" else b"\x00\x01n" + length * 2) == [
        ("n", None)
    ]


def test_duplicates_and_order_are_kept() -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "3")]
    assert decode_area(encode_area(pairs)) == pairs
    assert encode_area([("a", None), (None, "b"), (None, None)]) == b""


def test_the_number_of_fields_is_limited() -> None:
    empty = bytes(6)
    assert len(decode_area(empty * 4096)) == 4096
    with pytest.raises(RemoteProtocolError, match="more than 4096 ext fields"):
        decode_area(empty * 4097)


def test_text_that_is_no_utf8_is_replaced() -> None:
    assert decode_area(b"\x00\x01\xff\x00\x00\x00\x02\xc3(") == [("\ufffd", "\ufffd(")]
    assert decode_binary_header(header(1, b"\x80", 0, b"")).remark == "\ufffd"
    assert decode_area(encode_area([("\ud83d\ude00", "a\ud800")])) == [("😀", "a?")]


@pytest.mark.parametrize(
    ("number", "read"), [(0, 0), (32767, 32767), (32768, -32768), (65535, -1), (65536, 0), (-1, -1), (-32769, 32767)]
)
def test_code_and_version_keep_16_bits(number: int, read: int) -> None:
    parts = decode_binary_header(encode_binary_header(number, None, number, 0, 0, None, b""))
    assert (parts.code, parts.version) == (read, read)


@pytest.mark.parametrize("number", range(-128, 128))
def test_languages_by_number(number: int) -> None:
    data = bytearray(bytes(21))
    data[2] = number & 0xFF
    want = LanguageCode(number).name if 0 <= number <= 12 else None
    assert decode_binary_header(bytes(data)).language_name == want


@pytest.mark.parametrize(("opaque", "flag"), [(1 << 31, 0), (-(1 << 31) - 1, 0), (0, 1 << 31)])
def test_numbers_beyond_32_bits_cannot_be_written(opaque: int, flag: int) -> None:
    with pytest.raises(LocalProtocolError, match="out of range"):
        encode_binary_header(1, None, 1, opaque, flag, None, b"")


def test_a_name_has_at_most_32767_bytes() -> None:
    name = "é" * 16383 + "x"
    assert decode_area(encode_area([(name, "v")])) == [(name, "v")]
    with pytest.raises(LocalProtocolError, match="32768 bytes"):
        encode_area([(name + "x", "v")])


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=9)), max_size=6),
    st.text(max_size=9),
)
def test_what_is_written_is_read(pairs: list[tuple[str | None, str | None]], remark: str) -> None:
    area = encode_area(pairs)
    data = encode_binary_header(5, LanguageCode.GO, 407, -7, 3, remark, area)
    parts = decode_binary_header(data + b"after")
    assert (parts.code, parts.language_name, parts.version, parts.opaque, parts.flag) == (5, "GO", 407, -7, 3)
    assert (parts.remark or "", decode_area(parts.area), parts.end) == (remark, pairs, len(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "binary header of 0 bytes"),
        (bytes(20), "binary header of 20 bytes"),
        (header(1, b"", 0, b""), "remark of 1 bytes in a header of 21 bytes"),
        (header(9, b"four", 0, b""), "remark of 9 bytes in a header of 25 bytes"),
        (header(0, b"", 5, b"four"), "ext fields of 5 bytes in a header of 25 bytes"),
        (header(0, b"", 3, b"\x00\x05a"), "ext field of 5 bytes in a map of 3 bytes"),
        (header(0, b"", 1, b"\x00"), "ext fields end inside a length"),
    ],
)
def test_errors_of_impossible_headers(data: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_binary_header(data)
    assert str(caught.value) == message


def test_a_remark_may_fill_the_header_up_to_the_length_of_the_map() -> None:
    assert decode_binary_header(header(4, b"four", 0, b"")).remark == "four"
    assert decode_binary_header(header(0, b"", 6, bytes(6))).area == bytes(6)
    assert decode_binary_header(header(0, b"", 0, b"")).end == 21
