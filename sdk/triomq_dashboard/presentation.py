"""The presentation of values in pages: numbers, times, bodies, charts, and the pages' templates."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from triomq_dashboard.history import Point
from triomq_protocol.names import RETRY_PREFIX

BODY_SHOWN_MAX: Final = 64 * 1024
"""The most bytes of a body that a page shows."""

CHART_WIDTH: Final = 600
CHART_HEIGHT: Final = 120


def number(value: float | None) -> str:
    """``12,345``; a dash if the value is not known."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def size(value: float | None) -> str:
    """``1.5 MiB``."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def moment(time_ms: int | None) -> str:
    """``2026-11-23 12:00:00.000`` UTC; a dash if there is none, or it is not a valid time."""
    if not time_ms or time_ms < 0:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return "–"


def text(value: object) -> str:
    """An untrusted name or text: control characters, including those that reverse text, become escapes."""
    return "".join(_visible(each) for each in str(value))


def _visible(letter: str) -> str:
    if letter in "\n\t" or letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_utf8 = codecs.getincrementaldecoder("utf-8")


@attrs.frozen
class BodyText:
    """A body as readable text.

    Attributes:
        text: the body as UTF-8; other bytes are escaped.
        is_text: whether all of it is UTF-8.
        size_bytes: the size of the whole body.
        cut: whether the end is missing.
    """

    text: str
    is_text: bool
    size_bytes: int
    cut: bool


def body_text(body: bytes, bytes_max: int = BODY_SHOWN_MAX) -> BodyText:
    """A body as readable text, or its beginning, which ends with a whole character."""
    shown = body[:bytes_max]
    cut = len(body) > len(shown)
    decoded, ignoring = (_utf8(errors).decode(shown, final=not cut) for errors in ("backslashreplace", "ignore"))
    return BodyText(text(decoded), ignoring == decoded, len(body), cut)


@attrs.frozen
class Chart:
    """A line over time.

    Attributes:
        line: the points of an SVG polyline.
        area: the same, closed at the bottom.
        highest: the figure at the top.
        latest: the newest figure.
        seconds: the time that it covers.
    """

    line: str
    area: str
    highest: float
    latest: float
    seconds: float


def chart(points: Sequence[Point]) -> Chart | None:
    """The chart of a series; None if it has fewer than two points."""
    if len(points) < 2:
        return None
    begin, span = points[0].at_s, points[-1].at_s - points[0].at_s
    highest = max(point.value for point in points)
    top = highest or 1.0
    places = [
        f"{(point.at_s - begin) / span * CHART_WIDTH:.1f},{CHART_HEIGHT - point.value / top * (CHART_HEIGHT - 6):.1f}"
        for point in points
    ]
    line = " ".join(places)
    return Chart(line, f"0,{CHART_HEIGHT} {line} {CHART_WIDTH},{CHART_HEIGHT}", highest, points[-1].value, span)


def link(path: str, **parameters: object) -> str:
    """An address within the dashboard, quoted: topic names may contain any character."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def make_environment() -> Environment:
    """Create the environment of the templates, in which everything is escaped."""
    environment = Environment(
        loader=PackageLoader("triomq_dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, size=size, moment=moment, visible=text)
    environment.tests["retry_topic"] = lambda name: name.startswith(RETRY_PREFIX)
    environment.globals["link"] = link
    return environment
