"""The audit on one machine, and the part shared with Spark's: the ledger's files as Arrow tables, cut for `checks.py`.

Tables are converted to rows only here.  The ledger is cut by message number into buckets, so that only one bucket's
messages are in memory as Python objects at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from triomq_benchmarks.audit.checks import (
    UNREADABLE,
    Acknowledged,
    Consumed,
    Findings,
    check_messages,
    check_order,
    check_places,
)
from triomq_benchmarks.figures.ledger import (
    ACKNOWLEDGED,
    CONSUMED,
    KEY_GROUPS,
    KEY_LAST,
    KEY_WORKER,
    KEY_WORKERS,
    LedgerError,
    ledger_schema,
)
from triomq_benchmarks.figures.run_files import AUDIT
from triomq_benchmarks.figures.whole_files import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET_ROWS = 400_000
"""Number of acknowledged messages checked at once: about a hundred megabytes."""

PLACE = ("topic", "broker", "queue_id", "queue_offset")
MESSAGE_COLUMNS = ("number", *PLACE, "crc")
QUEUE = ("group", "topic", "broker", "queue_id")


@attrs.frozen
class LedgerFiles:
    """A run's ledger on disk.

    Attributes:
        acknowledged: the files of acknowledged messages.
        consumed: the files of consumed messages.
        groups: consumer groups, each of which consumes everything.
        rows: number of rows of the larger of both kinds.
        notes: missing parts, in words; empty for a complete ledger.
    """

    acknowledged: tuple[Path, ...]
    consumed: tuple[Path, ...]
    groups: tuple[str, ...]
    rows: int
    notes: tuple[str, ...]


def find_ledger(folder: Path) -> LedgerFiles:
    """Find the ledger below a run directory.

    Raises:
        LedgerError: it does not exist, or a file is not ours, or a folder cannot be read.
    """
    found = {kind: _files_of(folder / kind) for kind in (ACKNOWLEDGED, CONSUMED)}
    if not any(found.values()):
        raise LedgerError(
            f"{folder} holds no ledger (folders {ACKNOWLEDGED} and {CONSUMED}): was the run made with its audit off?"
        )
    workers, groups, ended = 0, dict[str, None](), set[int]()
    rows = dict.fromkeys(found, 0)
    for kind, path in ((kind, path) for kind, paths in found.items() for path in paths):
        about = _about(path)
        rows[kind] += about.rows
        workers = max(workers, about.workers)
        groups.update(dict.fromkeys(about.groups))
        if about.is_last:
            ended.add(about.worker)
    notes = [f"the ledger of worker {each} has no end: the worker died or was stopped" for each in range(workers)
             if each not in ended]  # fmt: skip
    return LedgerFiles(found[ACKNOWLEDGED], found[CONSUMED], tuple(groups), max(rows.values()), tuple(notes))


def _files_of(folder: Path) -> tuple[Path, ...]:
    """The files of one kind; `glob` finds none in a folder that it cannot read, and all messages would be lost."""
    try:
        return tuple(sorted(each for each in folder.iterdir() if each.match("worker-*.parquet")))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise LedgerError(f"the ledger's folder {folder} cannot be read: {error.strerror or error}") from error


@attrs.frozen
class _About:
    """What a file says about its run, and its number of rows."""

    workers: int
    worker: int
    groups: tuple[str, ...]
    is_last: bool
    rows: int


def _about(path: Path) -> _About:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            metadata, count = file.schema_arrow.metadata or {}, file.metadata.num_rows
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LedgerError(f"{path} is not a Parquet file: {error}") from error
    if KEY_WORKERS not in metadata:
        raise LedgerError(f"{path} is not a file of a ledger")
    try:
        groups = tuple(filter(None, metadata[KEY_GROUPS].decode().split("\n")))
        workers, worker = int(metadata[KEY_WORKERS]), int(metadata[KEY_WORKER])
        return _About(workers, worker, groups, metadata[KEY_LAST] == b"1", count)
    except (KeyError, ValueError) as error:
        raise LedgerError(f"{path} is damaged: {error!r}") from error


def audit_folder(folder: Path) -> Findings:
    """Audit the ledger below a run directory in this process; a million messages take a few seconds.

    Raises:
        LedgerError: there is no ledger, or it is damaged.
    """
    files = find_ledger(folder)
    acknowledged, consumed = read_ledger(files.acknowledged, ACKNOWLEDGED), read_ledger(files.consumed, CONSUMED)
    total = Findings(notes=files.notes)
    named = name_unreadable(acknowledged, consumed)
    for some_acknowledged, some_consumed in _buckets(acknowledged, named):
        total += check_message_tables(some_acknowledged, some_consumed, files.groups)
    for queue in _queues(consumed):
        total += check_order_table(queue)
    return total + check_place_table(acknowledged)


def write_findings(findings: Findings, folder: Path) -> None:
    """Write `audit.json` into a run directory."""
    with whole_file(folder / AUDIT) as unfinished:
        unfinished.write_text(json.dumps(findings.as_dict(), indent=2) + "\n")


def check_message_tables(acknowledged: pa.Table, consumed: pa.Table, groups: Sequence[str]) -> Findings:
    """`check_messages` for tables with some messages and all their consumptions."""
    sent: Iterator[Acknowledged] = _rows(acknowledged, MESSAGE_COLUMNS)
    came: Iterator[Consumed] = _rows(consumed, (*MESSAGE_COLUMNS, "group"))
    return check_messages(sent, came, groups)


def check_order_table(queue: pa.Table) -> Findings:
    """`check_order` for a table with all consumptions of one queue by one group."""
    ordered = queue.sort_by([("worker", "ascending"), ("position", "ascending")])
    group, topic, broker, queue_id = (ordered.column(name)[0].as_py() for name in QUEUE)
    return check_order(_rows(ordered, ("worker", "queue_offset", "number")), group, topic, broker, queue_id)


def check_place_table(acknowledged: pa.Table) -> Findings:
    """`check_places` for a table of all acknowledgements."""
    import pyarrow.compute as pc

    counted = acknowledged.group_by(list(PLACE)).aggregate([("number", "count")])
    often = counted.filter(pc.greater(counted.column("number_count"), 1))
    if not often.num_rows:
        return Findings()
    near = acknowledged.filter(pc.is_in(acknowledged.column("queue_offset"), often.column("queue_offset")))
    listed = near.group_by(list(PLACE)).aggregate([("number", "list"), ("number", "count_distinct")])
    again = listed.filter(pc.greater(listed.column("number_count_distinct"), 1))
    return check_places(zip(*(again.column(name).to_pylist() for name in (*PLACE, "number_list")), strict=True))


def name_unreadable(acknowledged: pa.Table, consumed: pa.Table) -> pa.Table:
    """`consumed`, with the number acknowledged for its place in each row with an unreadable head, if there is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = [*MESSAGE_COLUMNS, "group"]
    unreadable = pc.equal(consumed.column("number"), UNREADABLE)
    if not pc.any(unreadable).as_py():
        return consumed.select(wanted)
    bad = consumed.filter(unreadable).select([*PLACE, "crc", "group"])
    near = acknowledged.filter(pc.is_in(acknowledged.column("queue_offset"), bad.column("queue_offset")))
    plain = pa.schema([bad.schema.field(name).with_type(pa.string()) if name in ("topic", "broker", "group")
                       else bad.schema.field(name) for name in bad.schema.names])  # fmt: skip
    near_plain = pa.schema([pa.field("number", pa.int64()), *(plain.field(name) for name in PLACE)])
    joined = bad.cast(plain).join(near.select(near_plain.names).cast(near_plain), list(PLACE), join_type="left outer")
    numbers = pc.coalesce(joined.column("number"), pa.scalar(UNREADABLE, pa.int64()))
    named = joined.set_column(joined.schema.get_field_index("number"), "number", numbers).select(wanted)
    good = consumed.filter(pc.invert(unreadable)).select(wanted)
    return pa.concat_tables([good, named.cast(good.schema)])


