"""The ledger: every acknowledged and every consumed message, in Parquet files for the audit.

The hot path costs one extension of a flat list per message. Every few thousand messages the list goes to the ledger's
own thread, which converts it to columns and, part by part, to whole Parquet files: a killed worker loses the last
seconds, never earlier files. Each file states the number of workers and the consumer groups of the run, and a worker's
last file is marked as such, so that an audit can check by itself whether it has seen everything.
`audit/checks.py` checks them, `audit/ledger_tables.py` reads them.
"""

from __future__ import annotations

import io
import logging
import queue
import shutil
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from triomq_benchmarks.figures.whole_files import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

ACKNOWLEDGED: Final = "acknowledged"
CONSUMED: Final = "consumed"

BATCH_ROWS: Final = 2048
"""Messages per batch for the ledger's thread, which then holds the interpreter for at most about a millisecond."""

PART_ROWS: Final = 65_536
"""Messages per Parquet file."""

WAITING_BATCHES_MAX: Final = 64
"""Maximum number of waiting batches; when the disk cannot keep up, the caller waits instead of filling memory."""

KEY_WORKERS: Final = b"triomq.workers"
KEY_WORKER: Final = b"triomq.worker"
KEY_GROUPS: Final = b"triomq.groups"
KEY_LAST: Final = b"triomq.last"

_ACKNOWLEDGED_FIELDS: Final = 6
_CONSUMED_FIELDS: Final = 7
_log = logging.getLogger(__name__)

Sink = Callable[[str, bytes], None]
"""Keeps one file: takes its name relative to the run directory, and its content. Called in the ledger's thread."""


class LedgerError(Exception):
    """The ledger could not be written: the audit would have no value, so the run ends."""


