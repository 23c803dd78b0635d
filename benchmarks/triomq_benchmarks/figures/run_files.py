"""A run's files: `result.json` for everything but the rows, `intervals.parquet` and `resources.parquet` for those.

Each file is complete or absent.  JSON has no infinity: a measure without a value is null.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

import attrs
import msgspec

from triomq_benchmarks.figures.intervals import HISTOGRAMS, IntervalRow, check_encoded
from triomq_benchmarks.figures.resources import ResourceRow
from triomq_benchmarks.figures.run_result import FORMAT, RUN_S_MAX, RunResult
from triomq_benchmarks.figures.whole_files import whole_file

RESULT, INTERVALS, RESOURCES = "result.json", "intervals.parquet", "resources.parquet"
AUDIT = "audit.json"
_IN_TABLES = ("rows", "resources")


class _Details(TypedDict, total=False):
    nodes: Mapping[str, Mapping[str, object]]


class _Audit(TypedDict, total=False):
    clean: bool
    acknowledged: int
    consumed: int
    counts: Mapping[str, int]
    examples: Mapping[str, Sequence[Mapping[str, object]]]
    notes: Sequence[str]


class _Parts(TypedDict, total=False):
    """The parts of a result without a class of their own, as far as readers rely on them."""

    target_details: _Details
    audit: _Audit | None


class RunUnreadableError(Exception):
    """A folder holds no run that this version can read; the message says why."""


def write_run(result: RunResult, folder: Path) -> None:
    """Write both files; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    # The rows first: who finds a result finds its rows too.
    for name, kind, rows in ((INTERVALS, IntervalRow, result.rows), (RESOURCES, ResourceRow, result.resources)):
        with whole_file(folder / name) as unfinished:
            _write_rows(kind, rows, unfinished)
    with whole_file(folder / RESULT) as unfinished:
        unfinished.write_text(json.dumps(as_dict(result), indent=1) + "\n")


def as_dict(result: RunResult) -> dict[str, Any]:
    """Everything except the rows, with computed percentiles, in JSON's terms (no infinities)."""
    plain = attrs.asdict(result, filter=lambda attribute, _value: attribute.name not in _IN_TABLES)
    plain["quantiles"] = {name: attrs.asdict(each) for name, each in result.quantiles().items()}
    return {"format": FORMAT, **finite(plain)}


def finite(value: Any) -> Any:
    """Plain data with None for each number that JSON does not have: infinities, and what is not a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def why_taken(folders: Iterable[Path]) -> str | None:
    """The reason why no run can be written to some folders: the first with the result of an earlier run; else None.

    A run would replace some of the files there and leave others, which do not belong together.
    """
    taken = next((each / RESULT for each in folders if (each / RESULT).exists()), None)
    return None if taken is None else f"{taken} is of an earlier run"


class FolderInUseError(Exception):
    """Another run writes to a folder, or it cannot be made; the message says which."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder while the block lasts; they would remove this one's files.

    Missing folders are created, and removed at the end if they are empty. The lock is the kernel's, on the folder
    itself: it leaves no file, and ends with the process.

    Raises:
        FolderInUseError: another run writes to it, or it cannot be made.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    descriptor = _locked(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            for each in made:
                each.rmdir()
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Create a folder, and lock it. Raises FolderInUseError."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise FolderInUseError(f"it cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise FolderInUseError(f"another run writes to {folder}") from None
        # A run that ended between the two calls has removed the folder.
        os.close(descriptor)


def read_run(folder: Path) -> RunResult:
    """Read the files of `write_run`.

    Raises:
        RunUnreadableError: there is no run, it is damaged, or another version wrote it.
    """
    try:
        values = json.loads((folder / RESULT).read_text())
        if values.pop("format", None) != FORMAT:
            raise RunUnreadableError(f"{folder / RESULT} is of another format than this version's, {FORMAT}")
        values.pop("quantiles")
        # Runs of older versions have no file of resources.
        used = _read_rows(folder / RESOURCES) if (folder / RESOURCES).exists() else []
        return _result({**values, "rows": _read_rows(folder / INTERVALS), "resources": used})
    except OSError as error:
        runs = ", ".join(sorted(str(each.parent) for each in folder.glob(f"*/{RESULT}")))
        hint = f"; there are several runs in it: {runs}" if runs else ""
        raise RunUnreadableError(f"{folder} holds no run: {error.strerror or error}{hint}") from error
    except (
        msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError,
        NotImplementedError,  # of Arrow, for types that only a damaged table has
    ) as error:  # fmt: skip
        said = str(error) if isinstance(error, msgspec.ValidationError) else repr(error)
        raise RunUnreadableError(f"the run in {folder} is damaged: {said}") from error


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run.

    Raises:
        RunUnreadableError: the folder cannot be read.
    """
    try:
        (folder / RESULT).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RunUnreadableError(f"{folder} cannot be read: {error.strerror or error}") from error
    return True


def run_folders(folder: Path) -> list[Path]:
    """The folders below a folder that hold a run, by name; none if it does not exist.

    Raises:
        RunUnreadableError: the folder, or one below it, cannot be read: `glob` would leave it out silently.
    """
    try:
        below = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunUnreadableError(f"{folder} cannot be read: {error.strerror or error}") from error
    return [each for each in below if is_run(each)]


def read_audit(path: Path) -> Mapping[str, object]:
    """Read the file written by an audit.

    Raises:
        FileNotFoundError: there is none.
        RunUnreadableError: it is damaged.
    """
    try:
        audit: Mapping[str, object] = json.loads(path.read_text("utf-8"))
        msgspec.convert(audit, _Audit)
    except FileNotFoundError:
        raise
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RunUnreadableError(f"{path} is damaged: {error}") from error
    return audit


def _result(values: dict[str, Any]) -> RunResult:
    msgspec.convert(values, _Parts)
    thresholds = [
        {**each, "measured": math.inf if each["measured"] is None else each["measured"]}
        for each in values["thresholds"]
    ]
    result = msgspec.convert({**values, "thresholds": thresholds}, RunResult)
    # Pages and comparisons go through every second between the first and the last.
    for second in [row.second for row in result.rows] + [row.second for row in result.resources]:
        if abs(second) > 2 * RUN_S_MAX:
            raise ValueError(f"a row is of second {second}")
    for row in result.rows:
        for name in HISTOGRAMS:
            check_encoded(getattr(row, name))
    if not 0 <= result.measured_s <= RUN_S_MAX:
        raise ValueError("measured_s is no number of seconds of a run")
    return result


def _write_rows(kind: type[Any], rows: Sequence[object], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "int": pa.int64(), "float": pa.float64(), "bytes": pa.binary(), "int | None": pa.int64(), "str": pa.string(),
    }  # fmt: skip
    fields = attrs.fields(kind)
    columns = {each.name: pa.array([getattr(row, each.name) for row in rows], kinds[str(each.type)]) for each in fields}
    # Opened here: Arrow takes a path with a colon for a URI, and no path that is not UTF-8.
    with path.open("wb") as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def _read_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows
