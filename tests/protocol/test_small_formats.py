"""Properties, tags, hashes, ids, versions, flags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol import flags, properties, tags
from triomq_protocol.codes import LanguageCode, RequestCode, ResponseCode, version_description
from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.java_text import join_surrogates, utf8
from triomq_protocol.message_id import (
    OffsetMessageId,
    UniqueIdGenerator,
    decode_offset_message_id,
    decode_unique_id,
    offset_message_id,
)
from triomq_protocol.record import pack_host

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
    assert properties.decode_properties(properties.set_property(text, name, "v")) == without | {name: "v"}
    assert properties.decode_properties(properties.append_property(text + "\x02", "zz", "v"))["zz"] == "v"


def test_no_properties() -> None:
    assert properties.decode_properties(None) == {}
    assert properties.encode_properties({}) == ""
    assert properties.encode_properties({"a": None, "b": "c"}) == "b\x01c"
    assert (
        properties.broker_properties(None, "C") == properties.broker_properties("WAIT\x01true", "C") == "CLUSTER\x01C"
    )
    assert properties.broker_properties("WAIT\x01true\x02a\x01b\x02", "C") == "a\x01b\x02CLUSTER\x01C"
    assert "TAGS" in properties.RESERVED


def slow_hash(text: str) -> int:
    data, code = text.encode("utf-16-be", "surrogatepass"), 0
    for at in range(0, len(data), 2):
        code = code * 31 + int.from_bytes(data[at : at + 2], "big") & 0xFFFFFFFF
    return code - (1 << 32) if code > 0x7FFFFFFF else code


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)


@given(ANY_TEXT, st.integers(0, 80), st.integers(1, 200))
def test_hashes(text: str, cut: int, times: int) -> None:
    assert tags.java_hash(text) == slow_hash(text)
    assert tags.java_hash_with_prefix(text[:cut], text[cut:]) == slow_hash(text)
    assert tags.java_hash(text * times) == slow_hash(text * times)


@given(st.text("0123456789ABCDEF", min_size=32, max_size=32))
def test_hashes_of_unique_ids(key: str) -> None:
    assert tags.java_hash_with_prefix("Topic#", key) == slow_hash("Topic#" + key)


def test_hashes_of_long_texts() -> None:
    for text in ("x" * 300, "ÿ" * 10_000, "中" * 5000, "a" * 4096, "b" * 4097, "😀" * 999):
        assert tags.java_hash(text) == tags.java_hash_with_prefix("", text) == slow_hash(text)
    assert tags.java_hash("polygenelubricants") == -2147483648
    assert tags.index_key_hash("polygenelubricants") == 0
    assert tags.select_by_hash(-2147483648, 7) == 2147483648 % 7
    assert (tags.java_long_hash(-5), tags.java_long_hash(1 << 40)) == (4, 256)
    assert tags.tags_code(None) == tags.tags_code("") == 0


@pytest.mark.parametrize("text", [None, "", "*"])
def test_a_subscription_to_all(text: str | None) -> None:
    wanted = tags.parse_subscription(text)
    assert (wanted.expression, wanted.tags, wanted.codes) == ("*", (), frozenset())
    assert wanted.matches_code(5)
    assert wanted.matches_tag(None)


def test_a_subscription_to_some() -> None:
    wanted = tags.parse_subscription(" TagA ||\tTagB||TagA||")
    assert wanted.tags == ("TagA", "TagB")
    assert wanted.matches_code(2598919)
    assert wanted.matches_code(2598919 | 1 << 40)
    assert not wanted.matches_code(0)
    assert wanted.matches_tag("TagB")
    assert not wanted.matches_tag("TagC")
    assert not wanted.matches_tag(None)
    negative = tags.parse_subscription("polygenelubricants")
    assert negative.matches_code(-2147483648)
    for text in ("||", " || ", " "):
        with pytest.raises(LocalProtocolError):
            tags.parse_subscription(text)


def test_offset_ids() -> None:
    text = offset_message_id(pack_host("127.0.0.1", 10911), 1234)
    assert text == "7F00000100002A9F00000000000004D2"
    assert decode_offset_message_id(text) == OffsetMessageId("127.0.0.1", 10911, 1234)


@pytest.mark.parametrize("text", ["", "7F", "zz" * 16, "00" * 17, " " * 32, "00 " * 16, "中" * 32])
def test_ids_of_another_shape_are_refused(text: str) -> None:
    for decode in (decode_offset_message_id, decode_unique_id):
        with pytest.raises(BodyError):
            decode(text)


def test_unique_ids_count_and_follow_the_month() -> None:
    make = UniqueIdGenerator(bytes([10, 0, 0, 1]), 70000, -1, month_start_ms=1000, next_month_ms=5000)
    first, second = decode_unique_id(make.next_id(3000)), decode_unique_id(make.next_id(3000))
    assert (first.ip, first.pid, first.instance, first.millis_of_month) == (
        bytes([10, 0, 0, 1]),
        70000 & 0xFFFF,
        -1,
        2000,
    )
    assert (first.counter, second.counter) == (0, 1)
    assert decode_unique_id(make.next_id(500)).millis_of_month == 0  # a clock that went back a little
    assert not make.needs_month(4999)
    assert make.needs_month(5000)
    make.start_month(5000, 9000)
    assert decode_unique_id(make.next_id(5001)).millis_of_month == 1
    assert len(UniqueIdGenerator(bytes(16), 1, 1).next_id(0)) == 56
    wrapping = UniqueIdGenerator(bytes(4), 1, 1, counter=0xFFFF)
    assert [decode_unique_id(wrapping.next_id(0)).counter for _ in range(2)] == [0xFFFF, 0]
    with pytest.raises(LocalProtocolError):
        UniqueIdGenerator(b"123", 1, 1)


@pytest.mark.parametrize(
    ("number", "name"),
    [(407, "V4_9_7"), (406, "V4_9_7_SNAPSHOT"), (213, "V4_0_0"), (212, "V4_0_0_SNAPSHOT"), (233, "V4_1_0"),
     (401, "V4_9_4"), (411, "V4_9_9"), (413, "V5_0_0"), (611, "V5_9_9"), (612, "HIGHER_VERSION"), (9999, "HIGHER_VERSION"),
     (121, "V3_4_9"), (62, "V3_1_8_SNAPSHOT")],
)  # fmt: skip
def test_versions(number: int, name: str) -> None:
    assert version_description(number) == name


def test_codes_and_flags() -> None:
    assert RequestCode.SEND_MESSAGE_V2 == 310
    assert ResponseCode.CONSUMER_NOT_ONLINE == 206
    assert LanguageCode.RUST == 12
    assert [flags.perm_text(perm) for perm in (7, 6, 4, 2, 1, 0)] == ["RWX", "RW-", "R--", "-W-", "--X", "---"]


def test_utf8_of_java() -> None:
    assert utf8("a\ud800b") == b"a?b"
    assert utf8("\ud83d\ude00") == "😀".encode()
    assert join_surrogates("plain") == "plain"
