"""Records, batches, hosts and checksums beyond the golden bytes: round trips and damage."""

from __future__ import annotations

import zlib
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol import record
from triomq_protocol.errors import BodyError, LocalProtocolError, ProtocolError
from triomq_protocol.record import (
    RecordView,
    check_record,
    encode_record,
    iter_batch,
    iter_records,
    queue_offset_at,
    record_starts,
    stored_body,
)

HOSTS = st.sampled_from([record.pack_host("127.0.0.1", 10911), record.pack_host("fd00::2", 1)])
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
RECORDS = st.fixed_dictionaries({
    "topic": st.binary(min_size=1, max_size=127).map(lambda data: data.hex().encode()[:127]),
    "queue_id": INT32, "body": st.binary(max_size=100), "properties": st.binary(max_size=60), "flag": INT32,
    "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 0x301]), "born_timestamp": INT64, "born_host": HOSTS, "store_host": HOSTS,
    "queue_offset": INT64, "physical_offset": INT64, "store_timestamp": INT64, "reconsume_times": INT32,
    "prepared_transaction_offset": INT64,
})  # fmt: skip


@given(RECORDS)
def test_records_come_back(values: dict[str, object]) -> None:
    data = encode_record(**values)  # type: ignore[arg-type]
    view = RecordView(data)
    for name, want in values.items():
        if name == "topic":
            assert view.topic_bytes == want
        elif name.endswith("host"):
            assert getattr(view, f"{name}_bytes") == want
        elif name == "sys_flag":
            assert view.sys_flag & ~0x30 == want
        else:
            assert getattr(view, {"properties": "properties_bytes"}.get(name, name)) == want
    assert view.size_bytes == len(data) == record.record_bytes(
        view.body_bytes, len(view.topic_bytes), len(view.properties_bytes), view.sys_flag
    )  # fmt: skip
    assert view.body_crc == zlib.crc32(view.body) & 0x7FFFFFFF
    assert check_record(data).ok


@given(RECORDS, INT64, INT64, INT64)
def test_late_values_are_patched_in_place(values: dict[str, object], queue: int, physical: int, stored: int) -> None:
    patched = bytearray(encode_record(**values))  # type: ignore[arg-type]
    sys_flag = RecordView(patched).sys_flag
    places = {
        record.QUEUE_OFFSET_AT: queue,
        record.PHYSICAL_OFFSET_AT: physical,
        record.store_timestamp_at(sys_flag): stored,
    }
    for at, value in places.items():
        patched[at : at + 8] = value.to_bytes(8, "big", signed=True)
    late = {"queue_offset": queue, "physical_offset": physical, "store_timestamp": stored}
    assert bytes(patched) == encode_record(**values | late)  # type: ignore[arg-type]


@given(st.lists(RECORDS, max_size=4), st.integers(0, 40))
def test_a_damaged_tail_keeps_the_records_before_it(parts: list[dict[str, object]], cut: int) -> None:
    whole = [encode_record(**values) for values in parts]  # type: ignore[arg-type]
    stream = b"".join(whole)
    assert [view.data for view in iter_records(stream)] == whole
    if cut and whole:
        assert [view.data for view in iter_records(memoryview(stream)[:-cut])] == whole[:-1]


@given(RECORDS, st.data())
def test_damage_is_found_and_never_raises_anything_else(values: dict[str, object], data: st.DataObject) -> None:
    good = encode_record(**values)  # type: ignore[arg-type]
    damaged = bytearray(good)
    damaged[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    result = check_record(bytes(damaged))
    if result.ok and not result.blank:
        assert result.size_bytes == len(good)
    for view in iter_records(bytes(damaged)):
        assert isinstance(view.properties, dict)
        assert isinstance(view.topic, str)
    try:
        RecordView(bytes(damaged), 1)
    except ProtocolError:
        pass


def starts_of(stream: bytes) -> list[int]:
    """What `record_starts` is to tell, by the slower way."""
    return [0, *accumulate(view.size_bytes for view in iter_records(stream))][:-1]


@given(st.lists(RECORDS, max_size=4), st.integers(0, 60), st.data())
def test_starts_are_those_of_the_records_whatever_is_damaged(
    parts: list[dict[str, object]], cut: int, data: st.DataObject
) -> None:
    stream = bytearray(b"".join(encode_record(**values) for values in parts))  # type: ignore[arg-type]
    assert len(record_starts(bytes(stream))) == len(parts)
    for _ in range(data.draw(st.integers(0, 3))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = bytes(stream[: len(stream) - cut])
    assert record_starts(damaged) == starts_of(damaged)


LENGTHS = [(at, value) for at in (0, 1, 2, 3, 84, 85, 86, 87, 97, 99, 100, 109, 110) for value in (0, 1, 127, 128, 255)]


@pytest.mark.parametrize(("at", "value"), LENGTHS)
def test_no_length_is_believed_unseen(at: int, value: int) -> None:
    damaged = GOOD + GOOD[:at] + bytes([value]) + GOOD[at + 1 :] + GOOD
    assert record_starts(damaged) == starts_of(damaged)


@pytest.mark.parametrize("properties_bytes", [0, 255, 256, 32767])
def test_long_properties_do_not_hide_what_follows(properties_bytes: int) -> None:
    long = encode_record(
        b"T", 1, BODY, b"x" * properties_bytes, flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8),
        store_host=bytes(8),
    )  # fmt: skip
    assert record_starts(long + GOOD) == [0, len(long)]


def test_properties_that_are_too_long_for_a_reader_end_the_records() -> None:
    # The length is a signed number: whoever wrote this cannot have meant it.
    tail = GOOD.index(b"TAGS") - 2
    too_long = bytearray(GOOD[:tail] + (32768).to_bytes(2, "big") + bytes(32768))
    too_long[0:4] = len(too_long).to_bytes(4, "big")
    assert record_starts(GOOD + too_long) == starts_of(GOOD + too_long) == [0]


@given(RECORDS)
def test_single_fields_are_those_of_the_record(values: dict[str, object]) -> None:
    data = GOOD + encode_record(**values)  # type: ignore[arg-type]
    view = RecordView(data, len(GOOD))
    assert queue_offset_at(data, len(GOOD)) == view.queue_offset
    plain = not view.sys_flag & (1 | 0x30)
    assert stored_body(data, len(GOOD), 1) == (view.body if plain else None)
    assert stored_body(data, 0, 1) == BODY


BODY = b"some body"
GOOD = encode_record(
    b"T", 1, BODY, b"TAGS\x01a", flag=0, sys_flag=0, born_timestamp=1, born_host=record.pack_host("10.0.0.1", 5),
    store_host=record.pack_host("10.0.0.2", 6), physical_offset=1000,
)  # fmt: skip


def test_every_flipped_body_byte_is_found() -> None:
    start = GOOD.index(BODY)
    for at in range(start, start + len(BODY)):
        damaged = GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :]
        assert not check_record(damaged).ok
        assert check_record(damaged, check_crc=False).ok


