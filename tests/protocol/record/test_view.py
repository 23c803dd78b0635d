"""Reading records beyond the golden bytes: round trips and damage."""

from __future__ import annotations

import zlib
from itertools import accumulate, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_cases import BODY, GOOD, RECORDS
from stored_records import encode_record

from triomq_protocol.errors import BodyError, ProtocolError
from triomq_protocol.record.check import Finding, read_record
from triomq_protocol.record.layout import MESSAGE_MAGIC, PLACE
from triomq_protocol.record.view import (
    RecordView,
    iter_records,
    queue_offset_at,
    record_starts,
    records_end,
    stored_body,
)


@given(RECORDS)
def test_records_are_decoded_as_they_were_encoded(values: dict[str, object]) -> None:
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
    hosts = len(view.born_host_bytes) + len(view.store_host_bytes)
    variable = view.body_bytes + len(view.topic_bytes) + len(view.properties_bytes)
    assert view.size_bytes == len(data) == 75 + hosts + variable
    assert view.body_crc == zlib.crc32(view.body) & 0x7FFFFFFF


@given(st.lists(RECORDS, max_size=4), st.integers(0, 40))
def test_a_damaged_tail_keeps_the_records_before_it(parts: list[dict[str, object]], cut: int) -> None:
    whole = [encode_record(**values) for values in parts]  # type: ignore[arg-type]
    stream = b"".join(whole)
    assert [view.data for view in iter_records(stream)] == whole
    if cut and whole:
        assert [view.data for view in iter_records(memoryview(stream)[:-cut])] == whole[:-1]


@given(RECORDS, st.data())
def test_damage_raises_nothing_else(values: dict[str, object], data: st.DataObject) -> None:
    damaged = bytearray(encode_record(**values))  # type: ignore[arg-type]
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    for view in iter_records(bytes(damaged)):
        assert isinstance(view.properties, dict)
        assert isinstance(view.topic, str)
    try:
        RecordView(bytes(damaged), 1)
    except ProtocolError:
        pass


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_no_record_is_read_before_its_last_byte(cut: int) -> None:
    with pytest.raises(BodyError):
        RecordView(GOOD[:cut])
    assert record_starts(GOOD[:cut]) == []
    assert list(iter_records(GOOD[:cut])) == []
    assert record_starts(GOOD + GOOD[:cut]) == [0]


@pytest.mark.parametrize("hosts", [(8, 20), (20, 8), (20, 20)])
def test_records_with_ipv6_hosts_may_be_cut_too(hosts: tuple[int, int]) -> None:
    whole = encode_record(b"T", 1, BODY, b"", born_host=bytes(hosts[0]), store_host=bytes(hosts[1]))
    assert RecordView(whole).body == BODY
    for cut in range(len(whole)):
        with pytest.raises(BodyError):
            RecordView(whole[:cut])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, (0).to_bytes(4, "big")),  # size
        (0, (90).to_bytes(4, "big")),
        (0, (-1).to_bytes(4, "big", signed=True)),
        (84, (-1).to_bytes(4, "big", signed=True)),  # body length
        (84, (1 << 30).to_bytes(4, "big")),
        (97, b"\xff"),  # topic length
        (99, b"\xff\xff"),  # properties length
        (99, b"\x7f\xff"),
    ],
)
def test_lengths_that_cannot_be(at: int, value: bytes) -> None:
    damaged = GOOD[:at] + value + GOOD[at + len(value) :]
    with pytest.raises(BodyError):
        RecordView(damaged)
    assert record_starts(damaged) == []


def test_a_view_has_a_readable_repr() -> None:
    assert repr(RecordView(GOOD)) == f"<record T-1@0, {len(GOOD)} bytes>"


def starts_of(stream: bytes) -> list[int]:
    """The result that `record_starts` must have, found in a slower way."""
    starts = [0, *accumulate(view.size_bytes for view in iter_records(stream))][:-1]
    return list(takewhile(lambda at: PLACE.unpack_from(stream, at)[1] == MESSAGE_MAGIC, starts))


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
def test_no_length_is_used_unchecked(at: int, value: int) -> None:
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
    # The length is a signed number: no writer can have meant this.
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


def test_properties_by_name() -> None:
    view = RecordView(GOOD)
    assert (view.tags, view.keys, view.unique_key) == ("a", None, None)
    assert view.born_host == ("10.0.0.1", 5)
    assert view.offset_message_id == "0A0000020000000600000000000003E8"


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("rest", [b"", b"x", GOOD[:-1], bytes(100), b"\xff" * 8])
def test_where_the_records_end(count: int, rest: bytes) -> None:
    body = GOOD * count + rest
    starts = record_starts(body)
    assert starts == [len(GOOD) * number for number in range(count)]
    assert records_end(body, starts) == len(GOOD) * count


