"""The property string: coming back, odd segments, single changes, what a broker stores."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol import names, properties
from triomq_protocol.java_text import utf8
from triomq_protocol.wire.fastjson import java_map_order

PART = st.text(alphabet=st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=10)
MAPS = st.dictionaries(PART | st.sampled_from(["WAIT", "CLUSTER", "TAGS"]), PART, max_size=6)
RAW = st.lists(st.sampled_from(["\x01", "\x02", "a", "WAIT", "CLUSTER", "XWAIT"]), max_size=12).map("".join)


@given(MAPS)
def test_properties_are_decoded_as_they_were_encoded(values: dict[str, str]) -> None:
    text = properties.encode_properties(values)
    assert properties.decode_properties(text) == properties.decode_properties(text + "\x02") == values
    assert properties.encode_properties_bytes(values) == utf8(text)
    for name in [*values, "absent"]:
        assert properties.get_property(text, name) == values.get(name)


@given(RAW, st.sampled_from(["a", "WAIT", "CLUSTER"]))
def test_one_property_without_a_dict(text: str, name: str) -> None:
    assert properties.get_property(text, name) == properties.decode_properties(text).get(name)


@given(MAPS)
def test_what_the_broker_stores(values: dict[str, str]) -> None:
    want = {name: text for name, text in values.items() if name != "WAIT"} | {"CLUSTER": "C"}
    stored = properties.broker_properties(properties.encode_properties(values), "C")
    assert properties.decode_properties(stored) == want


@given(RAW)
def test_what_the_broker_stores_of_odd_strings(text: str) -> None:
    want = properties.decode_properties(text)
    want.pop("WAIT", None)
    assert properties.decode_properties(properties.broker_properties(text, "C")) == want | {"CLUSTER": "C"}


@given(MAPS, st.sampled_from(["WAIT", "TAGS", "new"]))
def test_single_changes(values: dict[str, str], name: str) -> None:
    text = properties.encode_properties(values)
    without = {key: value for key, value in values.items() if key != name}
    assert properties.decode_properties(properties.remove_property(text, name)) == without
    replaced = properties.append_property(properties.remove_property(text, name), name, "v")
    assert properties.decode_properties(replaced) == without | {name: "v"}
    assert properties.decode_properties(properties.append_property(text + "\x02", "zz", "v"))["zz"] == "v"


def test_no_properties() -> None:
    assert properties.decode_properties(None) == {}
    assert properties.encode_properties({}) == ""
    assert properties.encode_properties({"a": None, "b": "c"}) == "b\x01c"
    assert (
        properties.broker_properties(None, "C") == properties.broker_properties("WAIT\x01true", "C") == "CLUSTER\x01C"
    )
    assert properties.broker_properties("WAIT\x01true\x02a\x01b\x02", "C") == "a\x01b\x02CLUSTER\x01C"
    assert "TAGS" in names.RESERVED_PROPERTIES


SHORT = [
    "".join(parts)
    for count in range(5)
    for parts in product(["\x01", "\x02", "WAIT", "X", "CLUSTER"], repeat=count)
]  # fmt: skip
"""All strings of up to four of these parts: separators at every place, empty names and values, names inside others."""


@pytest.mark.parametrize("name", ["WAIT", "X", "CLUSTER", "XWAIT"])
def test_every_short_string_has_the_properties_that_splitting_it_gives(name: str) -> None:
    for text in SHORT:
        whole = properties.decode_properties(text)
        assert properties.get_property(text, name) == whole.get(name), repr(text)
        rest = {key: value for key, value in whole.items() if key != name}
        assert properties.decode_properties(properties.remove_property(text, name)) == rest, repr(text)
        added = properties.append_property(properties.remove_property(text, name), name, "v")
        assert properties.decode_properties(added) == rest | {name: "v"}, repr(text)


def test_what_the_broker_stores_of_every_short_string() -> None:
    for text in SHORT:
        kept = {name: value for name, value in properties.decode_properties(text).items() if name != "WAIT"}
        stored = properties.broker_properties(text, "C")
        assert properties.decode_properties(stored) == kept | {"CLUSTER": "C"}, repr(text)
        assert stored.endswith("CLUSTER\x01C"), repr(text)
        segments = text.removesuffix("\x02").split("\x02")
        assert all(segment.partition("\x01")[0] and segment.partition("\x01")[2] for segment in stored.split("\x02"))
        if "WAIT\x01" in text or "CLUSTER\x01" in text:
            continue
        if len(properties.decode_properties(text)) == len(segments):
            assert stored.startswith(text), repr(text)
        else:
            assert stored == properties.encode_properties(kept | {"CLUSTER": "C"}), repr(text)


@pytest.mark.parametrize("count", [0, 1, 12, 13, 24, 25, 48, 49, 200])
def test_the_order_of_java_grows_with_its_table(count: int) -> None:
    """A HashMap doubles when it is fuller than three quarters: the 13th, 25th and 49th name."""
    values = {f"name-{number * 7919}": str(number) for number in range(count)}
    text = properties.encode_properties_as_java(values).decode()
    assert text == "\x02".join(f"{name}\x01{values[name]}" for name in java_map_order(values))


def test_names_in_one_bucket_keep_their_order() -> None:
    assert properties.encode_properties_as_java({"BB": "1", "Aa": "2"}) == b"BB\x011\x02Aa\x012"
    assert properties.encode_properties_as_java({"Aa": "2", "BB": "1"}) == b"Aa\x012\x02BB\x011"
    assert properties.encode_properties_as_java({"a": "\ud800"}) == b"a\x01?"


@pytest.mark.parametrize(
    ("text", "appended"),
    [("", "c\x01d"), ("a\x01b", "a\x01b\x02c\x01d"), ("a\x01b\x02", "a\x01b\x02c\x01d"), ("\x02", "\x02c\x01d")],
)
def test_one_separator_before_an_added_property(text: str, appended: str) -> None:
    assert properties.append_property(text, "c", "d") == appended


def test_no_long_name_is_kept() -> None:
    """Senders choose the names, and 1,024 of 200,000 characters would take 200 MB."""
    properties._kept_map_hash.cache_clear()
    values = {f"{number}{'n' * length}": "v" for number in range(5) for length in (3, 60, 64, 10_000)}
    text = properties.encode_properties_as_java(values)
    assert text.decode() == "\x02".join(f"{name}\x01v" for name in java_map_order(values))
    assert properties._kept_map_hash.cache_info().currsize == 10