def read_ledger(paths: Sequence[Path], kind: str) -> pa.Table:
    """All rows of one kind, as one table.

    Raises:
        LedgerError: a file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = ledger_schema(kind)
    tables = []
    for path in paths:
        try:
            with path.open("rb") as file:
                table = pq.read_table(file).replace_schema_metadata(None).cast(schema)
            table.validate(full=True)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise LedgerError(f"{path} is damaged: {error}") from error
        if any(column.null_count for column in table.columns):
            raise LedgerError(f"{path} is damaged: it lacks values")
        tables.append(table)
    return pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()


def _buckets(acknowledged: pa.Table, consumed: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Split both tables into parts, with all rows of a message in the same part."""
    import pyarrow.compute as pc

    count = max(1, -(-max(acknowledged.num_rows, consumed.num_rows) // BUCKET_ROWS))
    if count == 1:
        yield acknowledged, consumed
        return
    # Numbers start with -1, and Arrow has no modulo: the low bits are as good, as there is a power of two of buckets.
    mask = (1 << (count - 1).bit_length()) - 1
    sides = [(table, pc.bit_wise_and(table.column("number"), mask)) for table in (acknowledged, consumed)]
    for bucket in range(mask + 1):
        sent, came = (table.filter(pc.equal(low, bucket)) for table, low in sides)
        yield sent, came


def _queues(consumed: pa.Table) -> Iterator[pa.Table]:
    """One table per group and queue."""
    import pyarrow.compute as pc

    if not consumed.num_rows:
        return
    for queue in consumed.group_by(list(QUEUE)).aggregate([]).to_pylist():
        here = None
        for name in QUEUE:
            same = pc.equal(consumed.column(name), queue[name])
            here = same if here is None else pc.and_(here, same)
        yield consumed.filter(here)


def _rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple]:  # type: ignore[type-arg]
    return zip(*(_values(table.column(name)) for name in names), strict=True)


def _values(column: pa.ChunkedArray) -> list[object]:
    """A column without nulls as a list, ten times as fast as Arrow's conversion, which makes an object per value."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        column = column.dictionary_encode()
    values: list[object] = []
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            names = chunk.dictionary.to_pylist()
            values += map(names.__getitem__, _integers(chunk.indices.cast(pa.int32())))
        else:
            values += _integers(chunk)
    return values


def _integers(chunk: pa.Array) -> list[int]:
    buffer = chunk.buffers()[1]
    if buffer is None:
        return []
    whole = memoryview(buffer).cast("B")
    wide = whole.cast("q") if chunk.type.bit_width == 64 else whole.cast("i")
    return wide[chunk.offset : chunk.offset + len(chunk)].tolist()
