"""Batches taken apart: elements that repeat the properties before them read like any others."""

from __future__ import annotations

import random

import pytest

from triomq_protocol.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from triomq_protocol.record import encode_batch_element
from triomq_protocol.tags import tags_code
from triomq_server.store.batches import join_properties, split_batch

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
