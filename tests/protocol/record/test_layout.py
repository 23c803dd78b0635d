"""The layout in numbers, as the specification has them (docs/protocol/messages.md §4, §7 and §14)."""

from __future__ import annotations

import pytest

from triomq_protocol.record import layout


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("size", 0),
        ("magic", 4),
        ("body_crc", 8),
        ("queue_id", 12),
        ("flag", 16),
        ("queue_offset", 20),
        ("physical_offset", 28),
        ("sys_flag", 36),
        ("born_timestamp", 40),
        ("born_host", 48),
        ("store_timestamp", 56),
        ("store_host", 64),
        ("reconsume_times", 72),
        ("prepared_transaction_offset", 76),
        ("body_length", 84),
    ],
)
def test_offsets(name: str, offset: int) -> None:
    assert layout.field_offset(name) == offset
    constant = f"{name.upper()}_AT"
    assert getattr(layout, constant, offset) == offset


def test_sizes() -> None:
    assert (layout.BODY_AT, layout.FIXED_BYTES, layout.TAIL_LENGTHS_BYTES) == (88, 91, 3)
    assert {hosts: head.size for hosts, head in layout.HEADS.items()} == {
        (8, 8): 88,
        (8, 20): 100,
        (20, 8): 100,
        (20, 20): 112,
    }
    assert (layout.STORE_TIMESTAMP_AT_V6, layout.BODY_AFTER_TIMESTAMP, layout.BODY_AFTER_TIMESTAMP_V6) == (68, 32, 44)
    assert (layout.BATCH_ELEMENT_BODY_AT, layout.BATCH_ELEMENT_FIXED_BYTES) == (20, 22)


def test_magic_and_flags() -> None:
    assert layout.MESSAGE_MAGIC & 0xFFFFFFFF == 0xDAA320A7
    assert layout.BLANK_MAGIC & 0xFFFFFFFF == 0xCBD43194
    assert (layout.COMPRESSED, layout.MULTI_TAGS, layout.TRANSACTION_MASK) == (1, 2, 0xC)
    assert (layout.TRANSACTION_PREPARED, layout.TRANSACTION_COMMIT) == (4, 8)
    assert (layout.BORN_HOST_V6, layout.STORE_HOST_V6, layout.ANY_HOST_V6) == (0x10, 0x20, 0x30)
    kinds = layout.COMPRESSION_LZ4, layout.COMPRESSION_ZSTD, layout.COMPRESSION_ZLIB
    assert (kinds, layout.COMPRESSION_MASK) == ((0x100, 0x200, 0x300), 0x700)


def test_partial_heads_read_the_fields_they_name() -> None:
    head = layout.HEAD_V4.pack(1, 2, 3, 4, 5, 6, 7, 8, 9, b"b" * 8, 10, b"s" * 8, 11, 12, 13)
    assert layout.MARK.unpack_from(head) == (1, 2)
    assert layout.SHAPE_V4.unpack_from(head) == (1, 8, 13)
    assert layout.PLACE.unpack_from(head) == (1, 2, 7)
    assert layout.CHECKED.unpack_from(head) == (1, 2, 3, 4, 6, 7, 8)
    assert layout.DISPATCHED_V4.unpack_from(head) == (1, 2, 4, 6, 7, 8, 10, 13)
    assert layout.DISPATCHED_V4.size == layout.BODY_AT


@pytest.mark.parametrize("hosts", list(layout.HEADS))
def test_a_batch_head_is_a_whole_head(hosts: tuple[int, int]) -> None:
    common_head, head = layout.BATCH_HEADS[hosts]
    born, store = b"b" * hosts[0], b"s" * hosts[1]
    common = common_head.pack(8, 9, born, 10, store, 11, 12)
    assert head.pack(1, 2, 3, 4, 5, 6, 7, common, 13) == layout.HEADS[hosts].pack(
        1, 2, 3, 4, 5, 6, 7, 8, 9, born, 10, store, 11, 12, 13
    )
