"""An offset outside a slave's queue: no busy loop, an event reports it, and consumption continues in time."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq._consumer.group.pull_loop import EMPTY_PAUSE_MAX_S, EMPTY_REPORTED_FROM
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.pull import PullMessageRequest

QUEUE = triomq.MessageQueue("T", "broker-a", 0)
PULL = RequestCode.PULL_MESSAGE


def fill(cluster, count, first=0):
    for number in range(first, first + count):
        cluster.broker.store("T", 0, b"%d" % number)


def limit_pulls(node, most=500):
    """A reader that spins would never let the virtual clock go on."""
    pull = node.pull

    def counted(command):
        assert pulls(node) < most, f"more than {most} pulls"
        return pull(command)

    node.pull = counted


def add_slave_behind(cluster, missing):
    """A slave that lacks the last messages."""
    slave = cluster.add_slave()
    slave.consumers.serves_groups = cluster.broker.consumers.serves_groups
    slave.offsets = cluster.broker.offsets
    slave.fall_behind(missing)
    limit_pulls(slave)
    return slave


def pulls(node):
    return len(node.requests(PULL))


async def next_body(consumer):
    message = await anext(consumer)
    return message.message.body if isinstance(message, triomq.Delivery) else message.body


@pytest.fixture(params=["push", "lite"])
def kind(request):
    return request.param


@pytest.mark.parametrize("preference", ["suggested", "prefer_slave", "slave"])
async def test_the_master_is_gone(autojump_clock, group_cluster, open_consumer, events, kind, preference):
    """It had acknowledged, and its group had consumed, what the slave never got."""
    fill(group_cluster, 10)
    slave = add_slave_behind(group_cluster, 2)
    group_cluster.broker.offsets["G", "T", 0] = 10
    async with open_consumer(kind, read_preference=preference) as consumer:
        await trio.sleep(5)
        await group_cluster.broker.stop()
        before = pulls(slave)
        await trio.sleep(300)
        # Beside it there are the queue 1 and the retry topic's, whose pulls the slave holds.
        assert EMPTY_REPORTED_FROM < pulls(slave) - before < 300 / EMPTY_PAUSE_MAX_S + 2 * 300 / 15 + 30
        assert events.kinds() == ["offset_unavailable"]
        assert events[0].queue == QUEUE
        assert "T" in events[0].text
        assert "waits at offset 10" in events[0].text
        assert "has 0 to 8" in events[0].text
        # The slave gets them after all: from a master that is back, or as a master of new ones.
        for number in range(8, 11):
            slave.store("T", 0, b"again %d" % number)
        with trio.fail_after(2 * EMPTY_PAUSE_MAX_S):
            assert await next_body(consumer) == b"again 10"
        assert events.kinds() == ["offset_unavailable"]


async def test_a_slave_alone_may_be_read(autojump_clock, group_cluster, open_consumer, events, kind):
    fill(group_cluster, 10)
    slave = add_slave_behind(group_cluster, 2)
    group_cluster.broker.offsets["G", "T", 0] = 10
    async with open_consumer(kind, read_preference="slave"):
        await trio.sleep(60)
        assert events.kinds() == ["offset_unavailable"]
        assert pulls(slave) < 60 / EMPTY_PAUSE_MAX_S + 30
    assert pulls(group_cluster.broker) == 0


@pytest.mark.parametrize("preference", ["suggested", "prefer_slave"])
async def test_the_master_has_what_its_slave_lacks(
    autojump_clock, group_cluster, open_consumer, events, kind, preference
):
    fill(group_cluster, 10)
    slave = add_slave_behind(group_cluster, 4)
    group_cluster.broker.suggests = slave.suggests = 1
    group_cluster.broker.offsets["G", "T", 0] = 8
    async with open_consumer(kind, read_preference=preference) as consumer:
        with trio.fail_after(5):
            assert [await next_body(consumer), await next_body(consumer)] == [b"8", b"9"]
        await trio.sleep(60)
        assert events == []
        assert pulls(slave) < 30


async def test_a_slave_that_lags_for_a_moment_is_no_event(autojump_clock, group_cluster, open_consumer, events):
    fill(group_cluster, 10)
    slave = add_slave_behind(group_cluster, 2)
    group_cluster.broker.offsets["G", "T", 0] = 9
    async with open_consumer("push", read_preference="slave") as consumer:
        await trio.sleep(0.1)
        assert pulls(slave)
        slave.queues = group_cluster.broker.queues
        with trio.fail_after(1):
            assert await next_body(consumer) == b"9"
    assert events == []


async def test_an_offset_before_a_slave_s_first(autojump_clock, group_cluster, open_consumer, events, kind):
    fill(group_cluster, 10)
    slave = add_slave_behind(group_cluster, 2)
    slave.min_offsets["T", 0] = 5
    group_cluster.broker.offsets["G", "T", 0] = 3
    async with open_consumer(kind, read_preference="slave"):
        await trio.sleep(60)
        assert pulls(slave) < 60 / EMPTY_PAUSE_MAX_S + 30
    assert events.kinds() == ["offset_unavailable"]


async def test_a_broker_that_does_not_hold_pulls(autojump_clock, group_cluster, open_consumer, kind, caplog):
    """It may hold too many already."""
    fill(group_cluster, 1)
    group_cluster.broker.consumers.hold = group_cluster.broker.consumers.look
    limit_pulls(group_cluster.broker)
    async with open_consumer(kind) as consumer:
        assert await next_body(consumer) == b"0"
        before = pulls(group_cluster.broker)
        await trio.sleep(60)
        # Two queues, and the retry topic's.
        assert pulls(group_cluster.broker) - before < 3 * (60 / EMPTY_PAUSE_MAX_S + 10)
        fill(group_cluster, 1, first=1)
        with trio.fail_after(2 * EMPTY_PAUSE_MAX_S):
            assert await next_body(consumer) == b"1"
    assert "broker-a-0:10911 holds no pulls of" in caplog.text


# --- the pull consumer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("preference", ["suggested", "prefer_slave", "slave"])
async def test_a_pull_consumer_s_loop_ends(autojump_clock, cluster, events, preference):
    fill(cluster, 10)
    slave = add_slave_behind(cluster, 2)
    async with cluster.client() as client:
        await client.pull_consumer("other").fetch_queues("T")
        await cluster.broker.stop()
        consumer = client.pull_consumer("G", read_preference=preference, on_event=events.append)
        with trio.fail_after(5):
            for _ in range(2):
                result = await consumer.pull(QUEUE, 10**9)
        assert result.status is triomq.PullStatus.NO_NEW_MESSAGE
        assert (result.lacks_offset, result.next_offset, result.max_offset) == (True, 10**9, 8)
        assert events.kinds() == ["offset_unavailable"]
        # There, and gone again: said again.
        assert [message.body for message in await consumer.pull(QUEUE, 7)] == [b"7"]
        await consumer.pull(QUEUE, 9)
        assert events.kinds() == ["offset_unavailable"]
        for number in range(8, 12):
            slave.store("T", 0, b"%d" % number)
        assert not (await consumer.pull(QUEUE, 9)).lacks_offset


async def test_a_blocking_pull_waits_with_growing_pauses(autojump_clock, cluster):
    fill(cluster, 10)
    slave = add_slave_behind(cluster, 2)
    async with cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.pull_consumer("G", read_preference="slave")
        started = trio.current_time()
        result = await consumer.pull(QUEUE, 9, block=True, suspend_s=20)
        assert result.lacks_offset
        assert trio.current_time() - started == pytest.approx(20, abs=0.5)
        assert 5 < pulls(slave) < 20

        async def catch_up():
            await trio.sleep(7)
            slave.queues = cluster.broker.queues

        nursery.start_soon(catch_up)
        started = trio.current_time()
        result = await consumer.pull(QUEUE, 9, block=True, suspend_s=20)
        assert [message.body for message in result] == [b"9"]
        assert trio.current_time() - started < 7 + EMPTY_PAUSE_MAX_S + 0.5


async def test_blocking_pulls_from_a_broker_that_does_not_hold_them(autojump_clock, cluster):
    limit_pulls(cluster.broker)
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        with trio.move_on_after(60):
            while not await consumer.pull(QUEUE, block=True):
                pass
        assert 5 < pulls(cluster.broker) < 60 / EMPTY_PAUSE_MAX_S + 10
        cluster.broker.store("T", 0, b"x")
        assert await consumer.pull(QUEUE, block=True)
        # The pauses start again, and none is longer than the pull may take.
        started = trio.current_time()
        await consumer.pull(QUEUE, block=True)
        assert trio.current_time() - started < 0.1
        for _ in range(20):
            started = trio.current_time()
            await consumer.pull(QUEUE, block=True, suspend_s=0.5)
            assert trio.current_time() - started <= 0.5


async def test_a_pull_consumer_gets_from_the_master_what_the_slave_lacks(autojump_clock, cluster, events):
    fill(cluster, 10)
    slave = add_slave_behind(cluster, 2)
    async with cluster.client() as client:
        consumer = client.pull_consumer("G", read_preference="prefer_slave", on_event=events.append)
        result = await consumer.pull(QUEUE, 9)
        assert [message.body for message in result] == [b"9"]
        # What the master does not have either is its decision.
        assert (await consumer.pull(QUEUE, 11)).status is triomq.PullStatus.OFFSET_ILLEGAL
    assert events == []
    assert pulls(slave) == 2


async def test_messages_without_progress_are_an_error(autojump_clock, cluster):
    fill(cluster, 2)

    def stand_still(command):
        answer = cluster.broker.pull(command)
        return command.answer(0, "FOUND", fields={"nextBeginOffset": "0"} | _bounds(), body=answer.body)

    def _bounds():
        return {"minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0"}

    cluster.broker.script(PULL, stand_still)
    async with cluster.client() as client:
        with pytest.raises(triomq.errors.ProtocolViolation, match="the next offset is 0"):
            await client.pull_consumer("G").pull(QUEUE, 0)


@pytest.mark.parametrize("code", [0, 19, 20])
async def test_an_answer_that_leads_far_beyond_the_queue_is_an_error(
    autojump_clock, group_cluster, open_consumer, caplog, code
):
    """All messages that came before that offset would be skipped, and their consumption be committed."""
    fill(group_cluster, 2)
    fields = {"nextBeginOffset": str(1 << 62), "minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0"}

    broker, odd = group_cluster.broker, []
    pull = broker.pull

    def far_beyond(command):
        header = command.header(PullMessageRequest)
        if (header.topic, header.queue_id) != ("T", 0) or len(odd) == 3:
            return pull(command)
        odd.append(command)
        return command.answer(code, "odd", fields=fields, body=b"".join(broker.queues["T", 0]) if code == 0 else b"")

    broker.pull = far_beyond
    bodies = []
    async with open_consumer() as consumer:
        with trio.move_on_after(60):
            async for delivery in consumer:
                async with delivery:
                    bodies.append(delivery.message.body)
                if len(bodies) == 2:
                    break
    assert bodies == [b"0", b"1"]
    assert "the next offset is 4611686018427387904, and the queue ends at 2" in caplog.text
    assert broker.offsets["G", "T", 0] == 2
