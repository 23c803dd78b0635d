"""The HA dialogue's decoders: any split, caps, linear work."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError
from triomq_protocol.replication import (
    ReportDecoder,
    Transfer,
    TransferDecoder,
    encode_report,
    encode_transfer_head,
)

OFFSETS = st.integers(0, (1 << 63) - 1)
TRANSFERS = st.lists(st.builds(Transfer, offset=OFFSETS, data=st.binary(max_size=40)), max_size=6)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted(min(cut, len(stream)) for cut in cuts)
    return [stream[start:end] for start, end in pairwise([0, *borders, len(stream)])]


@given(st.lists(OFFSETS, max_size=6), st.lists(st.integers(0, 48), max_size=6))
def test_reports_in_any_split(offsets: list[int], cuts: list[int]) -> None:
    decoder = ReportDecoder()
    stream = b"".join(map(encode_report, offsets))
    assert [offset for piece in pieces(stream, cuts) for offset in decoder.feed(piece)] == offsets


@given(TRANSFERS, st.lists(st.integers(0, 300), max_size=8))
def test_transfers_in_any_split(transfers: list[Transfer], cuts: list[int]) -> None:
    decoder = TransferDecoder()
    stream = b"".join(encode_transfer_head(t.offset, len(t.data)) + t.data for t in transfers)
    assert [transfer for piece in pieces(stream, cuts) for transfer in decoder.feed(piece)] == transfers
    single = TransferDecoder()
    assert [t for at in range(len(stream)) for t in single.feed(stream[at : at + 1])] == transfers


def test_a_head_is_known_before_its_body() -> None:
    decoder = TransferDecoder()
    assert decoder.next_offset is None
    assert decoder.feed(encode_transfer_head(77, 3)) == []
    assert decoder.next_offset == 77
    assert decoder.feed(b"abcd") == [Transfer(77, b"abc")]
    assert decoder.next_offset is None


@pytest.mark.parametrize("head", [(-1, 5), (0, -1), (0, 1001), (0, 0x7FFFFFFF)])
def test_impossible_transfers_end_the_link(head: tuple[int, int]) -> None:
    data = head[0].to_bytes(8, "big", signed=True) + head[1].to_bytes(4, "big", signed=True)
    with pytest.raises(RemoteProtocolError):
        TransferDecoder(max_transfer_bytes=1000).feed(data)


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


def test_a_large_transfer_in_pieces_costs_linear_work() -> None:
    body = bytes(4 << 20)
    stream = encode_transfer_head(0, len(body)) + body
    decoder, start, out = TransferDecoder(8 << 20), time.perf_counter(), []
    for at in range(0, len(stream), 1024):
        out += decoder.feed(stream[at : at + 1024])
    assert [len(transfer.data) for transfer in out] == [len(body)]
    assert time.perf_counter() - start < 2
