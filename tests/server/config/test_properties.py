"""Java properties text: reading it, and reading back written values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_server.config import PropertiesError, dump_properties, load_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\t=\tb", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c:d e", {"a": "b=c:d e"}),
        ("# x=1\n ! y=2\n\n  a=b", {"a": "b"}),
        ("a=b\\\n   c\nd=e", {"a": "bc", "d": "e"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=\\u00e9\\t\\x", {"a": "é\tx"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        # Java keeps the blank and then reads "true " as false; trimming is on purpose.
        ("slaveReadEnable=true   ", {"slaveReadEnable": "true"}),
        ("a=b\\\n# not a comment", {"a": "b# not a comment"}),
    ],
)
def test_reads(text: str, expected: dict[str, str]) -> None:
    assert load_properties(text) == expected


def test_bytes_are_utf8_or_else_latin1() -> None:
    assert load_properties("a=é".encode()) == {"a": "é"}
    assert load_properties("a=é".encode("latin-1")) == {"a": "é"}
    assert load_properties(b"\xef\xbb\xbfa=b") == {"a": "b"}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\u"])
def test_malformed_escape_is_an_error(text: str) -> None:
    with pytest.raises(PropertiesError):
        load_properties(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        st.text(st.characters(exclude_categories=["Cs"])).map(str.strip),
    )
)
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    assert load_properties(dump_properties(values)) == values


def test_written_text_is_plain_ascii() -> None:
    assert dump_properties({"a b": " é#"}) == "a\\ b=\\ \\u00E9#\n"
