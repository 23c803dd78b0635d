"""Queue locks: codes 41 and 42."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BODY_RULES, BodyClass

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)

BODIES: list[BodyClass] = [LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody]


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


QUEUES = [MessageQueue("T", "broker-a", 0), MessageQueue("%RETRY%g", "broker-b", 3)]


def test_the_answer_has_javas_name() -> None:
    body = LockBatchResponseBody(lock_ok_mq_set=QUEUES[:1])
    assert body.encode() == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'


@pytest.mark.parametrize("cls", [LockBatchRequestBody, UnlockBatchRequestBody])
@pytest.mark.parametrize(
    "text",
    [
        (
            '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"},'
            '{"brokerName":"broker-b","queueId":3,"topic":"%RETRY%g"}]}'
        ),
        (
            "{mqSet:[{topic:'T',brokerName:'broker-a',queueId:'0'},{TOPIC:'%RETRY%g',brokername:'broker-b',queueId:3.0},],"
            "clientId:'c',consumerGroup:'g'}"
        ),
        (
            '{"onlyThisBroker":false,"mqSet":[{"brokerName":"broker-a","topic":"T","x":[]},'
            '{"queueId":3,"topic":"%RETRY%g","brokerName":"broker-b"}],"clientId":"c","consumerGroup":"g"}'
        ),
    ],
)
def test_requests_of_other_clients(cls: type[LockBatchRequestBody], text: str) -> None:
    body = cls.decode(text.encode())
    assert (body.client_id, body.consumer_group, body.mq_set) == ("c", "g", QUEUES)


@pytest.mark.parametrize("queue", ["null", "5", "[]", '{"queueId":[]}', '{"queueId":"one"}', '"T"'])
def test_a_set_with_something_else_in_it_is_refused(queue: str) -> None:
    with pytest.raises(BodyError, match=r"mqSet|JSON"):
        LockBatchRequestBody.decode(f'{{"mqSet":[{queue}]}}'.encode())


def test_ten_thousand_queues_are_read() -> None:
    queues = [MessageQueue("T", "b", number) for number in range(10_000)]
    assert LockBatchRequestBody.decode(LockBatchRequestBody(mq_set=queues).encode()).mq_set == queues


def test_bodies_do_not_share_their_sets() -> None:
    LockBatchResponseBody().lock_ok_mq_set.append(QUEUES[0])
    LockBatchRequestBody.decode(b"{}").mq_set.append(QUEUES[0])
    assert LockBatchResponseBody().lock_ok_mq_set == LockBatchRequestBody.decode(b"{}").mq_set == []
