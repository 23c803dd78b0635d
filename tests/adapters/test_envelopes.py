"""Messages of Kombu as bytes, and names of queues as names of topics."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_adapters.envelopes import eta_ms, legal_name, pack, plain_text, routing_key, unpack


def message(body: str | bytes = "[1, 2]", **headers: object) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"delivery_info": {"exchange": "", "routing_key": "celery"}, "priority": 0},
    }


@pytest.mark.parametrize(
    ("body", "data"), [("[1, 2]", b"[1, 2]"), ("ä\n", "ä\n".encode()), (b"\x00\n\xff", b"\x00\n\xff"), (b"", b"")]
)
def test_a_message_comes_back_with_its_body_as_bytes(body: str | bytes, data: bytes) -> None:
    sent = message(body, id="1")
    found = unpack(pack(sent))
    assert found == {**sent, "body": data}
    assert routing_key(found) == "celery"
    assert sent["body"] == body  # not taken out of the caller's


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"[]\n", b"{}\nbody", b"\xff\n", b'{"headers": {}}\n', b'{"headers": 1, "properties": {}}\n',
        b'{"headers": {}, "properties": {"delivery_info": 5}}\n', b"[" * 100_000 + b"\n", b"{" * 50,
        *(
            b'{"headers": {"x": {"__type__": %b, "__value__": %b}}, "properties": {"delivery_info": {}}}\n' % value
            for value in ((b'"datetime"', b"5"), (b'"decimal"', b'"x"'), (b'"uuid"', b'{"a": 1}'), (b"[]", b"1"))
        ),
    ],
)  # fmt: skip
def test_what_is_no_message_of_kombu(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("celery", "celery"),
        ("a.b", "a%2Eb"),
        ("celery@host", "celery%40host"),
        ("%RETRY%g", "%25RETRY%25g"),
        ("ä", "%C3%A4"),
    ],
)
def test_names_of_queues_are_names_of_topics(name: str, topic: str) -> None:
    assert legal_name(name) == topic


@pytest.mark.parametrize(
    ("value", "text"), [("jobs.add", "jobs.add"), ("a||b", None), ("a b", None), ("", None), (None, None), (5, None)]
)
def test_what_can_be_a_tag(value: object, text: str | None) -> None:
    assert plain_text(value) == text


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        (None, None),
        ("2030-01-01T00:00:00+00:00", 1_893_456_000_000),
        ("2030-01-01T01:00:00.5+01:00", 1_893_456_000_500),
        ("2030-01-01T00:00:00", 1_893_456_000_000),
        ("tomorrow", None),
        (17, None),
    ],
)
def test_when_a_task_is_due(eta: object, due: int | None) -> None:
    assert eta_ms(message(eta=eta)) == due
