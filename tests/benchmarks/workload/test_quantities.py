"""Durations, sizes, rates, shares: accepted and refused texts, and the errors."""

from __future__ import annotations

import pytest

from triomq_benchmarks.workload.quantities import QuantityError, duration_s, rate_per_s, share, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("20 s", 20), ("500ms", 0.5), ("2 min", 120), ("1.5 h", 5400), ("250 µs", 0.00025)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"), [("1 KiB", 1024), ("1 kB", 1000), ("64 MiB", 64 << 20), ("100 bytes", 100), ("0.5 KiB", 512)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5000/s", 5000),
        ("5 k/s", 5000),
        ("5_000 / s", 5000),
        ("60/min", 1),
        (7, 7),
        (1e16, 1e16),
        ("1,500/s", 1500),
        ("1,234,500.5/s", 1234500.5),
    ],
)
def test_rates(text: object, rate: float) -> None:
    assert rate_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "part"), [("25 %", 0.25), (0.5, 0.5), ("0.1", 0.1), (1, 1), (0.00001, 0.00001), (1e-7, 1e-7)]
)
def test_shares(text: object, part: float) -> None:
    assert share(text) == pytest.approx(part)


@pytest.mark.parametrize(
    ("read", "value", "says"),
    [
        (duration_s, 20, "without its unit"),
        (duration_s, "20 parsecs", "'parsecs' is not a unit"),
        (duration_s, "soon", "is not a duration"),
        (duration_s, True, "is not a duration"),
        (size_bytes, "0.3 bytes", "not a whole number"),
        (size_bytes, 1024, "without its unit"),
        (rate_per_s, "5 MiB", "not a unit of a rate"),
        (share, "150 %", "more than the whole"),
        (duration_s, "-1 s", "is not a duration"),
        (duration_s, "1,5 s", "'1,5 s' is not a duration; write it like \"20 s\", with a point instead of a comma"),
        (share, "2,5%", "with a point instead of a comma"),
        (rate_per_s, "12,34/s", "with a point instead of a comma"),
        (rate_per_s, "1.5.5/s", "is not a rate"),
        (rate_per_s, -5, "-5 is not a rate"),
        (rate_per_s, float("nan"), "not finite is not a rate"),
        pytest.param(rate_per_s, 1 << 20_000, "not finite is not a rate", id="huge rate"),
        pytest.param(share, 1 << 20_000, "not finite is not a share", id="huge share"),
    ],
)
def test_what_is_refused(read: object, value: object, says: str) -> None:
    with pytest.raises(QuantityError, match=says):
        read(value)  # type: ignore[operator]
