"""The broker's encoders: the same bytes one by one and as a batch, the mark last, and what does not fit."""

from __future__ import annotations

import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_cases import HOSTS, INT32, INT64
from stored_records import Stored, encode_record

from triomq_protocol.hosts import pack_host
from triomq_protocol.record.batch import encode_batch_element, split_batch
from triomq_protocol.record.check import Finding, read_record
from triomq_protocol.record.encode import UnplacedBatch, encode_batch, encode_topic, head_for, write_blank, write_record
from triomq_protocol.record.layout import HEAD_V4, HEADS
from triomq_protocol.record.view import RecordView, iter_records

V4, V6 = pack_host("10.0.0.1", 5), pack_host("fd00::2", 6)


@attrs.define
class Shared:
    queue_id: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int


@given(
    st.lists(st.tuples(INT32, st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=5),
    HOSTS, HOSTS, INT32, st.integers(0, 1 << 60), INT64,
)  # fmt: skip
def test_a_batch_gives_the_records_of_its_messages(
    messages: list[tuple[int, bytes, bytes]], born_host: bytes, store_host: bytes, queue_id: int, start: int, now: int
) -> None:
    shared = Shared(queue_id, 123, born_host, store_host, 2)
    _, sys_flag = head_for(born_host, store_host, 1)
    elements = split_batch(
        b"".join(encode_batch_element(body, own, flag) for flag, body, own in messages), b""
    ).elements
    batch = encode_batch(elements, shared, sys_flag, encode_topic("Topic"), 7, start, now)
    wanted, places = [], []
    for number, (flag, body, own) in enumerate(messages):
        offset = start + sum(map(len, wanted))
        places.append(offset)
        wanted.append(encode_record(
            b"Topic", queue_id, body, own, flag=flag, sys_flag=1, born_timestamp=123, born_host=born_host,
            store_host=store_host, queue_offset=7 + number, physical_offset=offset, store_timestamp=now, reconsume_times=2,
        ))  # fmt: skip
    assert batch.data == b"".join(wanted)
    assert batch.physical_offsets == places == batch.entries[0::3]
    assert batch.entries[1::3] == list(map(len, wanted))
    assert batch.entries[2::3] == [code for *_, code in elements]
    unplaced = UnplacedBatch(shared, sys_flag, encode_topic("Topic"))
    assert len(list(unplaced.add(elements, 2, 100))) >= len(elements) / 2
    assert unplaced.place(7, start, now) == batch
    assert unplaced.place(7, start, now) == batch


@pytest.mark.parametrize(
    ("born_host", "store_host", "flags"), [(V4, V4, 0), (V6, V4, 0x10), (V4, V6, 0x20), (V6, V6, 0x30)]
)
def test_ipv6_bits_come_from_the_hosts(born_host: bytes, store_host: bytes, flags: int) -> None:
    for given_flags in (0, 0x10, 0x20, 0x30):
        head, sys_flag = head_for(born_host, store_host, 0x301 | given_flags)
        assert sys_flag == 0x301 | flags
        assert head is HEADS[len(born_host), len(store_host)]


@pytest.mark.parametrize("length", [0, 7, 9, 21])
def test_a_host_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(KeyError):
        head_for(V4, bytes(length), 0)


@pytest.mark.parametrize(
    ("topic", "encoded"),
    [("T", b"\x01T"), ("é", b"\x02\xc3\xa9"), ("x" * 127, b"\x7f" + b"x" * 127), ("", b""), ("x" * 128, b""), ("é" * 64, b"")],
)  # fmt: skip
def test_topics_have_a_length_in_bytes(topic: str, encoded: bytes) -> None:
    assert encode_topic(topic) == encoded


def test_a_record_is_written_where_it_belongs_and_nowhere_else() -> None:
    wanted = encode_record(b"T", 1, b"body", b"K\x01v", queue_offset=5, physical_offset=9, store_timestamp=3)
    buffer = bytearray(b"\xee" * (len(wanted) + 20))
    fields = Stored(1, b"body", b"K\x01v", 0, 0, bytes(8), bytes(8), 0, 0)
    write_record(buffer, 10, 10 + len(wanted), HEAD_V4, 0, encode_topic("T"), 5, 9, 3, fields)
    assert buffer == b"\xee" * 10 + wanted + b"\xee" * 10
    fields.body = memoryview(b"body")
    write_record(buffer, 10, 10 + len(wanted), HEAD_V4, 0, encode_topic("T"), 5, 9, 3, fields)
    assert buffer[10:-10] == wanted


class Torn(bytearray):
    """A file whose process dies in the middle of an append: it takes so many writes by slices."""

    writes_left = 0

    def __setitem__(self, place: object, value: object) -> None:
        if self.writes_left == 0:
            raise InterruptedError
        self.writes_left -= 1
        super().__setitem__(place, value)  # type: ignore[arg-type,call-overload]


@pytest.mark.parametrize("writes", [0, 1])
def test_an_interrupted_record_is_none(writes: int) -> None:
    size = 91 + 4 + 1
    torn = Torn(size)
    torn.writes_left = writes
    fields = Stored(1, b"body", b"", 0, 0, bytes(8), bytes(8), 0, 0)
    with pytest.raises(InterruptedError):
        write_record(torn, 0, size, HEAD_V4, 0, encode_topic("T"), 0, 0, 1, fields)
    assert torn[:8] == bytes(8)
    assert read_record(bytes(torn), 0, size, 0, check_crc=True) is Finding.NOTHING


@pytest.mark.parametrize(
    "change",
    [{"queue_id": 1 << 31}, {"flag": -(1 << 31) - 1}, {"born_timestamp": 1 << 63}, {"reconsume_times": 1 << 31}],
)
def test_numbers_out_of_range_write_no_mark(change: dict[str, int]) -> None:
    fields = attrs.evolve(Stored(1, b"", b"", 0, 0, bytes(8), bytes(8), 0, 0), **change)
    buffer = bytearray(100)
    with pytest.raises(struct.error):
        write_record(buffer, 0, 92, HEAD_V4, 0, encode_topic("T"), 0, 0, 1, fields)
    assert buffer[:8] == bytes(8)


def test_the_largest_properties() -> None:
    data = encode_record(b"T", 1, b"", b"p" * 32767)
    assert len(RecordView(data).properties_bytes) == 32767
    with pytest.raises(struct.error):
        encode_record(b"T", 1, b"", b"p" * 32768)


def test_the_mark_at_the_end_of_a_file() -> None:
    buffer = bytearray(16)
    write_blank(buffer, 4, 12)
    assert buffer.hex() == "00000000" + "0000000c" + "cbd43194" + "00000000"
    assert read_record(bytes(buffer), 4, 16, 4, check_crc=True) is Finding.BLANK
    assert list(iter_records(bytes(buffer[4:]))) == []
