"""The text of errors that others raise."""

from __future__ import annotations

import pytest
import trio

from triomq._error_text import error_text, named_error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (trio.BrokenResourceError(), "BrokenResourceError"),
        (ValueError(""), "ValueError"),
    ],
)
def test_an_error_without_text_is_named_by_its_class(error: Exception, text: str) -> None:
    assert error_text(error) == text


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("x"), "ValueError: x"), (ValueError(), "ValueError: "), (UnreadableError(), "UnreadableError: ")],
)
def test_an_error_with_its_class(error: Exception, text: str) -> None:
    assert named_error(error) == text
