"""The property string: coming back, odd segments, single changes, what a broker stores."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol import names, properties
from triomq_protocol.java_text import utf8

PART = st.text(alphabet=st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=10)
MAPS = st.dictionaries(PART | st.sampled_from(["WAIT", "CLUSTER", "TAGS"]), PART, max_size=6)
RAW = st.lists(st.sampled_from(["\x01", "\x02", "a", "WAIT", "CLUSTER", "XWAIT"]), max_size=12).map("".join)


@given(MAPS)
def test_properties_come_back(values: dict[str, str]) -> None:
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
