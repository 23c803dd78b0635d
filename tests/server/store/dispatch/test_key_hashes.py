"""Hashes of many keys at once are those of Java, key by key."""

from __future__ import annotations

import random

from triomq_protocol.filters.tags import index_key_hash
from triomq_server.store.dispatch.key_hashes import index_hashes
from triomq_server.store.index import HASHED_KEY

CHARACTERS = "0123456789ABCDEFxyz_-. é日😀"


def test_a_batch_hashes_like_single_keys() -> None:
    chance = random.Random(4)
    for ascii_only in (True, False):
        for count in (1, 3, 4, 63, 64, 65, 200):
            alphabet = CHARACTERS[:20] if ascii_only else CHARACTERS
            keys = [
                (
                    chance.choice(("T", "another topic")),
                    "".join(chance.choices(alphabet, k=chance.randrange(1, 41))),
                    n,
                    n + 7,
                )
                for n in range(count)
            ]
            short = [(topic, key[:32], offset, time) for topic, key, offset, time in keys]
            for batch in (keys, short):
                wanted = [(index_key_hash(f"{topic}#{key}"), offset, time) for topic, key, offset, time in batch]
                assert list(HASHED_KEY.iter_unpack(index_hashes(batch))) == wanted
