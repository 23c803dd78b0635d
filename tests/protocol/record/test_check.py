"""The check of recovery and dispatch: the data that it accepts as a record, and its results for all other data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_cases import BODY, GOOD, RECORDS
from stored_records import encode_record

from triomq_protocol.record.check import Finding, LogRecord, claimed_size, read_record, store_timestamp_of
from triomq_protocol.record.layout import BLANK_MAGIC

MARK = (77).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True)


def read(data: bytes, at: int = 0, offset: int = 1000, *, check_crc: bool = True) -> LogRecord | Finding:
    return read_record(data, at, len(data), offset, check_crc=check_crc)


@given(RECORDS, st.integers(0, 20))
def test_a_record_is_read_at_any_offset(values: dict[str, object], before: int) -> None:
    data = bytes(before) + encode_record(**values)  # type: ignore[arg-type]
    found = read(data + b"next", before, values["physical_offset"])  # type: ignore[arg-type]
    assert isinstance(found, LogRecord)
    assert found.size == len(data) - before
    assert found.topic.encode() == values["topic"]
    for name, value in (("offset", "physical_offset"), ("queue_id",) * 2, ("queue_offset",) * 2,
                        ("store_timestamp",) * 2, ("properties",) * 2):  # fmt: skip
        assert getattr(found, name) == values[value]
    assert found.sys_flag & ~0x30 == values["sys_flag"]


@given(RECORDS, st.data())
def test_a_damaged_byte_never_raises_and_never_moves_the_end(values: dict[str, object], data: st.DataObject) -> None:
    good = encode_record(**values)  # type: ignore[arg-type]
    damaged = bytearray(good)
    damaged[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    found = read(bytes(damaged), 0, values["physical_offset"])  # type: ignore[arg-type]
    assert isinstance(found, Finding) or found.size == len(good)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_noise_never_raises(data: bytes, end: int) -> None:
    end = min(end, len(data))
    assert isinstance(read_record(data, 0, end, 0, check_crc=True), Finding)


def test_every_flipped_body_byte_is_found() -> None:
    start = GOOD.index(BODY)
    for at in range(start, start + len(BODY)):
        damaged = GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :]
        assert read(damaged) is Finding.BAD_CRC
        assert isinstance(read(damaged, check_crc=False), LogRecord)


@pytest.mark.parametrize(("at", "finding"), [(8, Finding.BAD_CRC), (35, Finding.BAD_OFFSET), (7, Finding.BAD_MAGIC)])
def test_a_flipped_byte_of_the_head(at: int, finding: Finding) -> None:
    assert read(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :]) is finding


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_a_record_whose_end_is_missing(cut: int) -> None:
    assert read(GOOD[:cut]) is (Finding.INCOMPLETE if cut else Finding.NOTHING)


def test_what_is_no_record() -> None:
    assert read(MARK + b"anything") is Finding.BLANK
    assert read(bytes(91)) is Finding.NOTHING
    assert read(b"") is Finding.NOTHING
    assert read(GOOD[:4] + bytes(4) + GOOD[8:]) is Finding.BAD_MAGIC
    assert read(bytes(3) + b"\x01" + bytes(87)) is Finding.BAD_MAGIC
    assert read(GOOD, offset=1001) is Finding.BAD_OFFSET
    longer = (len(GOOD) + 1).to_bytes(4, "big") + GOOD[4:] + b"x"
    assert read(longer) is Finding.BAD_LENGTH


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, (90).to_bytes(4, "big")),  # size
        (0, (-5).to_bytes(4, "big", signed=True)),
        (84, (-1).to_bytes(4, "big", signed=True)),  # body length
        (84, (10).to_bytes(4, "big")),
        (84, (1 << 30).to_bytes(4, "big")),
        (97, b"\x00"),  # topic length
        (97, b"\x02"),
        (97, b"\xff"),
        (99, b"\x00\x05"),  # properties length
        (99, b"\xff\xff"),
        (36, (0x10).to_bytes(4, "big")),  # sysFlag: one host, then both, said to be IPv6
        (36, (0x20).to_bytes(4, "big")),
        (36, (0x30).to_bytes(4, "big")),
    ],
)
def test_lengths_that_disagree(at: int, value: bytes) -> None:
    assert read(GOOD[:at] + value + GOOD[at + len(value) :]) is Finding.BAD_LENGTH


def test_a_bound_before_the_end_hides_the_rest() -> None:
    assert read_record(GOOD + GOOD, 0, len(GOOD) - 1, 1000, check_crc=True) is Finding.INCOMPLETE
    assert isinstance(read_record(GOOD + GOOD, 0, len(GOOD), 1000, check_crc=True), LogRecord)


def test_bytes_that_are_not_utf8_do_not_stop_recovery() -> None:
    found = read(encode_record(b"\xff", 0, b"", b"\xfe", physical_offset=1000))
    assert isinstance(found, LogRecord)
    assert (found.topic, found.properties) == ("\ufffd", b"\xfe")


def test_which_record_bytes_claim_to_be() -> None:
    assert claimed_size(GOOD, 1000) == claimed_size(memoryview(GOOD)[:36], 1000) == len(GOOD)
    assert claimed_size(GOOD, 1001) == 0
    assert claimed_size(GOOD[:35], 1000) == 0
    assert claimed_size(MARK + bytes(100), 0) == 0


@pytest.mark.parametrize("born_host", [bytes(8), bytes(20)])
@pytest.mark.parametrize("store_host", [bytes(8), bytes(20)])
def test_store_timestamp(born_host: bytes, store_host: bytes) -> None:
    record = encode_record(b"T", 1, b"", b"", born_host=born_host, store_host=store_host, store_timestamp=1 << 41)
    assert store_timestamp_of(record) == store_timestamp_of(memoryview(record)) == 1 << 41
    assert store_timestamp_of(record[:90]) == -1
    assert store_timestamp_of(MARK + record[8:]) == -1
