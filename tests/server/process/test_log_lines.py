"""Data from the network cannot start a log line of its own."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from triomq_server.process.log_lines import LineFormatter, escape_controls


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("triomq_server.test")
    logger.addHandler(handler)
    yield logger, out
    logger.removeHandler(handler)


@pytest.mark.parametrize("separator", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_line_break_from_outside_begins_no_line(lines: tuple[logging.Logger, io.StringIO], separator: str) -> None:
    logger, out = lines
    logger.warning("unknown key %s", f"x{separator}ERROR triomq_server.store: the disk is broken")
    assert len(out.getvalue().splitlines()) == 1
    assert out.getvalue().startswith("WARNING triomq_server.test: unknown key x\\")


def test_a_traceback_stays_readable_and_begins_no_line_like_a_record(
    lines: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, out = lines
    try:
        raise ValueError("bad\nERROR triomq_server.store: the disk is broken")
    except ValueError:
        logger.exception("failed")
    first, *rest = out.getvalue().splitlines()
    assert first == "ERROR triomq_server.test: failed"
    assert "    Traceback (most recent call last):" in rest
    assert all(line.startswith("    ") for line in rest)


def test_terminal_codes_and_lone_surrogates_are_escaped() -> None:
    assert escape_controls("a\x1b[31mb\ud800c") == r"a\x1b[31mb\ud800c"
    assert escape_controls("höhe 日本 😀") == "höhe 日本 😀"
