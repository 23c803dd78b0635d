"""What the queues of Kombu send again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest

import triomq
from triomq_adapters.delays import DUE_PROPERTY
from triomq_adapters.kombu_queues import ExchangeReader, Sender, WorkQueue

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


class Refused:
    """A consumer that cannot subscribe, and whether it is in its group."""

    is_member = False

    def __enter__(self) -> Self:
        self.is_member = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_member = False

    def subscribe(self, _topic: str) -> None:
        raise triomq.errors.NoNameServer("no name server answers")


@pytest.mark.parametrize("kind", ["work", "exchange"])
def test_a_consumer_that_cannot_subscribe_leaves_its_group(kind: str) -> None:
    """Or the next attempt would find the client in the group already."""
    consumer: Any = Refused()
    client: Any = SimpleNamespace(push_consumer=lambda *_, **__: consumer)
    sender: Any = None
    make: dict[str, Callable[[], object]] = {
        "work": lambda: WorkQueue(consumer, "T", sender),
        "exchange": lambda: ExchangeReader(client, "T", replies=False, clock=lambda: NOW),
    }
    with pytest.raises(triomq.errors.NoNameServer):
        make[kind]()
    assert not consumer.is_member
