"""The presentation of values in pages."""

from __future__ import annotations

import pytest

from triomq_dashboard.history import Point
from triomq_dashboard.presentation import (
    BODY_SHOWN_MAX,
    body_text,
    chart,
    link,
    make_environment,
    moment,
    number,
    size,
    text,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (1234567, "1,234,567"), (0.25, "0.2"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_number(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (2**50, "1,024.0 TiB")]
)
def test_size(value, shown):
    assert size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "–"), (-1, "–"), (2**63 - 1, "–"), (1_700_000_000_123, "2023-11-14 22:13:20.123")],
)
def test_moment(value, shown):
    assert moment(value) == shown


def test_texts_show_what_would_hide_something():
    assert text("a\x00\x1b[31m\u202eb\u2028c\td") == "a\\x00\\x1b[31m\\u202eb\\u2028c\td"


def test_bodies():
    assert body_text("grün".encode()).is_text
    assert body_text(b"\xff\x00").text == "\\xff\\x00"
    assert not body_text(b"\xff\x00").is_text
    for most in range(2, 7):  # characters of two and of four bytes, cut anywhere
        begun = body_text("ü😀x".encode(), most)
        assert (begun.is_text, begun.cut, begun.text) == (True, True, "ü😀" if most == 6 else "ü")
    broken = body_text(b"x\xc3", 2)  # not cut: nothing follows
    assert (broken.is_text, broken.text) == (False, "x\\xc3")
    large = body_text(b"x" * (BODY_SHOWN_MAX + 1))
    assert (large.cut, len(large.text), large.size_bytes) == (True, BODY_SHOWN_MAX, BODY_SHOWN_MAX + 1)


def test_charts():
    assert chart([Point(0, 1)]) is None
    drawn = chart([Point(0, 0), Point(5, 10), Point(10, 5)])
    assert drawn is not None
    assert drawn.line == "0.0,120.0 300.0,6.0 600.0,63.0"
    assert (drawn.highest, drawn.latest, drawn.seconds) == (10, 5, 10)
    flat = chart([Point(0, 0), Point(5, 0)])
    assert flat is not None
    assert flat.line == "0.0,120.0 600.0,120.0"


def test_addresses_of_names_with_any_character():
    assert link("/topic", name="%RETRY%a&b=<c>") == "/topic?name=%25RETRY%25a%26b%3D%3Cc%3E"
    assert link("/topic", name="") == "/topic"


def test_templates_escape():
    page = make_environment().from_string("{{ name|visible }}{{ name }}").render(name="<script>&'\"")
    assert page == "&lt;script&gt;&amp;&#39;&#34;" * 2
