"""What of an error reaches Spark."""

from __future__ import annotations

import logging
import traceback

import pytest

pytest.importorskip("pyspark")

from pyspark_rocketmq.errors import DataLoss, ShortStack, SourceError, WriteFailed
from triomq import MQError
from triomq.errors import RequestTimeout


def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


@pytest.mark.parametrize("error", [DataLoss("offsets are gone"), WriteFailed("not acknowledged"), MQError("pull")])
def test_an_error_that_says_its_reason_comes_without_the_stack(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(type(error)) as caught, ShortStack():
        fail(error, RequestTimeout("asked"))
    assert caught.value is error
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" not in shown
    assert "asked" not in shown
    assert str(error) in shown.splitlines()[-1]
    assert "in fail" in caplog.text, "the logger has all of it"
    assert "asked" in caplog.text


def test_an_error_that_nobody_expects_keeps_its_stack() -> None:
    with pytest.raises(KeyError) as caught, ShortStack():
        fail(KeyError("a defect"), SourceError("cause"))
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" in shown
    assert "cause" in shown


def test_a_block_that_succeeds() -> None:
    with ShortStack():
        pass
