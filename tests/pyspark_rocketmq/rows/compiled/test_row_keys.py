"""The compiled keys of rows against those of Python: the same for the same rows."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.rows import compiled
from pyspark_rocketmq.rows.row_keys import RowKeys

pytestmark = pytest.mark.skipif(not compiled.BUILT, reason="no compiled module in this installation")


def both(batches: list[pa.LargeBinaryArray]) -> tuple[list[str], list[str]]:
    """The keys of a task's rows, by Python and by the compiled module."""
    made = []
    for used in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "USED", used)
            keys = RowKeys("job/é/0")
            columns = [keys.of(batch) for batch in batches]
        for column in columns:
            column.validate(full=True)
        made.append([key for column in columns for key in column.to_pylist()])
    return made[0], made[1]


def column(contents: list[bytes]) -> pa.LargeBinaryArray:
    return pa.array(contents, pa.large_binary())


@given(st.lists(st.lists(st.sampled_from([b"", b"a", b"ab", b"b" * 127]) | st.binary(max_size=400), max_size=9)))
def test_the_same_keys(batches: list[list[bytes]]) -> None:
    python, compiled_ones = both([column(contents) for contents in batches])
    assert compiled_ones == python


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 255, 256, 257, 383, 384, 385, 1000])
def test_lengths_about_those_of_blocks(size: int) -> None:
    python, compiled_ones = both([column([random.Random(size).randbytes(size)])])
    assert compiled_ones == python


def test_many_rows_and_many_repeats() -> None:
    chance = random.Random(1)
    contents = [b"%d" % chance.randrange(9000) for _ in range(30_000)] + [b"again"] * 1200
    python, compiled_ones = both([column(contents[:7]), column(contents[7:])])
    assert compiled_ones == python
    assert len(set(python)) == len(contents)
    assert python[-1].endswith(".1200")


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100])
def test_the_same_keys_one_by_one_and_side_by_side(rows: int) -> None:
    chance = random.Random(rows)
    contents = column([chance.randbytes(chance.choice((0, 5, 128, 129, 300, 2000))) for _ in range(rows)])
    ends = np.frombuffer(contents.buffers()[1], np.int64)
    one_by_one = compiled.row_keys.Keys(b"job/")
    one_by_one.wide = False
    made = one_by_one.of(contents.buffers()[2] or b"", ends.data)
    assert made == compiled.row_keys.Keys(b"job/").of(contents.buffers()[2] or b"", ends.data)


def test_a_part_of_a_column() -> None:
    whole = column([b"%d" % number for number in range(100)])
    python, compiled_ones = both([whole[10:20], whole[:0], whole[90:]])
    assert compiled_ones == python


@pytest.mark.parametrize("ends", [[0, 5], [-1, 2], [3, 2], [0, 1, 9], []])
def test_rows_that_do_not_lie_in_the_buffer(ends: list[int]) -> None:
    with pytest.raises(ValueError, match=r"does not lie in the buffer|no first row"):
        compiled.row_keys.Keys(b"").of(b"abcd", np.array(ends, np.int64).data)
