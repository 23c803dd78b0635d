"""The rows of the quickstart that come out of a file."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from triomq_benchmarks.workload.flights import NoDataError, data_set

TEXT = b"\n".join(b"%x" % random.Random(7).getrandbits(64 + number) for number in range(5000))
PACKED = gzip.compress(TEXT)


def rows_of(path: Path) -> list[bytes]:
    return [row.body for batch in data_set(str(path), None).open() for row in batch]


def test_lines_of_a_compressed_file(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(PACKED)
    assert rows_of(tmp_path / "a.gz") == TEXT.split(b"\n")


@pytest.mark.parametrize(
    "content",
    [PACKED[: len(PACKED) // 2], PACKED[:2000] + bytes(500) + PACKED[2500:], PACKED[:-8] + bytes(8), b"text\n"],
    ids=["end is missing", "middle is damaged", "checksum is wrong", "not compressed"],
)
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    """Each of them has another class of error in Python, and click takes an EOFError for an interrupt."""
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(NoDataError, match=r"a.gz cannot be read to its end: .+; give another --input"):
        rows_of(tmp_path / "a.gz")


def test_a_number_of_rows_may_be_larger_than_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"row\n")
    for source in (str(tmp_path / "a.txt"), None):
        batch = next(iter(data_set(source, 10**20).open()))
        assert batch[0].body


def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(NoDataError, match="standard input is closed; give --input a text file"):
        data_set("-", None)
