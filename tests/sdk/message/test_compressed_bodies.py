"""Bodies compressed in all three ways: ours are restored, Java's are read, and wrong ones raise our error."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest

import triomq
from triomq._message import compression
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
def test_bodies_are_restored_after_compression(compressor: triomq.plugins.Compressor, sys_flag: int) -> None:
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


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize(
    "compressor",
    [triomq.plugins.ZlibCompressor(), triomq.plugins.Lz4Compressor(), triomq.plugins.ZstdCompressor()],
    ids=["zlib", "lz4", "zstd"],
)
def test_what_is_cut_short_is_no_body(compressor: triomq.plugins.Compressor, kept: float) -> None:
    packed = compressor.compress(BODY + random.Random(1).randbytes(5000))
    with pytest.raises(triomq.errors.MessageIllegal):
        decompress(packed[: int(len(packed) * kept)], compressor.sys_flag)


def test_a_zstandard_frame_need_not_contain_its_size() -> None:
    """As those of Java's clients, which write a stream."""
    zstandard = pytest.importorskip("zstandard")
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(BODY) + stream.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(packed, 0x201) == BODY
    with pytest.raises(triomq.errors.MessageIllegal):
        decompress(packed[:-1], 0x201)


@pytest.mark.parametrize("declared", [True, False])
def test_a_zstandard_frame_that_grows_too_large(declared: bool) -> None:
    zstandard = pytest.importorskip("zstandard")
    size = 65 << 20
    stream = zstandard.ZstdCompressor().compressobj(size=size if declared else -1)
    packed = b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(65)), stream.flush()])
    with pytest.raises(triomq.errors.MessageIllegal, match="67108864"):
        decompress(packed, 0x201)


FRAMED = [triomq.plugins.Lz4Compressor(), triomq.plugins.ZstdCompressor()]


@pytest.mark.parametrize("compressor", FRAMED, ids=["lz4", "zstd"])
@pytest.mark.parametrize("last", [b"", b"x", random.Random(1).randbytes(200_000)])
@pytest.mark.parametrize("first", [b"", BODY])
def test_all_frames_of_a_body_are_read(compressor: triomq.plugins.Compressor, first: bytes, last: bytes) -> None:
    """Other clients may write several frames: a stream that is flushed, or parts that are compressed in parallel."""
    parts = [first, b"", *(b"%d" % number for number in range(500)), last]
    packed = b"".join(compressor.compress(part) for part in parts)
    assert decompress(packed, compressor.sys_flag) == b"".join(parts)
    for wrong in (packed[:-1], packed + b"no frame", packed + packed[:3]):
        with pytest.raises(triomq.errors.MessageIllegal):
            decompress(wrong, compressor.sys_flag)


@pytest.mark.parametrize("first", [b"", BODY, bytes(9 << 20)], ids=["empty", "some", "long"])
def test_all_frames_of_a_stream_are_read_though_they_state_no_size(first: bytes) -> None:
    """Java's output stream, or one that is flushed, does not know the size at the start of a frame."""
    zstandard = pytest.importorskip("zstandard")

    def streamed(body: bytes) -> bytes:
        stream = zstandard.ZstdCompressor().compressobj()
        return bytes(stream.compress(body) + stream.flush())

    packed, last = streamed(first), streamed(b"last")
    assert zstandard.frame_content_size(last) == -1
    assert decompress(packed, 0x201) == first
    assert decompress(packed + last + last, 0x201) == first + b"lastlast"
    assert decompress(triomq.plugins.ZstdCompressor().compress(first) + last, 0x201) == first + b"last"
    for wrong in (packed[:-1], packed + last[:-1], packed + b"no frame"):
        with pytest.raises(triomq.errors.MessageIllegal):
            decompress(wrong, 0x201)


