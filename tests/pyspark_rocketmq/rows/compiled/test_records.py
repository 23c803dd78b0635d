"""The compiled columns against those of numpy: the same batch, or the same refusal, for the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pulled_records import PROPERTIES, QUEUE, RECORDS, record

from pyspark_rocketmq.rows import compiled
from pyspark_rocketmq.rows.arrow_batches import BatchMaker
from pyspark_rocketmq.rows.schema import READ_SCHEMA, arrow_schema
from pyspark_rocketmq.rows.stored_frames import BrokenFramesError
from triomq.errors import MessageIllegal
from triomq_protocol.record import layout
from triomq_protocol.record.view import record_starts, records_end

pytestmark = pytest.mark.skipif(not compiled.BUILT, reason="no compiled module in this installation")

SCHEMA = arrow_schema(READ_SCHEMA)
IDS = st.integers(0, 1 << 40).map(lambda number: b"UNIQ_KEY\x01" + b"%032X" % number)
"""Records with an id of the sender's: those without one are left to numpy."""
USUAL = st.builds(
    lambda record, properties, identity: (record[0], properties + b"\x02" * bool(properties) + identity, *record[2:]),
    RECORDS,
    PROPERTIES,
    IDS,
)


def both(pages: list[bytes], tags: frozenset[str] | None = None, end: int = 1 << 60) -> list[pa.RecordBatch | None]:
    """The batch by numpy and by the compiled module; None for a refusal."""
    made: list[pa.RecordBatch | None] = []
    for used in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "USED", used)
            try:
                (batch,) = BatchMaker(QUEUE, SCHEMA, tags).batches(pages, 1, end)
            except (BrokenFramesError, MessageIllegal):
                made.append(None)
            else:
                batch.validate(full=True)
                made.append(batch)
    return made


def pages_of(records: list[tuple[bytes, bytes, bytes, bytes]], cut: int) -> list[bytes]:
    made = [
        record(offset, body, properties, born_host=born, store_host=store)
        for offset, (body, properties, born, store) in enumerate(records)
    ]
    return [b"".join(made[:cut]), b"".join(made[cut:])]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(USUAL, RECORDS), max_size=12), st.integers(0, 12), st.sampled_from([None, {"a"}, {"é", "b"}]))
def test_the_same_columns(records: list[tuple[bytes, bytes, bytes, bytes]], cut: int, tags: set[str] | None) -> None:
    pure, fast = both(pages_of(records, cut), frozenset(tags) if tags else None, end=9)
    assert pure is not None
    assert pure.equals(fast, check_metadata=True)


@settings(max_examples=300, deadline=None)
@given(st.lists(USUAL, min_size=1, max_size=3), st.data())
def test_altered_bytes_are_taken_or_refused_by_both(
    records: list[tuple[bytes, bytes, bytes, bytes]], data: st.DataObject
) -> None:
    page = bytearray(pages_of(records, 0)[1])
    for _ in range(data.draw(st.integers(1, 3))):
        page[data.draw(st.integers(0, len(page) - 1))] = data.draw(st.integers(0, 255))
    pure, fast = both([bytes(page)])
    assert (pure is None) == (fast is None)
    assert pure is None or pure.equals(fast)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(USUAL, RECORDS), max_size=6), st.data())
def test_whole_records_are_those_that_the_sdk_finds(
    records: list[tuple[bytes, bytes, bytes, bytes]], data: st.DataObject
) -> None:
    page = bytearray(b"".join(pages_of(records, len(records))))
    for _ in range(data.draw(st.integers(0, 2)) if page else 0):
        page[data.draw(st.integers(0, len(page) - 1))] = data.draw(st.integers(0, 255))
    page = page[: data.draw(st.integers(len(page) - 100, len(page)))] if data.draw(st.booleans()) else page
    starts = record_starts(bytes(page))
    assert compiled.records.whole_records(bytes(page)) == (len(starts), records_end(bytes(page), starts))


def test_the_usual_records_are_not_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_pages: object) -> None:
        raise AssertionError("left to numpy")

    monkeypatch.setattr(compiled, "USED", True)
    monkeypatch.setattr("pyspark_rocketmq.rows.arrow_batches.StoredFrames", never)
    properties = b"UNIQ_KEY\x01" + b"1" * 32 + "\x02é\x01ü\x02é\x01last\x02\x02no value\x01\x02a\x01b\x01c\x02".encode()
    (batch,) = BatchMaker(QUEUE, SCHEMA).batches([record(1, b"one", properties)], 0, 9)
    assert dict(batch.column("properties")[0].as_py()) == {"UNIQ_KEY": "1" * 32, "é": "last", "a": "b\x01c"}


@pytest.mark.parametrize(
    "properties",
    [
        b"TAGS\x01a",
        b"UNIQ_KEY\x011\x02a\x01\xff",
        b"UNIQ_KEY\x011\x02" + b"\x02".join(b"%d\x01v" % n for n in range(99)),
    ],
    ids=["no id", "no UTF-8", "many names"],
)
def test_unusual_records_have_the_same_columns(properties: bytes) -> None:
    pure, fast = both([record(1, b"one", properties) + record(2, b"two", b"\xa9\x01b")])
    assert pure is not None
    assert pure.num_rows == 2
    assert pure.equals(fast)


def test_a_letter_is_not_made_of_two_records() -> None:
    pure, fast = both([record(1, b"x", b"UNIQ_KEY\x01\xc3") + record(2, b"x", b"\xa9\x01b\x02UNIQ_KEY\x012")])
    assert pure is not None
    assert pure.equals(fast)
    assert pure.column("message_id").to_pylist() == ["\ufffd", "2"]


def test_the_layout_is_that_of_the_protocol() -> None:
    from pyspark_rocketmq.rows.compiled.records import LAYOUT

    fields = {name: layout.field_offset(name) for name in layout.HEAD_FIELDS}
    assert {name: fields.get(name, getattr(layout, name, None)) for name in LAYOUT} == LAYOUT


def test_the_environment_leaves_it_unused() -> None:
    for pure, used in (("1", "False"), ("0", "True")):
        done = subprocess.run(
            [sys.executable, "-c", "from pyspark_rocketmq.rows import compiled; print(compiled.USED)"],
            env=os.environ | {"TRIOMQ_PURE": pure},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == used