def folder_sink(folder: Path) -> Sink:
    """A sink that writes files below `folder`, each whole or not at all."""

    def keep(name: str, content: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as unfinished:
            unfinished.write_bytes(content)

    return keep


def remove_ledger(folder: Path) -> None:
    """Remove the ledger below `folder`, such as that of a killed run: an audit counts all its files as one run.

    Raises:
        LedgerError: it cannot be removed.
    """
    for name in (ACKNOWLEDGED, CONSUMED):
        try:
            shutil.rmtree(folder / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LedgerError(
                f"{folder / name} of an earlier run cannot be removed: {error.strerror or error}"
            ) from error


@contextmanager
def open_ledger(sink: Sink, *, worker: int, workers: int, groups: Sequence[str]) -> Iterator[ParquetLedger]:
    """Open a ledger while the block lasts; afterwards everything has been passed to the sink.

    Args:
        sink: takes the files, for example `folder_sink(run_directory)`.
        worker: number of the load generator.
        workers: number of load generators.
        groups: consumer groups that consume everything.

    Raises:
        LedgerError: the sink failed; at the latest when the block ends.
    """
    ledger = ParquetLedger(sink, worker=worker, workers=workers, groups=groups)
    ledger.start()
    try:
        yield ledger
    except BaseException:
        # The worker was ended early: its rows are kept, but not marked as complete.
        ledger.close(complete=False)
        raise
    ledger.close(complete=True)
    ledger.check()


@attrs.define
class _Column:
    """Rows of one kind that wait for their Parquet file."""

    kind: str
    batches: list[pa.RecordBatch] = attrs.field(factory=list)
    waiting: int = 0
    position: int = 0
    parts: int = 0


class ParquetLedger:
    """The rows of one worker; see `open_ledger`. Only one thread, the loop's, calls `acknowledged` and `consumed`."""

    def __init__(self, sink: Sink, *, worker: int, workers: int, groups: Sequence[str]) -> None:
        self._sink = sink
        self._worker = worker
        self._about = {
            KEY_WORKERS: str(workers).encode(),
            KEY_WORKER: str(worker).encode(),
            KEY_GROUPS: "\n".join(groups).encode(),
        }
        self._acknowledged: list[object] = []
        self._consumed: list[object] = []
        self._handed: queue.Queue[tuple[str, list[object]] | bool | None] = queue.Queue(WAITING_BATCHES_MAX)
        self._thread = threading.Thread(target=self._write, name=f"ledger-{worker}", daemon=True)
        self._failure: Exception | None = None

    def start(self) -> None:
        """Start the thread; `close` ends it."""
        self._thread.start()

    def acknowledged(self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int) -> None:
        """Record that a broker has taken a message; `crc` is CRC-32 of its whole body."""
        rows = self._acknowledged
        rows += (number, topic, broker, queue_id, queue_offset, crc)
        if len(rows) >= BATCH_ROWS * _ACKNOWLEDGED_FIELDS:
            self._acknowledged = []
            self._hand_over((ACKNOWLEDGED, rows))

    def consumed(
        self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int, group: str
    ) -> None:
        """Record that a consumer got a message; `number` is -1 if its head cannot be read."""
        rows = self._consumed
        rows += (number, topic, broker, queue_id, queue_offset, crc, group)
        if len(rows) >= BATCH_ROWS * _CONSUMED_FIELDS:
            self._consumed = []
            self._hand_over((CONSUMED, rows))

    def flush(self) -> None:
        """Start to write all rows so far, without waiting. Periodic calls bound the loss if the process is killed."""
        self._hand_over_rest()
        self._hand_over(False)

    def check(self) -> None:
        """Raise the thread's error, if any.

        Raises:
            LedgerError: files could not be kept.
        """
        if self._failure is not None:
            raise LedgerError(f"the ledger of worker {self._worker} could not be written: {self._failure}") from (
                self._failure
            )

    def close(self, *, complete: bool) -> None:
        """Write the remaining rows and end the thread.

        Args:
            complete: whether the worker has finished, which is recorded in its last files.
        """
        self._hand_over_rest()
        if complete:
            self._hand_over(True)
        self._hand_over(None)
        self._thread.join()

    def _hand_over_rest(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, []
        consumed, self._consumed = self._consumed, []
        for kind, rows in ((ACKNOWLEDGED, acknowledged), (CONSUMED, consumed)):
            if rows:
                self._hand_over((kind, rows))

    def _hand_over(self, task: tuple[str, list[object]] | bool | None) -> None:
        self._handed.put(task)

    def _write(self) -> None:
        """The thread: it collects rows; `False` writes them, `True` writes them as the last ones, None ends it."""
        columns = {kind: _Column(kind) for kind in (ACKNOWLEDGED, CONSUMED)}
        while (task := self._handed.get()) is not None:
            if self._failure is not None:
                continue  # the queue is emptied, so that no caller waits because it is full
            try:
                if isinstance(task, bool):
                    for column in columns.values():
                        if column.batches or task:
                            self._write_part(column, last=task)
                else:
                    self._collect(columns[task[0]], task[1])
            except Exception as error:  # noqa: BLE001 - a thread's outermost edge; `check` raises it
                if not isinstance(error, OSError):  # its text names the cause; any other is a defect
                    _log.exception("ledger of worker %d", self._worker)
                self._failure = error
        if self._failure is None:
            self._write_rest(columns)

    def _write_rest(self, columns: dict[str, _Column]) -> None:
        try:
            for column in columns.values():
                if column.batches:
                    self._write_part(column, last=False)
        except Exception as error:  # noqa: BLE001 - as above
            self._failure = error

    def _collect(self, column: _Column, rows: list[object]) -> None:
        batch = _record_batch(column.kind, rows, self._worker, column.position)
        column.position += batch.num_rows
        column.waiting += batch.num_rows
        column.batches.append(batch)
        if column.waiting >= PART_ROWS:
            self._write_part(column, last=False)

    def _write_part(self, column: _Column, *, last: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = ledger_schema(column.kind)
        metadata = {**self._about, KEY_LAST: b"1" if last else b"0"}
        table = pa.Table.from_batches(column.batches, schema).replace_schema_metadata(metadata)
        content = io.BytesIO()
        pq.write_table(table, content, compression="zstd")
        name = f"{column.kind}/worker-{self._worker:04d}-{column.parts:06d}.parquet"
        column.parts += 1
        column.batches, column.waiting = [], 0
        self._sink(name, content.getvalue())


def ledger_schema(kind: str) -> pa.Schema:
    """The columns of `acknowledged` or `consumed` files; `position` counts a worker's rows in order of arrival."""
    import pyarrow as pa

    name = pa.dictionary(pa.int32(), pa.string())
    fields = [
        ("number", pa.int64()),
        ("topic", name),
        ("broker", name),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("crc", pa.int64()),
        ("worker", pa.int32()),
        ("position", pa.int64()),
    ]
    return pa.schema(fields + ([("group", name)] if kind == CONSUMED else []))


def _record_batch(kind: str, rows: list[object], worker: int, position: int) -> pa.RecordBatch:
    """Build columns from a flat list; integers through typed arrays, which Arrow uses without conversion."""
    import pyarrow as pa

    width = _CONSUMED_FIELDS if kind == CONSUMED else _ACKNOWLEDGED_FIELDS
    schema = ledger_schema(kind)
    count = len(rows) // width

    def whole(code: str, values: object) -> pa.Array:
        packed = array(code, values)  # type: ignore[call-overload]
        arrow = pa.int64() if code == "q" else pa.int32()
        return pa.Array.from_buffers(arrow, count, [None, pa.py_buffer(packed)])

    def named(at: int) -> pa.Array:
        values = rows[at::width]
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        indices = whole("i", map(codes.__getitem__, values))
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(codes), pa.string()))

    columns = [
        whole("q", rows[0::width]),
        named(1),
        named(2),
        whole("i", rows[3::width]),
        whole("q", rows[4::width]),
        whole("q", rows[5::width]),
        whole("i", [worker] * count),
        whole("q", range(position, position + count)),
    ]
    if kind == CONSUMED:
        columns.append(named(6))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
