"""A run's files: `result.json` for everything but the rows, `intervals.parquet` for those."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from .intervals import IntervalRow
from .run_result import (
    FORMAT,
    FaultInstant,
    Machine,
    Outcome,
    RunResult,
    ThresholdResult,
    Verdict,
    WorkerResult,
)

RESULT, INTERVALS = "result.json", "intervals.parquet"


def write_run(result: RunResult, folder: Path) -> None:
    """Write both files; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(as_dict(result), indent=1) + "\n")
    _write_rows(result.rows, folder / INTERVALS)


def as_dict(result: RunResult) -> dict[str, Any]:
    """Everything but the rows, with the percentiles worked out, as JSON has it (no infinities)."""
    plain = attrs.asdict(result, filter=lambda attribute, _value: attribute.name != "rows")
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


def read_run(folder: Path) -> RunResult:
    """What `write_run` wrote. Raises OSError, ValueError."""
    values = json.loads((folder / RESULT).read_text())
    if values.pop("format") != FORMAT:
        raise ValueError(f"{folder / RESULT} was written by another version of triomq")
    values.pop("quantiles")
    verdict = values.pop("verdict")
    return RunResult(
        **{
            **values,
            "machine": Machine(**values["machine"]),
            "workers": tuple(WorkerResult(**each) for each in values["workers"]),
            "faults": tuple(FaultInstant(**each) for each in values["faults"]),
            "thresholds": tuple(
                ThresholdResult(**{**each, "measured": math.inf if each["measured"] is None else each["measured"]})
                for each in values["thresholds"]
            ),
            "verdict": Verdict(
                outcome=Outcome(verdict["outcome"]),
                explanation=verdict["explanation"],
                notes=tuple(verdict["notes"]),
            ),
            "rows": _read_rows(folder / INTERVALS),
        }
    )


def _write_rows(rows: tuple[IntervalRow, ...], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"int": pa.int64(), "float": pa.float64(), "bytes": pa.binary(), "int | None": pa.int64()}
    fields = attrs.fields(IntervalRow)
    columns = {each.name: pa.array([getattr(row, each.name) for row in rows], kinds[str(each.type)]) for each in fields}
    pq.write_table(pa.table(columns), path, compression="zstd")


def _read_rows(path: Path) -> tuple[IntervalRow, ...]:
    import pyarrow.parquet as pq

    return tuple(IntervalRow(**row) for row in pq.read_table(path).to_pylist())
