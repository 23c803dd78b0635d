"""Long answers to administrative requests are read in a worker thread; errors for too long ones have the remedy."""

from __future__ import annotations

import threading

import pytest

from triomq._admin.long_bodies import SHORT_BODY_BYTES, body_of
from triomq.errors import AnswerTooLong, ProtocolViolation
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import ConsumeStatsList, KVTable, MessageQueue
from triomq_protocol.requests.group_admin import ConsumeStats, OffsetWrapper
from triomq_protocol.wire.command import Command


def answer(body: bytes) -> Command:
    return Command.request(RequestCode.GET_BROKER_CONSUME_STATS).answer(body=body)


def progress_of(queues: int) -> bytes:
    """An answer to 317, whose maps have queues as keys."""
    table = {MessageQueue("T", "broker-a", n): OffsetWrapper(broker_offset=n) for n in range(queues)}
    return ConsumeStatsList(consume_stats_list=[{"G": [ConsumeStats(offset_table=table)]}]).encode()


@pytest.mark.parametrize(("queues", "elsewhere"), [(10, False), (2000, True)])
async def test_a_long_answer_is_read_in_a_worker_thread(monkeypatch, queues, elsewhere) -> None:
    readers = []
    decode = ConsumeStatsList.decode

    def noted(body):
        readers.append(threading.get_ident())
        return decode(body)

    monkeypatch.setattr(ConsumeStatsList, "decode", noted)
    body = progress_of(queues)
    assert (len(body) > SHORT_BODY_BYTES) is elsewhere
    found = await body_of(ConsumeStatsList, answer(body), "h:1")
    assert len(found.consume_stats_list[0]["G"][0].offset_table) == queues
    assert (readers != [threading.get_ident()]) is elsewhere


async def test_an_answer_that_is_too_long_names_the_cure() -> None:
    body = progress_of(45_000).replace(b'"brokerOffset"', b"'brokerOffset'")  # as no broker writes it
    with pytest.raises(AnswerTooLong) as caught:
        await body_of(ConsumeStatsList, answer(body), "h:1", "the progress of all groups")
    text = str(caught.value)
    assert f"the answer has {len(body):,} bytes, at most 4,194,304 are read of this form" in text
    assert "ask for less at once: for one group or one topic, not for all of them" in text


async def test_an_answer_of_the_wrong_kind_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        await body_of(KVTable, answer(b"[1]"), "h:1")
    assert not isinstance(caught.value, AnswerTooLong)
