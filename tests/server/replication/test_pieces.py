"""The slave's decoder gives the same bytes however the stream is cut."""

import base64
import json
from hashlib import sha256
from pathlib import Path
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from triomq_server.replication.pieces import PieceDecoder


def stream_of(frames: list[tuple[int, bytes]]) -> bytes:
    return b"".join(pack(">qi", offset, len(body)) + body for offset, body in frames)


def decode(chunks: list[bytes]) -> tuple[bytes, list[int]]:
    decoder = PieceDecoder()
    body = bytearray()
    offsets = []
    for chunk in chunks:
        for offset, left, part in decoder.feed(memoryview(chunk)):
            assert len(part) <= left
            offsets.append(offset)
            body += part
    return bytes(body), offsets


FRAMES = [(0, b""), (0, b"x" * 40), (40, b"yz"), (42, b""), (42, b"w")]


def test_byte_by_byte() -> None:
    stream = stream_of(FRAMES)
    body, offsets = decode([stream[i : i + 1] for i in range(len(stream))])
    assert body == b"x" * 40 + b"yzw"
    assert offsets == [0, 0, *range(40), 40, 40, 41, 42, 42, 42]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_any_split(cuts: list[int]) -> None:
    stream = stream_of(FRAMES)
    chunks = []
    for cut in cuts:
        chunks.append(stream[:cut])
        stream = stream[cut:]
    body, offsets = decode([*chunks, stream])
    assert body == b"x" * 40 + b"yzw"
    assert offsets == sorted(offsets)


def test_a_head_alone_is_seen_before_its_body() -> None:
    assert [(o, n, bytes(b)) for o, n, b in PieceDecoder().feed(memoryview(pack(">qi", 77, 5)))] == [(77, 5, b"")]


def test_a_negative_size_is_handed_on_to_be_judged() -> None:
    assert [(o, n, bytes(b)) for o, n, b in PieceDecoder().feed(memoryview(pack(">qi", 7, -5)))] == [(7, -5, b"")]


def test_recorded_masters(vectors: Path) -> None:
    """Conversations between real brokers: every head is found, and the bodies are the recorded bytes."""
    for case in json.loads((vectors / "ha.json").read_text())["cases"]:
        for connection in case["connections"]:
            decoder = PieceDecoder()
            heads = []
            missing = 0
            digest = sha256()
            for _, who, text in connection["chunks"]:
                if who == "master":
                    for offset, left, part in decoder.feed(memoryview(base64.b64decode(text))):
                        if not missing:
                            heads.append((offset, left))
                        missing = left - len(part)
                        digest.update(part)
            recorded = [(offset, size) for _, offset, size in connection["masterFrames"]]
            assert heads == recorded, case["name"]
            assert digest.hexdigest() == connection["transferredSha256"], case["name"]
