"""Values that the compiled module copies from the protocol; stored data is compared in tests/server/broker/requests."""

from __future__ import annotations

import pytest

from triomq_protocol.record.layout import HEAD_FIELDS, field_offset
from triomq_server.compiled import USED


@pytest.mark.skipif(not USED, reason="no compiled modules in this installation")
def test_the_layout_is_that_of_the_protocol() -> None:
    from triomq_server.compiled.sends import LAYOUT

    assert {name: field_offset(name) for name in HEAD_FIELDS} == LAYOUT
