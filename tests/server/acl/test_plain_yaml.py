"""The text of access control files that a broker writes."""

from __future__ import annotations

import pytest

from triomq_server.acl.plain_yaml import dump, load


@pytest.mark.parametrize(
    "text",
    [
        "7946784345e59310", "712491e19", "9e4698374", "1E5", "-4e28940", "+12e+7", "9712.e02", "7231.2062823e990",
        ".24e820", "-.478482", "+.5e7",
    ],
)  # fmt: skip
def test_what_java_reads_as_a_number_is_in_quotes(text: str) -> None:
    """SnakeYAML 1.30 makes a number of each: RocketMQ would have another secret."""
    written = dump({"secretKey": text})
    assert load(written) == {"secretKey": text}
    assert written == f"secretKey: '{text}'\n".encode()


@pytest.mark.parametrize("text", ["secretkey", "1a2b3c4d", "12e", "e12345", "1.2.3e4", "12e-", "3_0e1_0e"])
def test_other_texts_are_written_as_they_are(text: str) -> None:
    assert dump({"secretKey": text}) == f"secretKey: {text}\n".encode()


@pytest.mark.parametrize("value", ["1234567", "0x1234567", "1.5", "true", "null", "2020-01-01", "", " a", "a: b", "!a"])
def test_texts_that_need_quotes_come_back(value: str) -> None:
    assert load(dump({"a": [value, 1234567, 1.5, True, None]})) == {"a": [value, 1234567, 1.5, True, None]}
