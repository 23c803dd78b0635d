"""Columns cut from stored records, against the record view that reads one field at a time."""

from __future__ import annotations

import zlib

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_records import encode_record

from pyspark_rocketmq.rows.arrow_batches import BatchMaker
from pyspark_rocketmq.rows.schema import READ_SCHEMA, arrow_schema
from pyspark_rocketmq.rows.stored_frames import BrokenFramesError, StoredFrames
from triomq import MessageQueue, ReceivedMessage
from triomq.errors import MessageIllegal
from triomq_protocol.properties import encode_properties_bytes
from triomq_protocol.record.view import iter_records

QUEUE = MessageQueue("T", "broker-a", 3)
V4, V6 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", bytes(range(16)) + b"\x00\x00\x2a\x9f"


def record(offset: int, body: bytes = b"x", properties: bytes = b"", **changes: object) -> bytes:
    fields: dict[str, object] = {
        "flag": 0, "sys_flag": 0, "born_timestamp": 1_700_000_000_000 + offset, "born_host": V4, "store_host": V4,
        "queue_offset": offset, "physical_offset": offset * 1000, "store_timestamp": 1_700_000_000_500 + offset,
        "reconsume_times": offset % 3, **changes,
    }  # fmt: skip
    return encode_record(b"T", 3, body, properties, **fields)  # type: ignore[arg-type]


def batch_of(
    pages: list[bytes], tags: frozenset[str] | None = None, start: int = 0, end: int = 1 << 60
) -> pa.RecordBatch:
    return BatchMaker(QUEUE, arrow_schema(READ_SCHEMA), tags).batch(pages, start, end)


def expected(pages: list[bytes]) -> list[dict[str, object]]:
    rows = []
    for page in pages:
        for each in iter_records(page):
            message = ReceivedMessage(each, QUEUE)
            rows.append(
                {
                    "topic": "T",
                    "queue_id": each.queue_id,
                    "queue_offset": each.queue_offset,
                    "broker_name": "broker-a",
                    "message_id": message.message_id,
                    "keys": each.keys,
                    "tags": each.tags,
                    "body": message.body,
                    "properties": message.properties,
                    "born": each.born_timestamp,
                    "stored": each.store_timestamp,
                    "reconsume_times": each.reconsume_times,
                    "commit_log_offset": each.physical_offset,
                }
            )
    return rows


def found(batch: pa.RecordBatch) -> list[dict[str, object]]:
    rows = batch.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        row["born"] = round(row.pop("born_timestamp").timestamp() * 1000)
        row["stored"] = round(row.pop("store_timestamp").timestamp() * 1000)
    return rows  # type: ignore[no-any-return]


NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "a", "a longer name of a property"])
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(NAMES, TEXT, max_size=6).map(encode_properties_bytes)
ODD = st.lists(st.sampled_from([b"TAGS", b"\x01", b"\x02", b"a", b"KEYS\x01k", b"\xff", b"\xc3\xa9"]), max_size=8).map(
    b"".join
)
RECORDS = st.builds(
    lambda body, properties, tail, born, store: (body, properties + tail, born, store),
    st.binary(max_size=40),
    st.one_of(PROPERTIES, ODD),
    st.sampled_from([b"", b"\x02"]),
    st.sampled_from([V4, V6]),
    st.sampled_from([V4, V6]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, max_size=8), st.integers(0, 8))
def test_columns_are_what_single_records_say(records: list[tuple[bytes, bytes, bytes, bytes]], cut: int) -> None:
    made = [
        record(offset, body, properties, born_host=born, store_host=store)
        for offset, (body, properties, born, store) in enumerate(records)
    ]
    pages = [b"".join(made[:cut]), b"".join(made[cut:])]
    assert found(batch_of(pages)) == expected(pages)


def test_the_plain_form_is_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_text: object) -> dict[str, str]:
        raise AssertionError("decoded one by one")

    monkeypatch.setattr("pyspark_rocketmq.rows.property_columns.decode_properties", never)
    pages = [record(1, b"one", b"TAGS\x01a\x02UNIQ_KEY\x01" + b"1" * 32), record(2, b"two", b"CLUSTER\x01c\x02")]
    assert found(batch_of(pages))[0]["tags"] == "a"


def test_compressed_bodies_are_handed_out_as_they_were_sent() -> None:
    pages = [record(0, b"plain") + record(1, zlib.compress(b"packed" * 50), sys_flag=1) + record(2, b"x" * 5000)]
    assert batch_of(pages).column("body").to_pylist() == [b"plain", b"packed" * 50, b"x" * 5000]
    with pytest.raises(MessageIllegal):
        batch_of([record(1, b"no zlib", sys_flag=1)])


def test_only_wanted_rows_come_out() -> None:
    pages = [b"".join(record(offset, properties=b"TAGS\x01" + bytes([97 + offset % 3])) for offset in range(10))]
    assert batch_of(pages, start=2, end=5).column("queue_offset").to_pylist() == [2, 3, 4]
    found = batch_of(pages, frozenset({"a", "c"}), start=2, end=7)
    assert found.column("queue_offset").to_pylist() == [2, 3, 5, 6]


def test_a_schema_of_few_columns() -> None:
    schema = arrow_schema(type(READ_SCHEMA)([READ_SCHEMA["body"], READ_SCHEMA["queue_id"]]))
    batch = BatchMaker(QUEUE, schema).batch([record(0, b"one")], 0, 9)
    assert batch.to_pylist() == [{"body": b"one", "queue_id": 3}]


def test_no_record_at_all() -> None:
    assert batch_of([]).num_rows == 0
    assert batch_of([b""]).schema.equals(arrow_schema(READ_SCHEMA))


@pytest.mark.parametrize("cut", [1, 3, 40, 91])
def test_half_a_record_is_an_error_and_no_end(cut: int) -> None:
    whole = record(0, b"body", b"TAGS\x01a")
    with pytest.raises(BrokenFramesError):
        StoredFrames([whole, whole[:-cut]])


@pytest.mark.parametrize(
    ("at", "value"), [(84, b"\x00\x00\x10\x00"), (84, b"\xff\xff\xff\xff"), (92, b"\x70"), (94, b"\x7f\xff")]
)
def test_lengths_that_disagree_are_an_error(at: int, value: bytes) -> None:
    whole = bytearray(record(0, b"body", b"TAGS\x01a"))
    whole[at : at + len(value)] = value
    with pytest.raises(BrokenFramesError):
        StoredFrames([bytes(whole)])
