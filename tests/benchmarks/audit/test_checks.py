"""The audit finds the injected defects and nothing else; the ledger keeps what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from injected_messages import GROUPS, check_exactly, write_ledger

from triomq_benchmarks.audit.checks import EXAMPLES_MAX, Defect, Findings, check_messages, check_order
from triomq_benchmarks.audit.ledger_tables import audit_folder, find_ledger
from triomq_benchmarks.figures.ledger import LedgerError, folder_sink, open_ledger

DEFECT_SETS = [frozenset(), *(frozenset({defect}) for defect in Defect), frozenset(Defect)]


@pytest.mark.parametrize("defects", DEFECT_SETS, ids=lambda defects: "+".join(sorted(defects)) or "nothing")
def test_finds_exactly_the_injected_defects(defects: frozenset[Defect], tmp_path: Path) -> None:
    write_ledger(tmp_path, defects)
    check_exactly(audit_folder(tmp_path), defects)


def test_buckets_give_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ledger(tmp_path, frozenset(Defect))
    monkeypatch.setattr("triomq_benchmarks.audit.ledger_tables.BUCKET_ROWS", 7)
    check_exactly(audit_folder(tmp_path), frozenset(Defect))


def test_a_ledger_without_its_end_is_not_clean(tmp_path: Path) -> None:
    write_ledger(tmp_path, frozenset(), last=False)
    findings = audit_folder(tmp_path)
    assert not any(findings.counts.values())
    assert not findings.clean
    assert findings.notes == ("the ledger of worker 1 has no end: the worker died or was stopped",)


def test_a_worker_without_a_ledger_is_reported(tmp_path: Path) -> None:
    with open_ledger(folder_sink(tmp_path), worker=0, workers=3, groups=()):
        pass
    assert len(find_ledger(tmp_path).notes) == 2


def test_a_group_that_consumed_nothing_lost_everything(tmp_path: Path) -> None:
    with open_ledger(folder_sink(tmp_path), worker=0, workers=1, groups=GROUPS) as ledger:
        for number in range(25):
            ledger.acknowledged(number, "T", "b", 0, number, 7)
            ledger.consumed(number, "T", "b", 0, number, 7, "first")
    findings = audit_folder(tmp_path)
    assert findings.counts[Defect.LOST] == 25
    assert [one.number for one in findings.examples[Defect.LOST]] == list(range(EXAMPLES_MAX))


def test_an_offset_that_was_acknowledged_for_two_messages_is_reported(tmp_path: Path) -> None:
    with open_ledger(folder_sink(tmp_path), worker=0, workers=1, groups=("g",)) as ledger:
        # The log went back by two: the offsets 3 and 4 are given again. Another queue has the same offsets.
        for number, (queue_id, offset) in enumerate([*((0, each) for each in (0, 1, 2, 3, 4, 3, 4, 5)), (1, 3)]):
            ledger.acknowledged(number, "T", "b", queue_id, offset, 7)
            ledger.consumed(number, "T", "b", queue_id, offset, 7, "g")
        # One send that was answered twice with the same place has still one place.
        ledger.acknowledged(8, "T", "b", 1, 3, 7)
    findings = audit_folder(tmp_path)
    assert (findings.counts[Defect.UNEXPECTED], findings.given_again) == (2, 2)
    assert [one.number for one in findings.examples[Defect.UNEXPECTED]] == [5, 6]
    assert findings.examples[Defect.UNEXPECTED][0].place == "T b/0 at 3"
    assert "as message 0:3 was: the log went back" in findings.examples[Defect.UNEXPECTED][0].detail
    assert str(findings) == "2 unexpected; 2 places acknowledged for two messages: the log went back"
    # Failed sends explain messages that were not acknowledged, not this.
    assert not findings.is_within(0, 100)
    assert Findings.decode(findings.encode()) == findings
    assert (findings + findings).given_again == 4


def test_a_missing_ledger_names_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=f"{tmp_path} holds no ledger"):
        audit_folder(tmp_path)


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "consumed").mkdir()
    (tmp_path / "consumed" / "worker-0000-000000.parquet").write_bytes(b"no parquet")
    with pytest.raises(LedgerError, match=r"worker-0000-000000\.parquet is not a Parquet file"):
        audit_folder(tmp_path)


def _with_metadata(key: bytes, value: bytes) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata({**table.schema.metadata, key: value})


def _without(key: bytes) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata({k: v for k, v in table.schema.metadata.items() if k != key})


@pytest.mark.parametrize("kind", ["acknowledged", "consumed"])
@pytest.mark.parametrize(
    "damage",
    [
        _without(b"triomq.last"),
        _without(b"triomq.worker"),
        _with_metadata(b"triomq.workers", b"two"),
        _with_metadata(b"triomq.groups", b"\xff"),
        lambda table: table.drop_columns(["crc"]),
        lambda table: table.rename_columns(["Bumber", *table.column_names[1:]]),
        lambda table: table.set_column(5, "crc", pa.nulls(table.num_rows, pa.int64())),
        lambda table: table.set_column(5, "crc", pa.array(["x"] * table.num_rows)),
    ],
    ids=["no end", "no worker", "workers", "groups", "a column less", "a column's name", "no values", "type"],
)
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, damage: Callable[[pa.Table], pa.Table]) -> None:
    write_ledger(tmp_path, frozenset())
    path = max((tmp_path / kind).iterdir(), key=lambda each: pq.read_metadata(each).num_rows)
    table = pq.read_table(path)
    damaged = damage(table)
    pq.write_table(damaged.replace_schema_metadata(damaged.schema.metadata or table.schema.metadata), path)
    with pytest.raises(LedgerError, match=f"{path} is damaged: "):
        audit_folder(tmp_path)


def test_a_file_whose_schema_is_damaged_is_named(tmp_path: Path) -> None:
    write_ledger(tmp_path, frozenset())
    path = min((tmp_path / "consumed").iterdir())
    path.write_bytes(path.read_bytes().replace(b"queue_offset", b"queue\xfeoffset"))  # no UTF-8
    with pytest.raises(LedgerError, match=f"{path} is (damaged|not a Parquet file): "):
        audit_folder(tmp_path)


@pytest.mark.parametrize("kind", ["acknowledged", "consumed"])
def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, kind: str) -> None:
    with open_ledger(folder_sink(tmp_path), worker=0, workers=1, groups=("g",)) as ledger:
        ledger.acknowledged(1, "T", "b", 0, 0, 7)
        ledger.consumed(1, "T", "b", 0, 0, 7, "g")
    assert audit_folder(tmp_path).clean
    (tmp_path / kind).rename(tmp_path / "elsewhere")
    # Permissions do not bind every user that runs tests.
    (tmp_path / kind).symlink_to(kind)
    with pytest.raises(LedgerError, match=f"folder .*{kind} cannot be read: Too many levels"):
        audit_folder(tmp_path)


def test_parts_are_bounded_and_positions_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq_benchmarks.figures.ledger.BATCH_ROWS", 10)
    monkeypatch.setattr("triomq_benchmarks.figures.ledger.PART_ROWS", 30)
    with open_ledger(folder_sink(tmp_path), worker=2, workers=3, groups=("g",)) as ledger:
        for number in range(100):
            ledger.consumed(number, f"T{number % 2}", "b", 0, number, 1 << 31, "g")
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in sorted((tmp_path / "consumed").iterdir())]
    assert [table.num_rows for table in tables] == [30, 30, 30, 10]
    assert [value for table in tables for value in table.column("position").to_pylist()] == list(range(100))
    row = tables[-1].slice(9, 1).to_pylist()[0]
    assert row == {
        "number": 99, "topic": "T1", "broker": "b", "queue_id": 0, "queue_offset": 99, "crc": 1 << 31, "worker": 2,
        "position": 99, "group": "g",
    }  # fmt: skip


def test_flush_writes_what_there_is(tmp_path: Path) -> None:
    ledger_sink = folder_sink(tmp_path)
    with open_ledger(ledger_sink, worker=0, workers=1, groups=()) as ledger:
        ledger.acknowledged(1, "T", "b", 0, 0, 7)
        ledger.flush()
        ledger.acknowledged(2, "T", "b", 0, 1, 7)
    assert find_ledger(tmp_path).rows == 2
    assert len(find_ledger(tmp_path).acknowledged) == 2


def test_a_full_disk_raises_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def full(name: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    def write() -> None:
        with open_ledger(full, worker=4, workers=5, groups=()) as ledger:
            ledger.acknowledged(1, "T", "b", 0, 0, 7)

    with pytest.raises(LedgerError, match=r"worker 4 could not be written.*No space left"):
        write()
    assert caplog.text == "", "the error says it all, without a traceback"


def test_a_repetition_is_no_disorder_and_owners_count_for_themselves() -> None:
    again = [(0, 5, 15), (0, 6, 16), (0, 7, 17), (0, 6, 16), (0, 7, 17), (0, 8, 18)]
    # The new owner begins before the offset that the old one has reached.
    other_owner = [(1, 3, 13), (1, 4, 14), (1, 5, 15)]
    assert check_order([*again, *other_owner], "g", "T", "b", 0).counts[Defect.REORDERED] == 0
    late = check_order([(0, 0, 10), (0, 2, 12), (0, 1, 11)], "g", "T", "b", 0)
    assert [one.number for one in late.examples[Defect.REORDERED]] == [11]


def test_findings_are_encoded_and_decoded() -> None:
    findings = check_messages([(5, "T", "b", 0, 0, 1)], [], ["g"]) + Findings(notes=("so",))
    assert Findings.decode(findings.encode()) == findings
    assert findings.as_dict()["counts"] == {
        "lost": 1, "duplicated": 0, "reordered": 0, "corrupt": 0, "unexpected": 0,
    }  # fmt: skip


def test_the_command_audits_a_ledger_again(tmp_path: Path) -> None:
    write_ledger(tmp_path, frozenset({Defect.LOST}))
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "triomq", "bench", "audit", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert "acknowledged, never consumed" in done.stdout
    assert json.loads((tmp_path / "audit.json").read_text())["counts"]["lost"] == 1
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    done = subprocess.run([*command[:-1], str(nothing)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.startswith(f"Error: {nothing} holds no ledger")) == (1, True)
