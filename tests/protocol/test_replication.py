"""The replication dialogue: reports and transfers in any split, impossible values, recorded masters."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfers import Collector

from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError
from triomq_protocol.replication import ReportDecoder, TransferDecoder, encode_report, encode_transfer_head

OFFSETS = st.integers(0, (1 << 63) - 1)
TRANSFERS = st.lists(st.tuples(st.integers(0, 1 << 60), st.binary(max_size=40)), max_size=6)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted(min(cut, len(stream)) for cut in cuts)
    return [stream[start:end] for start, end in pairwise([0, *borders, len(stream)])]


@given(st.lists(OFFSETS, max_size=6), st.lists(st.integers(0, 48), max_size=6))
def test_reports_in_any_split(offsets: list[int], cuts: list[int]) -> None:
    decoder = ReportDecoder()
    stream = b"".join(map(encode_report, offsets))
    assert [offset for piece in pieces(stream, cuts) for offset in decoder.feed(piece)] == offsets


def stream_of(transfers: list[tuple[int, bytes]]) -> bytes:
    return b"".join(encode_transfer_head(offset, len(body)) + body for offset, body in transfers)


@given(TRANSFERS, st.lists(st.integers(0, 300), max_size=8))
def test_transfers_in_any_split(transfers: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream, whole, single = stream_of(transfers), Collector(), Collector()
    assert [transfer for piece in pieces(stream, cuts) for transfer in whole.feed(piece)] == transfers
    assert [t for at in range(len(stream)) for t in single.feed(stream[at : at + 1])] == transfers


def seen(data: bytes, decoder: TransferDecoder | None = None) -> list[tuple[int, int, bytes]]:
    return [(offset, left, bytes(part)) for offset, left, part in (decoder or TransferDecoder()).feed(memoryview(data))]


def test_parts_are_handed_out_as_they_come() -> None:
    decoder = TransferDecoder()
    stream = stream_of([(0, b""), (0, b"x" * 40), (40, b"yz"), (42, b""), (42, b"w")])
    offsets = [offset for at in range(len(stream)) for offset, _, _ in seen(stream[at : at + 1], decoder)]
    assert offsets == [0, 0, *range(40), 40, 40, 41, 42, 42, 42]


def test_a_head_is_known_before_its_body() -> None:
    decoder = TransferDecoder()
    assert (decoder.left, decoder.head_left) == (0, 12)
    head = encode_transfer_head(77, 5)
    assert seen(head[:5], decoder) == []
    assert (decoder.left, decoder.head_left) == (0, 7)
    assert seen(head[5:], decoder) == [(77, 5, b"")]
    assert (decoder.offset, decoder.left) == (77, 5)


def test_a_body_may_be_received_without_the_decoder() -> None:
    decoder = TransferDecoder()
    assert seen(encode_transfer_head(77, 5) + b"a", decoder) == [(77, 5, b"a")]
    decoder.skip(3)
    assert (decoder.offset, decoder.left) == (81, 1)
    assert seen(b"e" + encode_transfer_head(82, 0), decoder) == [(81, 1, b"e"), (82, 0, b"")]


@pytest.mark.parametrize("size", [-1, -5, -(1 << 31)])
def test_a_negative_size_is_handed_on_and_takes_no_body(size: int) -> None:
    data = (7).to_bytes(8, "big") + size.to_bytes(4, "big", signed=True) + encode_transfer_head(9, 1) + b"z"
    assert seen(data) == [(7, size, b""), (9, 1, b"z")]


def test_recorded_masters(vectors: Path) -> None:
    """Conversations between real brokers: every head is found, and the bodies are the recorded bytes."""
    for case in json.loads((vectors / "ha.json").read_text())["cases"]:
        for connection in case["connections"]:
            decoder = TransferDecoder()
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


def test_a_negative_report_ends_the_link() -> None:
    with pytest.raises(RemoteProtocolError):
        ReportDecoder().feed(b"\xff" * 8)


def test_what_cannot_be_written() -> None:
    for offset in (-1, 1 << 63):
        with pytest.raises(LocalProtocolError):
            encode_report(offset)
        with pytest.raises(LocalProtocolError):
            encode_transfer_head(offset, 1)
    with pytest.raises(LocalProtocolError):
        encode_transfer_head(0, -1)
