"""The fixtures, as a user's tests use them: plain, with trio, with asyncio, on several workers at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
import trio

import triomq
import triomq.aio
import triomq.blocking
from triomq_testing import RocketMQ
from triomq_testing.steered.clock import SteeredClock

pytest_plugins = ["pytester"]


def test_plain(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:
        client.producer("writers").send(triomq.Message(topic, b"one", tags="new"))
    rocketmq.send(topic, b"two", keys="k", properties={"colour": "red"})
    found = rocketmq.messages(topic)
    assert [(message.body, message.tags, message.keys) for message in found] == [
        (b"one", "new", []),
        (b"two", None, ["k"]),
    ]
    assert found[1].properties["colour"] == "red"
    assert rocketmq.messages("no-such-topic") == []


async def test_trio(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders")
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        await client.producer("writers").send(triomq.Message(topic, b"one"))
    assert [message.body for message in rocketmq.messages(topic)] == [b"one"]


def test_asyncio(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        async with triomq.aio.open_client(rocketmq.namesrv_addr) as client:
            await client.producer("writers").send(triomq.Message(rocketmq.topic("orders"), b"one"))

    asyncio.run(main())
    assert [message.body for message in rocketmq.messages("orders")] == [b"one"]


@pytest.mark.rocketmq(masters=2, topics=["orders"], settings={"autoCreateTopicEnable": "false"})
async def test_the_marker_changes_the_cluster(rocketmq: RocketMQ) -> None:
    async with triomq.open_client(rocketmq.namesrv_addr) as client:
        route = await client.admin.route("orders")
        assert sorted(data.broker_name or "" for data in route.broker_datas or []) == ["broker-a", "broker-b"]
        with pytest.raises(triomq.errors.RouteNotFound):
            await client.producer("writers").send(triomq.Message("others", b"one"))


def test_tests_of_a_session_cluster_have_names_of_their_own(rocketmq_cluster: RocketMQ) -> None:
    topic = rocketmq_cluster.topic("orders")
    assert topic.endswith("-test_tests_of_a_session_cluster_have_nam-orders")
    rocketmq_cluster.send(topic, b"one")
    assert [message.body for message in rocketmq_cluster.messages(topic)] == [b"one"]


# --- the clock


def test_two_hours_pass_at_once(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    before = rocketmq.clock.now()
    rocketmq.send(topic, b"late", delay_level=18)
    rocketmq.send(topic, b"early", delay_level=1)
    rocketmq.clock.advance(hours=1, minutes=59)
    assert [message.body for message in rocketmq.messages(topic)] == [b"early"]
    rocketmq.clock.advance(timedelta(minutes=2))
    early, late = rocketmq.messages(topic)
    assert late.body == b"late"
    # Each was delivered at its own time.
    assert early.stored_ms - before.timestamp() * 1000 < 60_000
    assert 7_200_000 <= late.stored_ms - before.timestamp() * 1000 < 7_260_000
    with pytest.raises(ValueError, match="forward only"):
        rocketmq.clock.advance(seconds=-1)


async def test_ten_years_pass_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through every hour of the day before anything is due, and of the last day."""
    clock = SteeredClock()
    hour_ms, day_ms = 3_600_000, 86_400_000
    began = clock()
    due_ms: int | None = began + 1000 * day_ms
    shown: list[int] = []

    def next_due_ms() -> int | None:
        shown.append(clock())
        return due_ms if due_ms is not None and clock() < due_ms else None

    monkeypatch.setattr(clock.waits, "next_due_ms", next_due_ms)
    await clock.advance(3660 * day_ms)
    for last in (began + 1000 * day_ms, began + 3660 * day_ms):
        hours = {time_ms // hour_ms % 24 for time_ms in shown if last - 25 * hour_ms <= time_ms < last + hour_ms}
        assert hours == set(range(24))
    assert any(time_ms // 1000 == (began + 1000 * day_ms) // 1000 for time_ms in shown)
    assert len(shown) < 100


async def test_sixteen_retries_pass_at_once(rocketmq: RocketMQ, figures: Callable[[str], None]) -> None:
    topic = rocketmq.topic("orders")
    tries = 0

    async def handle(_: triomq.ReceivedMessage) -> None:
        nonlocal tries
        tries += 1
        raise triomq.Later

    async with (
        triomq.open_client(rocketmq.namesrv_addr) as client,
        client.push_consumer("readers", start_from="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe(topic)
        nursery.start_soon(consumer.run, handle)
        before, began = rocketmq.clock.now(), trio.current_time()
        with rocketmq.clock.fast_forward(), trio.fail_after(60):
            rocketmq.send(topic, b"bad")
            while not rocketmq.messages("%DLQ%readers"):  # noqa: ASYNC110 - the broker is in another thread
                await trio.sleep(0.01)
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    assert tries == 17
    assert rocketmq.clock.now() - before > timedelta(hours=4, minutes=45)
    figures(f"16 retries, {rocketmq.clock.now() - before} by the broker's clock: {took:.3f} s")


@pytest.mark.rocketmq(settings={"mappedFileSizeCommitLog": "1048576"})
def test_old_messages_expire(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    rocketmq.send(topic, *[os.urandom(400_000)] * 4)
    rocketmq.clock.advance(days=2)
    assert len(rocketmq.messages(topic)) == 4
    rocketmq.send(topic, *[os.urandom(400_000)] * 4)
    rocketmq.clock.advance(days=2)
    # Three days are kept: the older ones are gone, but for the newest file of the time.
    assert 4 <= len(rocketmq.messages(topic)) < 8


CONSUMER = """
import sys, triomq.blocking
with triomq.blocking.open_client(sys.argv[1]) as client:
    consumer = client.pull_consumer("readers")
    (queue,) = consumer.fetch_queues("orders")
    print("waits", flush=True)
    while not (messages := consumer.pull(queue, offset=0, suspend_s=15).messages):
        pass
    print(messages[0].body.decode(), flush=True)
"""


def test_a_client_in_another_process_gets_what_is_due(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders", queues=1)
    rocketmq.send(topic, b"late", delay_level=18)
    command = [sys.executable, "-c", CONSUMER, rocketmq.namesrv_addr]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        rocketmq.clock.advance(hours=2)
        assert process.stdout.readline() == "late\n"


async def test_open_transactions_are_checked(rocketmq: RocketMQ) -> None:
    topic = rocketmq.topic("orders")

    async def check(_: triomq.ReceivedMessage) -> triomq.TransactionState:
        return triomq.TransactionState.COMMIT

    async with (
        triomq.open_client(rocketmq.namesrv_addr) as client,
        client.producer("writers", transactions=check) as producer,
    ):
        await producer.send_half(triomq.Message(topic, b"one"))
        assert rocketmq.messages(topic) == []
        rocketmq.clock.advance(minutes=1)
        with trio.fail_after(30):
            while not rocketmq.messages(topic):  # noqa: ASYNC110 - the broker is in another thread
                await trio.sleep(0.01)


def test_the_marker_takes_names_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.rocketmq(2)
        def test_it(rocketmq):
            pass
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").stdout.fnmatch_lines(
        ["*takes arguments by name, such as masters=2*"]
    )
