"""Offsets as users write them and checkpoints keep them."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.errors import BadOption
from pyspark_rocketmq.offsets import (
    EARLIEST,
    LATEST,
    QueueId,
    offsets_of,
    parse_assignment,
    parse_offsets,
    parse_times,
    tree_of,
)

OFFSETS = {QueueId("T", "broker-a", 0): 123, QueueId("T", "broker-a", 1): 7, QueueId("U", "broker-b", 12): 0}


def test_the_form_is_that_of_the_older_connector() -> None:
    assert json.dumps(tree_of(OFFSETS)) == '{"T": {"broker-a": {"0": 123, "1": 7}}, "U": {"broker-b": {"12": 0}}}'
    assert offsets_of(json.loads(json.dumps(tree_of(OFFSETS)))) == OFFSETS


def test_equal_offsets_are_equal_as_text_whatever_their_order() -> None:
    backwards = dict(reversed(OFFSETS.items()))
    assert json.dumps(tree_of(backwards)) == json.dumps(tree_of(OFFSETS))


def test_words_are_numbers_in_json() -> None:
    parsed = parse_offsets("startingOffsets", '{"T": {"broker-a": {"0": 123, "1": -1, "2": -2}}}')
    assert list(parsed.values()) == [123, LATEST, EARLIEST]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "neither a known value nor JSON"),
        ("newest", "neither a known value nor JSON"),
        ("[]", "the whole is []"),
        ("{}", "names no queue"),
        ('{"T": 5}', "topic 'T' is 5"),
        ('{"T": {"broker-a": 5}}', "broker 'broker-a' of topic 'T' is 5"),
        ('{"T": {"broker-a": {"x": 5}}}', "queue id 'x'"),
        ('{"T": {"broker-a": {"0": "5"}}}', "queue '0' of broker 'broker-a' of topic 'T' is \"5\""),
        ('{"T": {"broker-a": {"0": true}}}', "is true"),
        ('{"T": {"broker-a": {"0": -3}}}', "is -3"),
        ('{"T": {"broker-a": {"0": 9223372036854775808}}}', "is 9223372036854775808, and must be a whole number"),
        ('{"T": {"broker-a": {"\u0663": 5}}}', "queue id '\u0663' is not a number"),
        ('{"T": {"broker-a": {"0": 5, "00": 6}}}', "queue id '00' is not a number"),
        ('{"T": {"broker-a": {"%s": 5}}}' % ("9" * 5000), "is not a number"),
        ('{"T": {"broker-a": {"0": 5, "1": 5, "0": 6}}}', "startingOffsets names '0' twice"),
        ('{"T": {"broker-a": {"0": 5}}, "T": {"broker-b": {"0": 5}}}', "startingOffsets names 'T' twice"),
    ],
)
def test_malformed_offsets_name_the_place_and_the_right_form(text: str, names: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_offsets("startingOffsets", text)
    assert names in str(caught.value)
    assert "startingOffsets" in str(caught.value)


def test_times_have_the_form_of_offsets() -> None:
    text = '{"T": {"broker-a": {"0": 123, "1": "1970-01-01T00:00:01Z", "2": "45"}}}'
    assert list(parse_times("startingOffsetsByTimestamp", text).values()) == [123, 1000, 45]
    for value, says in (
        ("-1", "is -1, which is not a time"),
        ("1.5", "is 1.5; the form is"),
        ("true", "is true; the form is"),
        ('"2026-11-22"', "which has no zone"),
    ):
        with pytest.raises(BadOption, match="the time of queue '0' of broker 'b' of topic 'T' ") as caught:
            parse_times("startingOffsetsByTimestamp", f'{{"T": {{"b": {{"0": {value}}}}}}}')
        assert says in str(caught.value)


def test_assignments() -> None:
    assert parse_assignment('{"T": {"broker-a": [0, 3]}}') == {QueueId("T", "broker-a", 0), QueueId("T", "broker-a", 3)}
    for text in (
        "x",
        "{}",
        '{"T": [0]}',
        '{"T": {"broker-a": 0}}',
        '{"T": {"broker-a": [-1]}}',
        '{"T": {"b": [true]}}',
    ):
        with pytest.raises(BadOption, match="assign"):
            parse_assignment(text)
