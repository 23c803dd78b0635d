"""Options that cannot be used are refused by an error that names the argument and the right form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import triomq
from triomq import plugins
from triomq._consumer.lite.options import LiteOptions
from triomq._consumer.push.options import PushOptions
from triomq._message.message import check_keys, check_offset, check_properties, check_tag
from triomq.errors import InvalidCall

WHOLE = "not a whole number of at least 1"
NONE_OR_SECONDS = "not a number of seconds from 0"


@pytest.mark.parametrize(
    ("kind", "name", "bad", "form"),
    [
        *[
            (triomq.FlowLimits, name, bad, WHOLE)
            for name in ("count", "size_bytes", "span", "topic_count", "topic_size_bytes")
            for bad in (0, -1, 1.5, "7")
        ],
        *[(triomq.PullOptions, "max_messages", bad, "not a whole number from 1 to 1024") for bad in (0, 1025, 2.5)],
        *[(triomq.PullOptions, "interval_s", bad, "seconds between 0 and 65.535") for bad in (-1, 66, "1")],
        *[(triomq.ConsumeRetries, "max_times", bad, "not a whole number of at least -1") for bad in (-2, 0.5, "3")],
        *[(triomq.ConsumeRetries, "suspend_s", bad, "seconds between 0.01 and 30.0") for bad in (0, 31, None)],
        *[(triomq.ConsumeRetries, "timeout_s", bad, "seconds between 0.001 and inf") for bad in (0, float("nan"))],
        *[(triomq.Backoff, name, bad, "seconds above 0") for name in ("first_s", "max_s") for bad in (0, -1, "1")],
        *[(triomq.Backoff, "factor", bad, "not a number of at least 1") for bad in (0.5, float("nan"), None)],
        *[(triomq.Backoff, "jitter", bad, "not a number from 0 to 1") for bad in (-0.1, 1.1, "x")],
        *[(plugins.Retries, "attempts", bad, WHOLE) for bad in (0, 1.5, None)],
        (triomq.FlowLimits, "count", 2**63, "not a whole number from 1 to 9223372036854775807"),
        *[(plugins.Retries, "reserve", bad, "not a number from 0 to 1") for bad in (-1, 2)],
        *[(plugins.Retries, name, -1, NONE_OR_SECONDS) for name in ("first_pause_s", "max_pause_s")],
        *[(PushOptions, "batch_max", bad, "not a whole number from 1 to 1024") for bad in (0, 2000)],
        (PushOptions, "drain_s", -1, "seconds between 0 and inf"),
        # In Python True is a 1, but callers who write it do not mean 1.
        (PushOptions, "batch_max", True, "not a whole number from 1 to 1024"),
        (PushOptions, "drain_s", True, "seconds between 0 and inf"),
        (triomq.Backoff, "first_s", True, "seconds above 0"),
        (plugins.Retries, "reserve", False, "not a number from 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_named(kind: type, name: str, bad: Any, form: str) -> None:
    with pytest.raises(InvalidCall) as caught:
        kind(**{name: bad})
    assert str(caught.value).startswith(f"{name} is {bad!r}, ")
    assert form in str(caught.value)


@pytest.mark.parametrize("name", ["batch_max", "held_max"])
def test_numbers_of_lite_pull_consumers(name: str) -> None:
    with pytest.raises(InvalidCall, match=f"{name} is 0, {WHOLE}"):
        LiteOptions(**{"auto_commit": True, "batch_max": 1, "held_max": 1, name: 0})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("x" * 40_000, "batch_max is 'xxxx", id="text"),
        pytest.param(10**5_000, "batch_max is a value of type int that has no text, not a whole number", id="int"),
    ],
)
def test_a_long_value_is_not_repeated_whole(value: Any, text: str) -> None:
    """Python refuses to turn an int of more than 4,300 digits into text: that was raised instead."""
    with pytest.raises(InvalidCall) as caught:
        PushOptions(batch_max=value)
    assert str(caught.value).startswith(text)
    assert str(caught.value).endswith("not a whole number from 1 to 1024")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (check_keys, " " * 40_000),
        (check_keys, "a b " * 10_000),
        (check_keys, ["a b " * 10_000]),
        (check_keys, ["a\n" * 10_000]),
        (check_tag, " " * 40_000),
        (check_tag, "a || b " * 10_000),
        (check_tag, " " * 40_000 + "a"),
        (check_properties, {"a" * 40_000: ""}),
        (check_properties, {"a": "\x01" * 40_000}),
        pytest.param(check_offset, 10**5_000, id="offset"),
    ],
)
def test_long_texts_of_messages_are_not_repeated_whole(check: Callable[[Any], None], value: Any) -> None:
    with pytest.raises(InvalidCall) as caught:
        check(value)
    assert len(str(caught.value)) < 1000
