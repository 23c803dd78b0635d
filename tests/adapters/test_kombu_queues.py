"""What the queues of Kombu send again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import triomq
from triomq_adapters.delays import DUE_PROPERTY
from triomq_adapters.kombu_queues import Sender

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("due", "level"), [(None, 0), ("soon", 0), ("²", 0), ("1" * 5000, 0), (str(NOW), 0), (str(NOW + 60_000), 5)]
)
def test_a_message_with_any_time_is_sent_again(due: str | None, level: int) -> None:
    """Any client can send to the topic of a queue."""
    sent: list[triomq.Message] = []
    producer: Any = SimpleNamespace(send=sent.append)
    properties = {} if due is None else {DUE_PROPERTY: due}
    received: Any = SimpleNamespace(body=b"b", tags="t", keys=["k"], properties=properties)
    Sender(producer, lambda: NOW).send_on("T", received)
    assert [(each.body, each.tags, each.keys, each.delay_level) for each in sent] == [(b"b", "t", "k", level)]
