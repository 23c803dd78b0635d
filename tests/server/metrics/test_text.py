"""The text of metrics, read back by Prometheus' own parser."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from triomq_server.metrics.histogram import BOUNDS_S, Histogram
from triomq_server.metrics.text import ROWS_PER_LOOK, Family, TextWriter

LAG = Family("lag", "gauge", "How far behind.", ("group", "topic"))


def read(writer: TextWriter) -> dict[str, list[tuple[dict[str, str], float]]]:
    text = b"".join(writer.finish()).decode()
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain", "plain"),
        ("%RETRY%a-b", "%RETRY%a-b"),
        ('a"b', 'a"b'),
        ("a\nb", "a\nb"),
        ("a\\b\\", "a\\b\\"),
        ("a\r\x00\x1b[0m", "a\\x0d\\x00\\x1b[0m"),
        ("a\x85b\u2028c", "a\\x85b\\u2028c"),
        ("消息", "消息"),
        ("%s%d}", "%s%d}"),
        ("", ""),
    ],
)
def test_any_name_can_be_a_label(name: str, shown: str) -> None:
    writer = TextWriter()
    writer.few(LAG, [((name, "T"), 3), (("G", name), 4)])
    assert read(writer) == {"lag": [({"group": shown, "topic": "T"}, 3), ({"group": "G", "topic": shown}, 4)]}


def test_a_name_that_is_no_text_ends_no_scrape() -> None:
    """Go's parser, unlike Python's, refuses the whole text if a label has any other escape than these three."""
    writer = TextWriter()
    writer.few(LAG, [(("a\ud800\x00", 'b\n"\udfff'), 1)])
    (piece,) = writer.finish()
    assert set(re.findall(rb"\\.", piece)) <= {rb"\\", rb"\n", rb"\""}
    assert read(writer)["lag"] == [({"group": "a\\ud800\\x00", "topic": 'b\n"\\udfff'}, 1)]


def test_histograms_are_added() -> None:
    histogram = Histogram()
    for duration_s in (0.0, BOUNDS_S[0], 0.3, 99.0):
        histogram.observe(duration_s)
    writer = TextWriter()
    writer.histogram(Family("t_seconds", "histogram", "Time."), histogram)
    samples = read(writer)["t_seconds"]
    buckets = {labels["le"]: value for labels, value in samples if labels}
    assert (buckets["0.0001"], buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (2, 2, 3, 4)
    assert [value for labels, value in samples if not labels] == [histogram.total_s, 4] or len(samples) == 19


def test_others_have_their_turn_while_rows_are_written() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.0011
        return now

    writer = TextWriter(clock)
    rows = ((("G", str(number)), number) for number in range(10 * ROWS_PER_LOOK))
    assert sum(1 for _ in writer.rows(LAG, rows)) >= 4
    assert [value for _, value in read(writer)["lag"]] == list(range(10 * ROWS_PER_LOOK))
