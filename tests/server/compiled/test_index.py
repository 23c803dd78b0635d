"""Index entries written many at once: the same bytes as one by one in Python."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_disk import MemoryDisk

from triomq_server.compiled import USED
from triomq_server.store import index as index_module
from triomq_server.store.index import HASHED_KEY, Index


@pytest.mark.skipif(not USED, reason="no compiled modules in this installation")
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 0x7FFFFFFF), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 42))
        ),
        max_size=4,
    ),
    st.integers(1, 30),
    st.integers(2, 60),
)
def test_compiled_entries_are_those_of_python(batches: list[Any], slots: int, capacity: int) -> None:
    files = []
    for used in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_module, "COMPILED", used)
            disk = MemoryDisk()
            index = Index(disk, "/index", slots, capacity, lambda: 1_700_000_000_000, time.gmtime)
            for entries in batches:
                assert index.add(b"".join(HASHED_KEY.pack(*entry) for entry in entries)) == len(entries)
            files.append({path: file.buffer[:] for path, file in disk.files.items()})  # type: ignore[union-attr]
    assert files[0] == files[1]


@pytest.mark.skipif(not USED, reason="no compiled modules in this installation")
@pytest.mark.parametrize(("number", "start", "stop"), [(0, 0, 2), (1, -1, 2), (1, 0, 4), (1, 2, 2)])
def test_entries_that_were_not_given_are_refused(number: int, start: int, stop: int) -> None:
    entries = HASHED_KEY.pack(1, 2, 3) * 2 + b"half of one"
    with pytest.raises(ValueError, match="not given"):
        index_module.compiled_index.write_entries(bytearray(1000), 5, number, stop, entries, start, 1)  # type: ignore[arg-type]
