"""The option `tags`: what it selects, and what brokers are asked for."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceReader

from pyspark_rocketmq.filters import expression_for, tags_of
from pyspark_rocketmq.read.batch_reader import BatchReader


def test_the_tags_of_an_expression() -> None:
    assert tags_of("a || b") == {"a", "b"}
    assert tags_of("*") is None
    assert tags_of(None) is None


def test_the_brokers_expression() -> None:
    assert expression_for(frozenset({"b", "a"})) == "a || b"
    assert expression_for(None) is None
    for odd in ("a||b", " a", "*", ""):
        assert expression_for(frozenset({odd})) is None, "the broker has to send all, and the text is compared here"


def test_the_reader_takes_no_filters() -> None:
    # Spark recognizes readers that take none by this; it would use a filter's plan for queries without the filter.
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
