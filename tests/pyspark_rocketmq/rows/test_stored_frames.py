"""Columns cut from stored records, against the record view that reads one field at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pulled_records import QUEUE, RECORDS, record

from pyspark_rocketmq.rows import arrow_batches, compiled
from pyspark_rocketmq.rows.arrow_batches import BatchMaker
from pyspark_rocketmq.rows.instants import EARLIEST_MS, LATEST_MS
from pyspark_rocketmq.rows.schema import READ_SCHEMA, arrow_schema
from pyspark_rocketmq.rows.stored_frames import BrokenFramesError, StoredFrames
from triomq import ReceivedMessage
from triomq.errors import MessageIllegal
from triomq_protocol.record.view import iter_records


@pytest.fixture(autouse=True, scope="module", params=["numpy", "compiled"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled" and not compiled.BUILT:
        pytest.skip("no compiled module in this installation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "USED", request.param == "compiled")
        yield


def batch_of(
    pages: list[bytes], tags: frozenset[str] | None = None, start: int = 0, end: int = 1 << 60
) -> pa.RecordBatch:
    (batch,) = BatchMaker(QUEUE, arrow_schema(READ_SCHEMA), tags).batches(pages, start, end)
    return batch


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

    monkeypatch.setattr(compiled, "USED", False)
    monkeypatch.setattr("pyspark_rocketmq.rows.property_columns.decode_properties", never)
    pages = [record(1, b"one", b"TAGS\x01a\x02UNIQ_KEY\x01" + b"1" * 32), record(2, b"two", b"CLUSTER\x01c\x02")]
    assert found(batch_of(pages))[0]["tags"] == "a"


def test_compressed_bodies_are_handed_out_as_they_were_sent() -> None:
    pages = [record(0, b"plain") + record(1, zlib.compress(b"packed" * 50), sys_flag=1) + record(2, b"x" * 5000)]
    assert batch_of(pages).column("body").to_pylist() == [b"plain", b"packed" * 50, b"x" * 5000]
    with pytest.raises(MessageIllegal):
        batch_of([record(1, b"no zlib", sys_flag=1)])


def test_times_that_no_date_holds_are_null() -> None:
    times_ms = [1 << 62, 1 << 54, -(1 << 63), -1, EARLIEST_MS - 1, EARLIEST_MS, LATEST_MS, LATEST_MS + 1]
    pages = [record(n, born_timestamp=time_ms) for n, time_ms in enumerate(times_ms)]
    pages += [record(len(times_ms), store_timestamp=1 << 62)]
    batch = batch_of(pages)
    microseconds = batch.column("born_timestamp").cast(pa.int64()).to_pylist()
    assert microseconds[:-1] == [None, None, None, -1000, None, EARLIEST_MS * 1000, LATEST_MS * 1000, None]
    assert batch.column("store_timestamp").is_null().to_pylist() == [False] * len(times_ms) + [True]
    assert str(batch.column("born_timestamp")[5].as_py()) == "0001-01-02 00:00:00+00:00"
    assert str(batch.column("born_timestamp")[6].as_py()) == "9999-12-30 23:59:59.999000+00:00"


def test_only_wanted_rows_come_out() -> None:
    pages = [b"".join(record(offset, properties=b"TAGS\x01" + bytes([97 + offset % 3])) for offset in range(10))]
    assert batch_of(pages, start=2, end=5).column("queue_offset").to_pylist() == [2, 3, 4]
    found = batch_of(pages, frozenset({"a", "c"}), start=2, end=7)
    assert found.column("queue_offset").to_pylist() == [2, 3, 5, 6]


def test_a_schema_of_few_columns() -> None:
    schema = arrow_schema(type(READ_SCHEMA)([READ_SCHEMA["body"], READ_SCHEMA["queue_id"]]))
    (batch,) = BatchMaker(QUEUE, schema).batches([record(0, b"one")], 0, 9)
    assert batch.to_pylist() == [{"body": b"one", "queue_id": 3}]


@pytest.mark.parametrize("tags", [None, frozenset({"a"})])
def test_bodies_that_are_long_when_decompressed_are_divided(
    monkeypatch: pytest.MonkeyPatch, tags: frozenset[str] | None
) -> None:
    monkeypatch.setattr(arrow_batches, "EXPANDED_BYTES", 1000)
    sizes = [400, 600, 1, 5000, 1000, 999, 1, 1]
    records = [
        record(offset, zlib.compress(b"x" * size), b"TAGS\x01" + b"ab"[offset % 2 :][:1], sys_flag=1)
        for offset, size in enumerate(sizes)
    ]
    pages = [b"".join(records[:3]), b"".join(records[3:]), record(8, b"plain", b"TAGS\x01a")]
    made = list(BatchMaker(QUEUE, arrow_schema(READ_SCHEMA), tags).batches(pages, 0, 9))
    parts = [[0, 1], [2], [3], [4], [5, 6], [7, 8]]
    wanted = [[offset for offset in part if tags is None or offset % 2 == 0] for part in parts]
    assert [batch.column("queue_offset").to_pylist() for batch in made] == wanted
    lengths = [len(body) for batch in made for body in batch.column("body").to_pylist()]
    assert lengths == [[*sizes, len(b"plain")][offset] for part in wanted for offset in part]


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
