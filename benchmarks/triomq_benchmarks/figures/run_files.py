"""A run's files: `result.json` for everything but the rows, `intervals.parquet` and `resources.parquet` for those.

Each file is whole or not there.  JSON has no infinity: a measure without a value is null there.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.resources import ResourceRow
from triomq_benchmarks.figures.run_result import (
    FORMAT,
    Decision,
    FaultInstant,
    Machine,
    RunResult,
    RunStatus,
    ThresholdResult,
    WorkerResult,
)

RESULT, INTERVALS, RESOURCES = "result.json", "intervals.parquet", "resources.parquet"
_IN_TABLES = ("rows", "resources")


class RunUnreadableError(Exception):
    """A folder holds no run that this version can read; the message says why."""


def write_run(result: RunResult, folder: Path) -> None:
    """Write both files; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    # The rows first: who finds a result finds its rows too.
    for name, kind, rows in ((INTERVALS, IntervalRow, result.rows), (RESOURCES, ResourceRow, result.resources)):
        _write_rows(kind, rows, folder / f"{name}.tmp")
        os.replace(folder / f"{name}.tmp", folder / name)
    (folder / f"{RESULT}.tmp").write_text(json.dumps(as_dict(result), indent=1) + "\n")
    os.replace(folder / f"{RESULT}.tmp", folder / RESULT)


def as_dict(result: RunResult) -> dict[str, Any]:
    """Everything but the rows, with the percentiles worked out, as JSON has it (no infinities)."""
    plain = attrs.asdict(result, filter=lambda attribute, _value: attribute.name not in _IN_TABLES)
    plain["quantiles"] = {name: attrs.asdict(each) for name, each in result.quantiles().items()}
    return {"format": FORMAT, **_finite(plain)}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def why_taken(folders: Iterable[Path]) -> str | None:
    """Why no run can be written to some folders: the first one with a result of an earlier run; None if none has one.

    A run would replace some of the files there and leave others, which do not belong together.
    """
    taken = next((each / RESULT for each in folders if (each / RESULT).exists()), None)
    return None if taken is None else f"{taken} is of an earlier run"


class FolderInUseError(Exception):
    """Another run writes to a folder; the message says so."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder for as long as the block lasts; they would remove this one's files.

    Folders that do not exist are made, and removed at the end if nothing is in them. The lock is the kernel's, of the folder
    itself: it leaves no file, and ends with the process.

    Raises:
        FolderInUseError: another run writes to it.
        OSError: it cannot be made.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(f"another run writes to {folder}") from None
        yield
    finally:
        with suppress(OSError):
            for each in made:
                each.rmdir()
        os.close(descriptor)


def read_run(folder: Path) -> RunResult:
    """What `write_run` wrote.

    Raises:
        RunUnreadableError: there is no run, it is damaged, or another version wrote it.
    """
    try:
        values = json.loads((folder / RESULT).read_text())
        if values.pop("format", None) != FORMAT:
            raise RunUnreadableError(f"{folder / RESULT} is of another format than this version's, {FORMAT}")
        values.pop("quantiles")
        rows = tuple(IntervalRow(**row) for row in _read_rows(folder / INTERVALS))
        # Runs of older versions have no such file.
        used = _read_rows(folder / RESOURCES) if (folder / RESOURCES).exists() else []
        return _result({**values, "resources": tuple(ResourceRow(**row) for row in used)}, rows)
    except OSError as error:
        runs = ", ".join(sorted(str(each.parent) for each in folder.glob(f"*/{RESULT}")))
        hint = f"; there are several runs in it: {runs}" if runs else ""
        raise RunUnreadableError(f"{folder} holds no run: {error.strerror or error}{hint}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunUnreadableError(f"the run in {folder} is damaged: {error!r}") from error


def _result(values: dict[str, Any], rows: tuple[IntervalRow, ...]) -> RunResult:
    decision = values["decision"]
    own = {
        "machine": Machine(**values["machine"]),
        "workers": tuple(WorkerResult(**each) for each in values["workers"]),
        "faults": tuple(FaultInstant(**each) for each in values["faults"]),
        "thresholds": tuple(
            ThresholdResult(**{**each, "measured": math.inf if each["measured"] is None else each["measured"]})
            for each in values["thresholds"]
        ),
        "decision": Decision(
            status=RunStatus(decision["status"]),
            explanation=decision["explanation"],
            notes=tuple(decision["notes"]),
            is_late=decision.get("is_late", False),
        ),
        "rows": rows,
    }
    return RunResult(**{**values, **own})


def _write_rows(kind: type[Any], rows: Sequence[object], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "int": pa.int64(), "float": pa.float64(), "bytes": pa.binary(), "int | None": pa.int64(), "str": pa.string(),
    }  # fmt: skip
    fields = attrs.fields(kind)
    columns = {each.name: pa.array([getattr(row, each.name) for row in rows], kinds[str(each.type)]) for each in fields}
    pq.write_table(pa.table(columns), path, compression="zstd")


def _read_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
