"""Values that the compiled module copies from the protocol; its results are compared in tests/server/store/reading."""

from __future__ import annotations

import pytest

from triomq_protocol.record.layout import field_offset
from triomq_server.compiled import USED

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")


def test_the_layout_is_that_of_the_protocol() -> None:
    from triomq_server.compiled.pulls import LAYOUT

    assert {name: field_offset(name) for name in LAYOUT} == LAYOUT


def test_entries_outside_of_the_file_are_refused() -> None:
    from triomq_server.compiled.pulls import find_records

    for at, count in ((-1, 1), (0, 0), (0, 6), (81, 1)):
        with pytest.raises(ValueError, match="not in the file"):
            find_records(bytes(100), at, count, bytes(100), 0, 0, 100, 0, 0, 1000)  # type: ignore[arg-type]
