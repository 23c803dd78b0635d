"""Offsets that an operator sets: one beyond a queue's end is refused before anything is set."""

from __future__ import annotations

import re

import pytest

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.group_admin import ResetOffsetRequest

QUEUES = [triomq.MessageQueue("T", "broker-a", number) for number in range(2)]


@pytest.fixture
def two_messages(cluster):
    """In each queue, for a group without members."""
    cluster.broker.script(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda command: command.answer(206, "not online"))
    for number in range(2):
        for _ in range(2):
            cluster.broker.store("T", number, b"")


@pytest.mark.parametrize("offset", [0, 1, 2])
async def test_up_to_the_end(autojump_clock, cluster, two_messages, offset):
    async with cluster.client() as client:
        await client.groups.set_offsets("G", dict.fromkeys(QUEUES, offset))
    assert cluster.broker.offsets["G", "T", 0] == cluster.broker.offsets["G", "T", 1] == offset


async def test_a_broker_that_keeps_no_offsets_of_groups_it_does_not_know(autojump_clock, cluster, two_messages):
    """As those of RocketMQ 5 do."""
    cluster.broker.script(
        RequestCode.UPDATE_CONSUMER_OFFSET, lambda command: command.answer(26, "subscription group not exist")
    )
    async with cluster.client() as client:
        with pytest.raises(errors.GroupNotFound) as failure:
            await client.groups.set_offsets("G", {QUEUES[0]: 1})
    (note,) = failure.value.__notes__
    assert "`triomq groups G --create`" in note


async def test_a_reset_of_a_broker_of_5_does_not_count_before_them(autojump_clock, cluster, two_messages):
    """Until a member pulls, such a broker takes no offset, and answers with success."""
    seen = []

    def reset(command):
        header = command.header(ResetOffsetRequest)
        seen.append((header.topic, header.group, header.queue_id, header.offset))
        return command.answer(0)

    cluster.broker.script(
        RequestCode.UPDATE_CONSUMER_OFFSET, lambda command: command.answer(0, "Offset has been previously reset")
    )
    cluster.broker.script(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    async with cluster.client() as client:
        await client.groups.set_offsets("G", dict.fromkeys(QUEUES, 1))
    assert seen == [("T", "G", 0, 1)]
    assert cluster.broker.offsets == {("G", "T", 1): 1}


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (3, "queueId=1] ends at 2, before offset 3; nothing was set"),
        ((1 << 63) - 1, "ends at 2"),
        (1 << 63, "is 9223372036854775808, not a whole number from 0 to 9223372036854775807"),
        (-1, "queueId=1] is -1, not a whole number"),
        (True, "is True"),
        (1.5, "is 1.5"),
        (None, "is None"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
async def test_anything_else_sets_nothing(autojump_clock, cluster, two_messages, offset, words, force):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=re.escape(words)):
            await client.groups.set_offsets("G", {QUEUES[0]: 1, QUEUES[1]: offset}, force=force)
    assert not cluster.broker.offsets
