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
def test_batches_come_back(parts: list[tuple[bytes, bytes, int]]) -> None:
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


def test_an_error_says_where_the_batch_breaks() -> None:
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