@pytest.mark.parametrize(
    ("data", "at", "reason"),
    [
        (b"", 0, "it ends too early"),
        (GOOD[:87], 0, "it ends too early"),
        (GOOD, 1, f"size {int.from_bytes(GOOD[1:5], 'big', signed=True)} at 1 of {len(GOOD)} bytes"),
        (GOOD[:-1], 0, f"size {len(GOOD)} at 0 of {len(GOOD) - 1} bytes"),
        (GOOD + GOOD[:-1], len(GOOD), f"size {len(GOOD)} at {len(GOOD)} of {2 * len(GOOD) - 1} bytes"),
        ((90).to_bytes(4, "big") + GOOD[4:], 0, f"size 90 at 0 of {len(GOOD)} bytes"),
        (GOOD[:84] + b"\xff" * 4 + GOOD[88:], 0, f"body of -1 bytes in a record of {len(GOOD)} bytes"),
        (GOOD[:84] + b"\x00\x00\x01\x00" + GOOD[88:], 0, f"body of 256 bytes in a record of {len(GOOD)} bytes"),
        (GOOD[:97] + b"\x02" + GOOD[98:], 0, f"size {len(GOOD)} disagrees with its parts"),
        (GOOD[:97] + b"\x00" + GOOD[98:], 0, f"size {len(GOOD)} disagrees with its parts"),
        (GOOD[:97] + b"\x7f" + GOOD[98:], 0, "it ends too early"),
        (GOOD[:99] + b"\x00\x05" + GOOD[101:], 0, f"size {len(GOOD)} disagrees with its parts"),
    ],
)  # fmt: skip
def test_errors_of_bytes_that_are_no_record(data: bytes, at: int, reason: str) -> None:
    with pytest.raises(BodyError) as caught:
        RecordView(data, at)
    assert str(caught.value) == f"message record: {reason}"


@pytest.mark.parametrize(("born", "store", "flags"), [(8, 8, 0), (20, 8, 0x10), (8, 20, 0x20), (20, 20, 0x30)])
@pytest.mark.parametrize("bits", [0, 1, 0x301])
def test_which_bodies_are_cut_out_directly(born: int, store: int, flags: int, bits: int) -> None:
    """Only those that need neither inflating nor a longer way past IPv6 hosts."""
    data = GOOD + encode_record(b"T", 1, BODY, b"", sys_flag=bits, born_host=bytes(born), store_host=bytes(store))
    assert RecordView(data, len(GOOD)).sys_flag == flags | bits
    assert stored_body(data, len(GOOD), 0) == (None if flags else BODY)
    assert stored_body(data, len(GOOD), 1) == (None if flags or bits else BODY)
    assert stored_body(data, len(GOOD), 0x300) == (None if flags or bits > 1 else BODY)


def test_each_field_of_a_record_with_ipv6_hosts() -> None:
    data = encode_record(
        "Thé".encode(), 7, BODY, b"KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02TAGS\x01t\x02a\x01", flag=-8, sys_flag=4,
        born_timestamp=11, born_host=bytes(15) + b"\x01\x00\x00\x00\x05", queue_offset=12, physical_offset=13,
        store_timestamp=14, store_host=bytes(15) + b"\x02\x00\x00\x00\x06", reconsume_times=15,
        prepared_transaction_offset=16,
    )  # fmt: skip
    view = RecordView(b"before" + data + b"after", 6)
    assert (view.topic, view.queue_id, view.flag, view.sys_flag) == ("Thé", 7, -8, 4 | 0x30)
    assert (view.queue_offset, view.physical_offset, view.reconsume_times) == (12, 13, 15)
    assert (view.born_timestamp, view.store_timestamp, view.prepared_transaction_offset) == (11, 14, 16)
    assert (view.born_host, view.store_host) == (("::1", 5), ("::2", 6))
    assert (view.keys, view.unique_key, view.tags) == ("k1 k2", "U", "t")
    assert view.properties == {"KEYS": "k1 k2", "UNIQ_KEY": "U", "TAGS": "t"}
    assert view.offset_message_id == "0" * 31 + "2" + "00000006" + "000000000000000D"
    assert (view.data, view.body, view.body_bytes) == (data, BODY, len(BODY))


@pytest.mark.parametrize("length", [-1, -2])
def test_a_negative_length_does_not_pass_because_the_sum_is_right(length: int) -> None:
    whole = encode_record(b"T", 1, BODY, b"", physical_offset=1000)
    data = (len(whole) + length).to_bytes(4, "big") + whole[4:-2] + length.to_bytes(2, "big", signed=True)
    with pytest.raises(BodyError, match="disagrees with its parts"):
        RecordView(data)
    assert record_starts(data) == []
    assert read_record(data, 0, len(data), 1000, check_crc=False) is Finding.BAD_LENGTH
