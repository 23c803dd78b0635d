"""Java's hash codes and its UTF-8, against a slow reading of the definition and known values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.java_text import (
    index_key_hash,
    java_hash,
    java_hash_with_prefix,
    java_long_hash,
    join_surrogates,
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
