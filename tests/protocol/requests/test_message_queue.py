"""The queue of a topic on a broker, as a value and as a key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from request_rules import BODY_RULES, BodyClass, bodies

from triomq_protocol.requests import (
    MessageQueue,
)

BODIES: list[BodyClass] = [MessageQueue]


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


def reference_hash(text: str) -> int:
    code = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        code = code * 31 + unit & 0xFFFFFFFF
    return code


@settings(max_examples=50)
@given(bodies(MessageQueue))
def test_the_hash_code_is_javas(queue: MessageQueue) -> None:
    code = 31 + reference_hash(queue.broker_name)
    code = 31 * code + queue.queue_id
    code = 31 * code + reference_hash(queue.topic) & 0xFFFFFFFF
    assert queue.hash_code() == (code ^ 0x80000000) - 0x80000000


def test_a_queue_is_equal_by_all_three_members() -> None:
    queue = MessageQueue("T", "b", 1)
    others = [MessageQueue("U", "b", 1), MessageQueue("T", "c", 1), MessageQueue("T", "b", 2)]
    assert queue == MessageQueue.decode(b'{"queueId":1,"topic":"T","brokerName":"b"}')
    assert len({queue, MessageQueue("T", "b", 1), *others}) == 4
    assert queue not in others
    with pytest.raises(AttributeError):
        queue.queue_id = 5  # type: ignore[misc]


def test_queues_are_sorted_by_topic_broker_and_number() -> None:
    queues = [
        MessageQueue("A", "a", 10),
        MessageQueue("A", "b", 0),
        MessageQueue("B", "a", 0),
        MessageQueue("A", "a", 2),
    ]
    assert sorted(queues) == [queues[3], queues[0], queues[1], queues[2]]


def test_texts() -> None:
    queue = MessageQueue("T", "broker-a", 3)
    assert str(queue) == "MessageQueue [topic=T, brokerName=broker-a, queueId=3]"
    assert queue.encode() == b'{"brokerName":"broker-a","queueId":3,"topic":"T"}'
