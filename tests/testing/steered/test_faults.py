"""Faults that a test can inject: nodes, connections, disks."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq_testing import Faults, RocketMQ


@pytest.mark.rocketmq(topics=["orders"])
def test_a_killed_broker_keeps_what_it_has_acknowledged(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    rocketmq.send("orders", b"one", b"two")
    rocketmq_faults.kill("broker-a")
    rocketmq_faults.start("broker-a")
    assert [message.body for message in rocketmq.messages("orders")] == [b"one", b"two"]
    rocketmq.send("orders", b"three")
    assert len(rocketmq.messages("orders")) == 3


@pytest.mark.rocketmq(topics=["orders"], slaves=1)
async def test_a_slave_serves_when_its_master_was_killed(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    (sent,) = rocketmq.send("orders", b"one")
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        consumer = client.pull_consumer("readers")

        async def on_the_slave() -> bool:
            try:
                result = await consumer.pull(sent.queue, offset=sent.queue_offset, read_preference="slave", suspend_s=0)
            except triomq.MQError:  # it does not know the topic yet
                return False
            return bool(result.messages)

        with trio.fail_after(60):
            while not await on_the_slave():  # noqa: ASYNC110 - the broker is in another thread
                await trio.sleep(0.05)
            rocketmq_faults.kill("broker-a")
            result = await consumer.pull(sent.queue, offset=sent.queue_offset)
        assert [message.body for message in result.messages] == [b"one"]


@pytest.mark.rocketmq(topics=["orders"])
async def test_a_frozen_broker_answers_later(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client, trio.open_nursery() as nursery:
        producer = client.producer("writers")
        await producer.send(triomq.Message("orders", b"one"))
        rocketmq_faults.freeze()
        with trio.move_on_after(0.05) as impatient:
            await producer.send(triomq.Message("orders", b"two"))
        assert impatient.cancelled_caught
        nursery.start_soon(producer.send, triomq.Message("orders", b"three"))
        await trio.testing.wait_all_tasks_blocked()
        rocketmq_faults.mend()
    assert {b"one", b"three"} <= {message.body for message in rocketmq.messages("orders")}


@pytest.mark.rocketmq(topics=["orders"])
async def test_a_frozen_broker_is_dropped_after_two_minutes(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        rocketmq_faults.freeze("broker-a")
        rocketmq.clock.advance(seconds=100)
        assert await registered(client)
        rocketmq.clock.advance(seconds=30)
        with trio.fail_after(60):
            while await registered(client):  # noqa: ASYNC110 - the name server is in another thread
                await trio.sleep(0.01)
            rocketmq_faults.mend()
            while not await registered(client):  # noqa: ASYNC110
                await trio.sleep(0.01)


@pytest.mark.rocketmq(topics=["orders"])
async def test_a_frozen_broker_that_was_killed_and_started_stays(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        rocketmq_faults.freeze("broker-a")
        rocketmq_faults.kill("broker-a")
        rocketmq_faults.start("broker-a")
        with trio.fail_after(60):
            while not await registered(client):  # noqa: ASYNC110 - the name server is in another thread
                await trio.sleep(0.01)
        network = rocketmq_faults._nodes["broker-a"].network
        links = network._streams & set(network._dialled)
        assert links
        rocketmq.clock.advance(minutes=3)
        assert links <= network._streams


async def registered(client: triomq.Client) -> bool:
    return bool((await client.admin.cluster_info()).broker_addr_table)


@pytest.mark.rocketmq(topics=["orders"])
async def test_a_cut_connection_breaks_and_is_opened_again(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        producer = client.producer("writers")
        await producer.send(triomq.Message("orders", b"one"))
        rocketmq_faults.cut("broker-a")
        with pytest.raises(triomq.MQError):
            await producer.send(triomq.Message("orders", b"two"))
        rocketmq_faults.mend("broker-a")
        with trio.fail_after(60):
            await producer.send(triomq.Message("orders", b"three"))


@pytest.mark.parametrize("seconds", [-0.1, 3601.0, float("nan")])
def test_a_delay_that_no_broker_can_have_is_refused(
    rocketmq: RocketMQ, rocketmq_faults: Faults, seconds: float
) -> None:
    with pytest.raises(ValueError, match="slow needs seconds, from 0 to 3600"):
        rocketmq_faults.slow(seconds=seconds)
    assert rocketmq.topic("orders") == "orders"


@pytest.mark.rocketmq(topics=["orders"])
async def test_a_slow_broker_takes_its_time(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        producer = client.producer("writers")
        await producer.send(triomq.Message("orders", b"one"))
        rocketmq_faults.slow(seconds=0.1)
        began = trio.current_time()
        await producer.send(triomq.Message("orders", b"two"))
        assert trio.current_time() - began >= 0.2


@pytest.mark.rocketmq(topics=["orders"])
async def test_a_full_disk_refuses_messages(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        producer = client.producer("writers")
        rocketmq_faults.fill_disk()
        with pytest.raises(triomq.MQError):
            await producer.send(triomq.Message("orders", b"one"))
        rocketmq_faults.mend()
        await producer.send(triomq.Message("orders", b"two"))
    assert [message.body for message in rocketmq.messages("orders")] == [b"two"]


def test_a_cluster_without_faults_names_how_to_enable_them(rocketmq: RocketMQ) -> None:
    with pytest.raises(RuntimeError, match="fixture `rocketmq_faults`"):
        rocketmq.faults.cut()


@pytest.mark.rocketmq(topics=["orders"])
def test_an_unknown_node_is_refused(rocketmq_faults: Faults) -> None:
    with pytest.raises(ValueError, match="there is no node broker-z; known: namesrv-0, broker-a"):
        rocketmq_faults.kill("broker-z")


@pytest.mark.rocketmq(masters=2, topics=["orders"])
def test_messages_of_a_dead_broker_are_an_error_and_not_none(rocketmq: RocketMQ, rocketmq_faults: Faults) -> None:
    rocketmq.send("orders", *[b"one"] * 8)
    rocketmq_faults.kill("broker-a")
    with pytest.raises(triomq.errors.BrokerNotFound, match="broker-a"):
        rocketmq.messages("orders")
    rocketmq_faults.kill("broker-b")
    with pytest.raises(triomq.errors.BrokerNotFound, match=r"broker-a.*broker-b"):
        rocketmq.messages("orders")
    rocketmq_faults.start()
    assert len(rocketmq.messages("orders")) == 8
