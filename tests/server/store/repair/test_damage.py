"""Searching a mapped file for the next sound record."""

from __future__ import annotations

import mmap
import random

from triomq_server.store.repair.damage import _find

SIZE = 4096
WANTED = b"\xda\xa3 \xa7"


class Map(mmap.mmap):
    """A mapped file whose search must end before the last byte: Python before 3.11.5 reads the byte after the range."""

    def find(self, wanted: bytes, start: int, end: int) -> int:  # type: ignore[override]
        assert end < len(self)
        return super().find(wanted, start, end)


def test_a_search_up_to_the_end_of_a_map_reads_nothing_after_it() -> None:
    for at in (None, 0, 5, SIZE // 2, *range(SIZE - 8, SIZE - 3)):
        with Map(-1, SIZE) as buffer:
            if at is not None:
                buffer[at : at + len(WANTED)] = WANTED
            content = bytes(buffer)
            for start in (0, 1, 5, 6, *range(SIZE - 9, SIZE + 9)):
                for end in (4, SIZE // 2, *range(SIZE - 9, SIZE + 9)):
                    assert _find(buffer, WANTED, start, end) == content.find(WANTED, start, end), (at, start, end)


def test_searches_in_random_content_are_those_of_bytes() -> None:
    chance = random.Random(3)
    for _ in range(300):
        with Map(-1, SIZE) as buffer:
            buffer[:] = content = bytes(chance.choices(WANTED, k=SIZE))
            start, end = sorted(chance.choices(range(SIZE + 9), k=2))
            assert _find(buffer, WANTED, start, end) == content.find(WANTED, start, end)
