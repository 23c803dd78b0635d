"""A message's way through its retries to the dead letters, as a consumer sees it (docs/protocol/messages.md §10,
docs/protocol/broker-api.md §9)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.view import RecordView, iter_records
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.wire.command import Command

LEVELS_S = range(1, 19)
RETRIES, DEAD = "%RETRY%CG", "%DLQ%CG"


async def records(peer: Any, topic: str, offset: int = 0, queue_id: int = 0) -> list[RecordView]:
    answer = await peer.pull(topic, offset, queue_id=queue_id)
    return list(iter_records(answer.body)) if answer.code == 0 else []


async def give_back(peer: Any, record: RecordView, *, version: int = 407, **fields: object) -> Command:
    values = {"offset": record.physical_offset, "group": "CG", "delayLevel": 0, **fields}
    texts = {name: str(value) for name, value in values.items()}
    return await peer.ask(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields=texts, version=version))  # type: ignore[no-any-return]


async def configure(peer: Any, **settings: Any) -> None:
    body = SubscriptionGroupConfig(group_name="CG", **settings).encode()
    assert (await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))).code == 0


async def test_sixteen_retries_and_then_no_more(open_broker: Any) -> None:
    levels = " ".join(f"{delay}s" for delay in LEVELS_S)
    async with open_broker(messageDelayLevel=levels) as broker:
        peer = await broker.peer()
        sent = await peer.put()
        (record,) = await records(peer, "T1")
        for times in range(16):
            assert record.reconsume_times == times
            await peer.ask(peer.heartbeat(topic=RETRIES))
            assert (await give_back(peer, record)).code == 0
            await trio.sleep(LEVELS_S[2 + times] - 0.5)
            assert await records(peer, RETRIES, times) == []
            await trio.sleep(0.6)
            (record,) = await records(peer, RETRIES, times)
            assert record.properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
            assert record.properties["RETRY_TOPIC"] == "T1"
            assert (record.topic, record.body) == (RETRIES, b"hello")
        assert record.reconsume_times == 16
        assert (await give_back(peer, record)).code == 0
        (letter,) = await records(peer, DEAD)
        await trio.sleep(20)
        assert await records(peer, RETRIES, 16) == []
    assert (letter.reconsume_times, letter.body, letter.properties["DELAY"]) == (17, b"hello", "0")


@pytest.mark.parametrize(
    ("version", "asked", "dead"),
    [(407, 1, True), (120, 1, False), (407, 3, False), (407, None, False), (407, -1, True)],
)
async def test_whose_limit_counts(open_broker: Any, version: int, asked: int | None, dead: bool) -> None:
    """The group's limit is 2; the client may set another one from 3.4.9 (version 121) on."""
    async with open_broker() as broker:
        peer = await broker.peer()
        await configure(peer, retry_max_times=2)
        await peer.put(reconsume_times=1)
        (record,) = await records(peer, "T1")
        limit = {} if asked is None else {"maxReconsumeTimes": asked}
        assert (await give_back(peer, record, version=version, **limit)).code == 0
        assert len(await records(peer, DEAD)) == dead
        await trio.sleep(31)
        assert len(await records(peer, RETRIES)) == (not dead)


@pytest.mark.parametrize(("times", "dead"), [(2**31 - 1, True), (2**31 - 2, False)])
async def test_the_largest_numbers_of_retries(open_broker: Any, times: int, dead: bool) -> None:
    """A producer sets the number of its message, and a record has 32 bits for it."""
    async with open_broker(messageDelayLevel="1s") as broker:
        peer = await broker.peer()
        await peer.put(reconsume_times=times)
        (record,) = await records(peer, "T1")
        assert (await give_back(peer, record, maxReconsumeTimes=2**31 - 1)).code == 0
        await trio.sleep(1.5)
        (again,) = await records(peer, DEAD if dead else RETRIES)
        assert again.reconsume_times == 2**31 - 1


async def test_retry_queues(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await configure(peer, retry_queue_nums=3)
        await peer.put()
        (record,) = await records(peer, "T1")
        for _ in range(30):
            await give_back(peer, record, delayLevel=1)
        await trio.sleep(2)
        counts = [len(await records(peer, RETRIES, queue_id=queue)) for queue in range(3)]
        assert sum(counts) == 30
        assert min(counts) > 3
        await configure(peer, retry_queue_nums=0)
        assert (await give_back(peer, record, delayLevel=1)).code == 0
        await trio.sleep(2)
        assert sum([len(await records(peer, RETRIES, queue_id=queue)) for queue in range(3)]) == 30


@pytest.mark.parametrize(("times", "limit", "dead"), [(3, 3, True), (2, 3, False), (16, None, True), (15, None, False)])
async def test_what_a_consumer_sends_again_itself(open_broker: Any, times: int, limit: int | None, dead: bool) -> None:
    """Where giving back failed, consumers send to the retry topic: the counters are in the header."""
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.ask(peer.heartbeat())
        answer = await peer.put(
            RETRIES, reconsume_times=times, max_reconsume_times=limit, properties="RETRY_TOPIC\x01T1\x02DELAY\x011"
        )
        assert (answer.code, answer.fields["queueId"]) == (0, "0")
        await trio.sleep(1.5)
        (record,) = await records(peer, DEAD if dead else RETRIES)
        assert await records(peer, RETRIES if dead else DEAD) == []
    assert record.reconsume_times == times
    assert record.properties["DELAY"] == ("0" if dead else "1")


async def test_a_message_given_back_twice_is_delivered_twice(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        (record,) = await records(peer, "T1")
        for _ in range(2):
            await give_back(peer, record, delayLevel=1)
        await trio.sleep(1.5)
        assert [again.reconsume_times for again in await records(peer, RETRIES)] == [1, 1]


async def test_operators_see_how_far_the_levels_are(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        for level in (1, 1, 3):
            await peer.put(properties=f"DELAY\x01{level}")
        await trio.sleep(2)
        answer = await peer.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert b'"scheduleMessageOffset_1":"2,2"' in answer.body
        await trio.sleep(10)
        answer = await peer.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert b'"scheduleMessageOffset_3":"1,1"' in answer.body
        fields = {"statsName": "QUEUE_PUT_NUMS", "statsKey": "SCHEDULE_TOPIC_XXXX@0"}
        answer = await peer.ask(Command.request(RequestCode.VIEW_BROKER_STATS_DATA, fields=fields))
        assert answer.code == 0
