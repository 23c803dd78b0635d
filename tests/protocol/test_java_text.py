"""Java's hash codes, its UTF-8 and its integers, against a slow reading of the definition and known values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.java_text import (
    index_key_hash,
    java_hash,
    java_hash_with_prefix,
    java_long_hash,
    join_surrogates,
    natural_number,
    parse_integer,
    select_by_hash,
    utf8,
)


def slow_hash(text: str) -> int:
    data, code = text.encode("utf-16-be", "surrogatepass"), 0
    for at in range(0, len(data), 2):
        code = code * 31 + int.from_bytes(data[at : at + 2], "big") & 0xFFFFFFFF
    return code - (1 << 32) if code > 0x7FFFFFFF else code


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)


@given(ANY_TEXT, st.integers(0, 80), st.integers(1, 200))
def test_hashes(text: str, cut: int, times: int) -> None:
    assert java_hash(text) == slow_hash(text)
    assert java_hash_with_prefix(text[:cut], text[cut:]) == slow_hash(text)
    assert java_hash(text * times) == slow_hash(text * times)


@given(st.text("0123456789ABCDEF", min_size=32, max_size=32))
def test_hashes_of_unique_ids(key: str) -> None:
    assert java_hash_with_prefix("Topic#", key) == slow_hash("Topic#" + key)


def test_hashes_of_long_texts() -> None:
    for text in ("x" * 300, "ÿ" * 10_000, "中" * 5000, "a" * 4096, "b" * 4097, "😀" * 999):
        assert java_hash(text) == java_hash_with_prefix("", text) == slow_hash(text)
    assert java_hash("polygenelubricants") == -2147483648
    assert index_key_hash("polygenelubricants") == 0
    assert select_by_hash(-2147483648, 7) == 2147483648 % 7
    assert (java_long_hash(-5), java_long_hash(1 << 40)) == (4, 256)


def test_utf8_of_java() -> None:
    assert utf8("a\ud800b") == b"a?b"
    assert utf8("\ud83d\ude00") == "😀".encode()
    assert join_surrogates("plain") == "plain"


@pytest.mark.parametrize(
    ("text", "bits", "value"),
    [
        ("0", 32, 0),
        ("+7", 32, 7),
        ("-2147483648", 32, -(1 << 31)),
        ("2147483648", 64, 1 << 31),
        ("0" * 5000, 32, 0),
        ("-" + "0" * 5000 + "120", 32, -120),
    ],
)
def test_integers_are_read_as_java_does(text: str, bits: int, value: int) -> None:
    """With any number of zeros in front, of which `int` takes some thousand."""
    assert parse_integer(text, bits) == value


@pytest.mark.parametrize(
    "text",
    ["", "-", "+-1", " 1", "1_0", "1.0", "\u00b2", "2147483648", "9" * 5000, "1" + "0" * 50, "x" + "0" * 50 + "1"],
)
def test_other_text_is_no_integer(text: str) -> None:
    with pytest.raises(ValueError, match="not an integer of 32 bits"):
        parse_integer(text, 32)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("+7", 7), ("0" * 5000 + "4", 4), ("2147483647", (1 << 31) - 1)]
    + [(text, None) for text in ("", "-1", "2147483648", "\u00b2", "\u0663", "9" * 5000)],
)
def test_natural_numbers(text: str, value: int | None) -> None:
    assert natural_number(text, 32) == value
