"""Times and durations as users write them."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.times import duration_s_of, time_ms_of, time_text


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T16:43:20.007-05:30", 1_700_000_000_007),
        ("2023-11-14T22:13Z", 1_699_999_980_000),
        ("1970-01-01T00:00:00.0010005Z", 1),
        ("1970-01-01T00:00:00.001001Z", 2),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert time_ms_of(text) == time_ms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2023-11-14T22:13:20", "has no zone: append Z for UTC, or an offset like"),
        ("2023-11-14", "has no zone"),
        ("yesterday", "not a time; the form is milliseconds since 1970 .* or ISO 8601 with a zone"),
        ("2023-02-30T00:00:00Z", "not a time"),
        ("-5", "not a time"),
        ("1969-12-31T23:59:59.999Z", "before 1970"),
        ("1970-01-01T00:00:00+01:00", "before 1970"),
        ("1700000000000000000", "after the year 9999; times are in milliseconds"),
        ("9" * 5000, "after the year 9999"),
        ("9999-12-31T23:59:59-14:00", "after the year 9999"),
        ("9999-12-31T23:59:59.9999Z", "after the year 9999"),
    ],
)
def test_what_is_no_time(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        time_ms_of(text)


def test_a_time_in_an_error() -> None:
    assert time_text(1_700_000_000_007) == "2023-11-14T22:13:20.007Z (1700000000007)"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 H", 7200), ("1d", 86400), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s_of(text) == seconds


@pytest.mark.parametrize("text", ["15", "m", "-1s", "1.5h", "5 weeks", "1m30s", "9" * 5000 + "s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration; the form is .* like 30s or 15m"):
        duration_s_of(text)
