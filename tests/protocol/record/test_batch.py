"""Batches taken apart: elements that repeat the properties before them read like any others."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_cases import INT32

from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.filters.tags import tags_code
from triomq_protocol.names import KEYS, TAGS, UNIQ_KEY
from triomq_protocol.properties import decode_properties
from triomq_protocol.record.batch import encode_batch_element, join_properties, split_batch, split_in_slices

PIECES = (
    b"UNIQ_KEY\x01%d", b"UNIQ_KEY\x01", b"XUNIQ_KEY\x01%d", b"UNIQ_KEY\x01%d.5", b"KEYS\x01k%d", b"KEYS\x01k l", b"TAGS\x01t",
    b"TAGS\x01u%d", b"A\x01b", b"WAIT\x01true", b"\xc3\xa9\x01\xff", b"",
)  # fmt: skip
SHARED = (b"CLUSTER\x01C", b"", b"TAGS\x01all\x02CLUSTER\x01C", b"UNIQ_KEY\x01shared")


@pytest.mark.parametrize("seed", range(60))
def test_every_element_is_read_as_if_it_came_alone(seed: int) -> None:
    chance = random.Random(seed)
    shared = chance.choice(SHARED)
    pieces = chance.sample(PIECES, chance.randrange(1, 5))
    owns = []
    for number in range(chance.randrange(1, 12)):
        if chance.random() < 0.2:
            pieces = chance.sample(PIECES, chance.randrange(1, 5))
        number += chance.choice((1000, 1000, 9_999_999))
        own = b"\x02".join(piece.replace(b"%d", b"%d" % number) for piece in pieces)
        owns.append(own + chance.choice((b"", b"", b"\x02")))
    body = b"".join(encode_batch_element(b"b%d" % n, own, flag=n) for n, own in enumerate(owns))

    batch = split_batch(body, shared)

    wanted = []
    for n, own in enumerate(owns):
        properties = join_properties(own, shared)
        values = decode_properties(str(properties, "utf-8", "replace"))
        wanted.append((
            n, b"b%d" % n, properties, values.get(UNIQ_KEY), values.get(KEYS), tags_code(values.get(TAGS)),
        ))  # fmt: skip
    assert batch.elements == wanted
    assert batch.total_bytes == sum(len(body) + len(properties) for _, body, properties, *_ in wanted)
    assert batch.longest_properties_bytes == max(len(properties) for _, _, properties, *_ in wanted)


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50), INT32), max_size=5))
def test_batches_are_decoded_as_they_were_encoded(parts: list[tuple[bytes, bytes, int]]) -> None:
    body = b"".join(encode_batch_element(*part) for part in parts)
    for given_body in (body, memoryview(body)):
        elements = split_batch(given_body, b"").elements
        assert [(content, properties, flag) for flag, content, properties, *_ in elements] == parts
    whole = {sum(22 + len(content) + len(own) for content, own, _ in parts[:count]) for count in range(len(parts))}
    for cut in range(len(body)):
        if cut not in whole:
            with pytest.raises(BodyError):
                split_batch(body[:cut], b"")


@given(st.binary(max_size=80))
def test_noise_as_a_batch(data: bytes) -> None:
    try:
        split_batch(data, b"A\x01b")
    except BodyError:
        pass


@pytest.mark.parametrize(
    ("at", "value"),
    [(16, -1), (16, 1 << 30), (16, 5), (20 + 4, 0x7FFF0000), (20 + 4, -1)],
    ids=["negative body", "oversized body", "body of a byte more", "oversized properties", "negative properties"],
)
def test_lengths_that_cannot_be(at: int, value: int) -> None:
    body = bytearray(encode_batch_element(b"body", b"A\x01b") + bytes(2))
    body[at : at + 4] = value.to_bytes(4, "big", signed=True)
    with pytest.raises(BodyError):
        split_batch(bytes(body), b"")


def test_an_error_names_where_the_batch_breaks() -> None:
    good = encode_batch_element(b"body", b"")
    with pytest.raises(BodyError, match=f"ends inside the element at {len(good)} of {len(good) + 3} bytes"):
        split_batch(good + bytes(3), b"")
    with pytest.raises(BodyError, match=f"body of 3 and properties of 7 bytes at {len(good)} of"):
        split_batch(good + struct.pack(">iiiii3sh", 0, 0, 0, 0, 3, b"abc", 7), b"")


def test_size_magic_and_checksum_of_an_element_are_ignored() -> None:
    element = bytearray(encode_batch_element(b"body", b"A\x01b", 3))
    element[:12] = b"\xff" * 12
    assert split_batch(bytes(element), b"").elements == [(3, b"body", b"A\x01b", None, None, 0)]


def test_batch_properties_have_a_limit() -> None:
    assert len(encode_batch_element(b"", bytes(32767))) == 22 + 32767
    with pytest.raises(LocalProtocolError):
        encode_batch_element(b"", bytes(32768))


def test_a_large_batch_is_split_in_slices() -> None:
    body = encode_batch_element(b"body", b"KEYS\x01k") * 100
    slices = split_in_slices(body, b"A\x01b", len(body) // 10)
    for _ in range(9):
        next(slices)
    with pytest.raises(StopIteration) as end:
        next(slices)
    assert end.value.value == split_batch(body, b"A\x01b")


def test_an_empty_batch() -> None:
    assert split_batch(b"", b"A\x01b") == ([], 0, 0)


@pytest.mark.parametrize(
    ("own", "shared", "joined"),
    [(b"", b"", b""), (b"a", b"", b"a"), (b"", b"b", b"b"), (b"a", b"b", b"a\x02b"), (b"a\x02", b"b", b"a\x02b")],
)
def test_joined_properties(own: bytes, shared: bytes, joined: bytes) -> None:
    assert join_properties(own, shared) == joined


@pytest.mark.parametrize(
    ("body", "properties", "flag", "encoded"),
    [
        (b"", b"", 0, "00000016 00000000 00000000 00000000 00000000 0000"),
        (b"ab", b"", 1, "00000018 00000000 00000000 00000001 00000002 6162 0000"),
        (b"", b"A\x01b", -1, "00000019 00000000 00000000 ffffffff 00000000 0003 410162"),
        (b"ab", b"A\x01b", 7, "0000001b 00000000 00000000 00000007 00000002 6162 0003 410162"),
    ],
)
def test_the_bytes_of_an_element(body: bytes, properties: bytes, flag: int, encoded: str) -> None:
    """Size over all, and no magic number or checksum (docs/protocol/messages.md §7)."""
    assert encode_batch_element(body, properties, flag) == bytes.fromhex(encoded)


@pytest.mark.parametrize(
    ("owns", "shared", "keys"),
    [
        ([b"UNIQ_KEY\x01aaaaaa", b"UNIQ_KEY\x01bbbbbb"], b"UNIQ_KEY\x01shared", ["shared", "shared"]),
        ([b"UNIQ_KEY\x01aaaaaaa", b"UNIQ_KEY\x01abbbbba"], b"UNIQ_KEY\x01shared", ["shared", "shared"]),
        ([b"UNIQ_KEY\x01aa", b"UNIQ_KEY\x01bb"], b"A\x01UNIQ_KEY\x01cc", ["aa", "bb"]),
        ([b"UNIQ_KEY\x01aa\x02UNIQ_KEY\x01bb", b"UNIQ_KEY\x01cc\x02UNIQ_KEY\x01dd"], b"", ["bb", "dd"]),
        ([b"UNIQ_KEY\x01aa\x02UNIQ_KEY\x01bb", b"UNIQ_KEY\x01aa\x02UNIQ_KEY\x01cc"], b"", ["bb", "cc"]),
        ([b"UNIQ_KEY\x01aa\x02UNIQ_KEY\x01bb", b"UNIQ_KEY\x01cc\x02UNIQ_KEY\x01bb"], b"", ["bb", "bb"]),
        ([b"UNIQ_KEY\x01aa", b"UNIQ_KEY\x01aa"], b"", ["aa", "aa"]),
        ([b"A\x01aaaaaabbbbbbb", b"A\x01aaaaaaccccccb"], b"UNIQ_KEY\x01shared", ["shared", "shared"]),
        ([b"A\x01UNIQ_KEY\x01aa", b"A\x01UNIQ_KEY\x01bb"], b"", [None, None]),
        ([b"XUNIQ_KEY\x01aa", b"XUNIQ_KEY\x01bb"], b"", [None, None]),
        ([b"UNIQ_KEY\x01aa", b"UNIQ_KEY\x01\x02A\x01"], b"", ["aa", None]),
        ([b"UNIQ_KEY\x01aa\x02K\x01b", b"UNIQ_KEY\x01a\x02bK\x01b"], b"", ["aa", "a"]),
        ([b"UNIQ_KEY\x01", b"UNIQ_KEY\x01"], b"", [None, None]),
        ([b"UNIQ_KEY\x01a-a", b"UNIQ_KEY\x01b-b"], b"", ["a-a", "b-b"]),
        ([b"UNIQ_KEY\x01aaa", b"UNIQ_KEY\x01b\x02b"], b"", ["aaa", "b"]),
        ([b"UNIQ_KEY\x01aa", b"", b"UNIQ_KEY\x01bb", b"x", b"UNIQ_KEY\x01cc"], b"", ["aa", None, "bb", None, "cc"]),
    ],
)  # fmt: skip
def test_unique_keys_of_elements_that_seem_alike(owns: list[bytes], shared: bytes, keys: list[str | None]) -> None:
    elements = split_batch(b"".join(encode_batch_element(b"", own) for own in owns), shared).elements
    assert [unique_key for _, _, _, unique_key, _, _ in elements] == keys
    for own, (_, _, properties, unique_key, _, _) in zip(owns, elements, strict=True):
        assert properties == join_properties(own, shared)
        assert decode_properties(properties.decode()).get(UNIQ_KEY) == unique_key


def test_tags_that_change_within_a_batch() -> None:
    owns = [b"TAGS\x01a", b"TAGS\x01a", b"TAGS\x01b", b"", b"TAGS\x01", b"TAGS\x01a"]
    elements = split_batch(b"".join(encode_batch_element(b"", own) for own in owns), b"").elements
    assert [code for *_, code in elements] == [97, 97, 98, 0, 0, 97]


@pytest.mark.parametrize(("slice_elements", "yields"), [(1, 9), (2, 4), (3, 3), (9, 1), (10, 0), (11, 0)])
def test_a_slice_ends_after_its_bytes(slice_elements: int, yields: int) -> None:
    element = encode_batch_element(b"body", b"KEYS\x01k")
    assert len(list(split_in_slices(element * 10, b"", slice_elements * len(element)))) == yields


def test_a_negative_length_is_named_before_anything_is_read_by_it() -> None:
    with pytest.raises(BodyError, match=r"^batch: body of -1 and properties of -256 bytes at 0 of 30$"):
        split_batch(struct.pack(">iiiii", 0, 0, 0, 0, -1) + bytes(10), b"")
    with pytest.raises(BodyError, match=r"^batch: body of 0 and properties of -1 bytes at 0 of 30$"):
        split_batch(struct.pack(">iiiiih", 0, 0, 0, 0, 0, -1) + bytes(8), b"")
    with pytest.raises(LocalProtocolError, match=r"^properties of 32768 bytes$"):
        encode_batch_element(b"", bytes(32768))
