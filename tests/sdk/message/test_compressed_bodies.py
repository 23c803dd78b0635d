"""Bodies compressed in all three ways: ours come back, Java's are read, and a lie about them ends as our error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triomq
from triomq._message.compression import decompress
from triomq_protocol.record.layout import COMPRESSED
from triomq_protocol.record.view import RecordView

BODY = b"flights " * 2000


@pytest.mark.parametrize(
    ("compressor", "sys_flag"),
    [
        (triomq.plugins.ZlibCompressor(), 0x301),
        (triomq.plugins.Lz4Compressor(), 0x101),
        (triomq.plugins.ZstdCompressor(), 0x201),
    ],
    ids=["zlib", "lz4", "zstd"],
)
def test_there_and_back(compressor: triomq.plugins.Compressor, sys_flag: int) -> None:
    packed = compressor.compress(BODY)
    assert compressor.sys_flag == sys_flag
    assert len(packed) < len(BODY) / 10
    assert decompress(packed, sys_flag) == BODY
    with pytest.raises(triomq.errors.MessageIllegal):
        decompress(b"\0 not compressed at all", sys_flag)


def test_lz4_blocks_are_independent() -> None:
    """The reader of Java's clients knows no others (bit 5 of the frame's flags)."""
    packed = triomq.plugins.Lz4Compressor().compress(BODY * 100)
    assert packed[4] & 0x20
    assert decompress(packed, 0x101) == BODY * 100


def test_what_java_compressed(vectors: Path) -> None:
    cases = json.loads((vectors / "messages.json").read_text())["recordsByMessageDecoder"]
    compressed = [case for case in cases if case["bodyCompressedWith"]]
    assert compressed
    for case in compressed:
        record = RecordView(bytes.fromhex(case["recordHex"]))
        assert record.sys_flag & COMPRESSED
        assert decompress(record.body, record.sys_flag) == bytes.fromhex(case["bodyHex"]), case["name"]