def test_what_a_check_says() -> None:
    assert check_record(GOOD, offset=1000).ok
    assert "1001" in check_record(GOOD, offset=1001).reason
    assert check_record(GOOD[:-1]).size_bytes == len(GOOD)
    assert not check_record(GOOD[:-1]).ok
    assert check_record(b"").size_bytes == -1
    assert check_record(GOOD[:4] + bytes(4) + GOOD[8:]).size_bytes == -1
    blank = check_record((77).to_bytes(4, "big") + record.BLANK_MAGIC.to_bytes(4, "big", signed=True))
    assert (blank.ok, blank.blank, blank.size_bytes) == (True, True, 77)
    longer = (len(GOOD) + 1).to_bytes(4, "big") + GOOD[4:] + b"x"
    assert (check_record(longer).ok, check_record(longer).size_bytes) == (False, len(GOOD) + 1)


def test_properties_by_name() -> None:
    view = RecordView(GOOD)
    assert (view.tags, view.keys, view.unique_key) == ("a", None, None)
    assert view.born_host == ("10.0.0.1", 5)
    assert view.offset_message_id == "0A0000020000000600000000000003E8"


@pytest.mark.parametrize("change", [{"topic": b"t" * 128}, {"properties": b"p" * 32768}, {"queue_id": 1 << 31},
                                    {"born_host": b"123"}, {"store_host": b"x" * 21}])  # fmt: skip
def test_what_does_not_fit_is_our_mistake(change: dict[str, object]) -> None:
    host = record.pack_host("1.2.3.4", 5)
    values: dict[str, object] = {"topic": b"T", "queue_id": 0, "body": b"", "properties": b"", "flag": 0, "sys_flag": 0,
                                 "born_timestamp": 0, "born_host": host, "store_host": host}  # fmt: skip
    with pytest.raises(LocalProtocolError):
        encode_record(**values | change)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50), INT32), max_size=5))
def test_batches_come_back(parts: list[tuple[bytes, bytes, int]]) -> None:
    body = b"".join(record.encode_batch_element(*part) for part in parts)
    assert [(element.body, element.properties, element.flag) for element in iter_batch(memoryview(body))] == parts
    for cut in range(1, min(len(body), 30)):
        if sum(22 + len(b) + len(p) for b, p, _ in parts[:-1]) != len(body) - cut:
            with pytest.raises(BodyError):
                list(iter_batch(body[:-cut]))


@given(st.binary(max_size=80))
def test_noise_as_a_batch(data: bytes) -> None:
    try:
        list(iter_batch(data))
    except BodyError:
        pass


def test_batch_properties_have_a_limit() -> None:
    with pytest.raises(LocalProtocolError):
        record.encode_batch_element(b"", bytes(32768))


def test_hosts() -> None:
    assert record.pack_host("127.0.0.1", 10911).hex() == "7f00000100002a9f"
    assert record.pack_host("::ffff:1.2.3.4", 1) == record.pack_host("1.2.3.4", 1)
    assert record.pack_host("fe80::1%eth0", 1)[:2].hex() == "fe80"
    assert record.format_host(record.pack_host("fd00::2", 99)) == "[fd00::2]:99"
    assert record.format_host(record.pack_host("10.1.2.3", 99)) == "10.1.2.3:99"
    for ip, port in (("name", 1), ("1.2.3.4", -1), ("", 1)):
        with pytest.raises(LocalProtocolError):
            record.pack_host(ip, port)
    with pytest.raises(BodyError):
        record.unpack_host(b"12345")


@given(st.binary(max_size=5000))
def test_the_fast_checksum_is_the_standard_one(data: bytes) -> None:
    assert record.crc32(data) == record.crc32(memoryview(data)) == zlib.crc32(data) & 0x7FFFFFFF
