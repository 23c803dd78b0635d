"""The examples of the how-to, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from source_topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"


def test_how_to(spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("orders", "orders-report"):
        topics.new(name=name)
    topics.send("orders", [b"a book", b"a lamp"], tags="eu")
    topics.send("orders", [b"a chair"], tags="jp")
    source = "\n".join(re.findall(r"```py\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    names = {"spark": spark, "checkpoint": str(tmp_path / "checkpoint")}
    exec(compile(source.replace("127.0.0.1:9876", topics.name_servers), PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "a book" in printed
    assert [line for line in printed.splitlines() if line.isdigit()] == ["3", "2", "2"]