@pytest.mark.parametrize("compressor", FRAMED, ids=["lz4", "zstd"])
def test_frames_that_grow_too_large_together(compressor: triomq.plugins.Compressor) -> None:
    packed = compressor.compress(bytes(1 << 20))
    assert decompress(packed * 64, compressor.sys_flag) == bytes(64 << 20)
    with pytest.raises(triomq.errors.MessageIllegal, match="67108864"):
        decompress(packed * 64 + compressor.compress(b"x"), compressor.sys_flag)


@pytest.mark.parametrize("compressor", FRAMED, ids=["lz4", "zstd"])
def test_a_flood_of_empty_frames_is_refused(compressor: triomq.plugins.Compressor) -> None:
    packed = compressor.compress(b"")
    assert decompress(packed * 16_384, compressor.sys_flag) == b""
    with pytest.raises(triomq.errors.MessageIllegal, match="more than 16384 compressed frames"):
        decompress(packed * 16_400, compressor.sys_flag)


def test_a_zstandard_frame_may_follow_one_that_is_skipped() -> None:
    packed = triomq.plugins.ZstdCompressor().compress(BODY)
    skipped = bytes.fromhex("502a4d1804000000") + b"note"
    assert decompress(skipped + packed + skipped, 0x201) == BODY


@pytest.mark.parametrize("kind", ["isal", "zlib"])
def test_zlib_streams_are_read_with_and_without_isal(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Both libraries read the same streams, and refuse the same."""
    library = pytest.importorskip("isal.isal_zlib") if kind == "isal" else zlib
    monkeypatch.setattr(compression, "_zlib_stream", library.decompressobj)
    monkeypatch.setattr(compression, "_zlib_error", library.error)
    for window in range(9, 16):
        packer = zlib.compressobj(wbits=window)
        packed = packer.compress(BODY) + packer.flush()
        assert decompress(packed, 0x301) == BODY
        assert decompress(packed + b"more", 0x301) == BODY  # as Java's, which reads up to the stream's end
        for wrong in (b"", packed[:-1], packed[:9], packed[:-1] + b"?", b"?" + packed[1:]):
            with pytest.raises(triomq.errors.MessageIllegal, match="zlib stream"):
                decompress(wrong, 0x301)
    most = zlib.compress(bytes(64 << 20))
    assert len(decompress(most, 0x301)) == 64 << 20
    with pytest.raises(triomq.errors.MessageIllegal, match="67108864"):
        decompress(zlib.compress(bytes((64 << 20) + 1)), 0x301)


@pytest.mark.parametrize("compressor", FRAMED, ids=["lz4", "zstd"])
def test_parts_and_the_joined_body_are_not_in_memory_together(compressor: triomq.plugins.Compressor) -> None:
    """The body's memory grows by an eighth at a time, and a library has some for a part; together they took 96 MiB."""
    packed = compressor.compress(bytes(8 << 20)) * 6
    tracemalloc.start()
    try:
        body = decompress(packed, compressor.sys_flag)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) == 48 << 20
    assert most < 80 << 20


IN_THREADS = """
import concurrent.futures, random, sys
from triomq import plugins
from triomq._message.compression import decompress

chance = random.Random(1)
bodies = [b" ".join(b"%d" % chance.randrange(9999) for _ in range(60_000)) for _ in range(4)]
compressor = getattr(plugins, sys.argv[1])()

def there_and_back(number):
    body = bodies[number % 4]
    return decompress(compressor.compress(body), compressor.sys_flag) == body

with concurrent.futures.ThreadPoolExecutor(8) as threads:
    sys.exit(0 if all(threads.map(there_and_back, range(40))) else "another body")
"""


@pytest.mark.parametrize("name", ["ZlibCompressor", "Lz4Compressor", "ZstdCompressor"])
def test_several_threads_compress_at_the_same_time(name: str) -> None:
    """As for large bodies; in a process of its own, since the failure was SIGSEGV."""
    subprocess.run([sys.executable, "-c", IN_THREADS, name], check=True, timeout=120)
