"""The broker of Taskiq: sent, taken, acknowledged, given out again; in this process and in workers that are killed."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from taskiq import AckableMessage, BrokerMessage
from unreadable import send_unreadable
from worker_process import end, kill_group, lines, wait_until, worker

import triomq.aio
from triomq_adapters.taskiq import RocketMQBroker
from triomq_testing import RocketMQ

TIMEOUT_S = 120


def task(body: bytes = b"body", name: str = "jobs:add", **labels: object) -> BrokerMessage:
    return BrokerMessage(task_id="id-1", task_name=name, message=body, labels=labels)


async def acknowledge(message: AckableMessage) -> None:
    result = message.ack()
    assert result is not None
    await result


async def take(listening: AsyncGenerator[AckableMessage, None], count: int = 1) -> list[AckableMessage]:
    async with asyncio.timeout(TIMEOUT_S):
        return [await anext(listening) for _ in range(count)]


def clock_of(rocketmq: RocketMQ) -> int:
    return int(rocketmq.clock.now().timestamp() * 1000)


def test_an_unreadable_body_does_not_stop_a_worker(rocketmq: RocketMQ, caplog) -> None:
    send_unreadable(rocketmq, "taskiq")

    async def main() -> None:
        broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
        await broker.startup()
        listening = broker.listen()
        await broker.kick(task(b"one"))
        (first,) = await take(listening)
        assert first.data == b"one"
        await acknowledge(first)
        await listening.aclose()
        await broker.shutdown()

    asyncio.run(main())
    assert "could not be taken, and is delivered again later" in caplog.text


def test_a_task_is_taken_once_when_it_is_acknowledged(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
        await broker.startup()
        listening = broker.listen()
        await broker.kick(task(b"one"))
        (first,) = await take(listening)
        assert first.data == b"one"
        await acknowledge(first)
        await acknowledge(first)  # a second time does nothing
        await listening.aclose()
        await broker.shutdown()
        again = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
        await again.startup()
        listening = again.listen()
        await again.kick(task(b"two"))
        assert [message.data for message in await take(listening)] == [b"two"]
        await listening.aclose()
        await again.shutdown()

    asyncio.run(main())
    stored = rocketmq.messages("taskiq")
    assert [(each.body, each.tags, each.keys) for each in stored] == [
        (b"one", "jobs:add", ["id-1"]),
        (b"two", "jobs:add", ["id-1"]),
    ]


def test_listening_again_after_a_failed_subscription(rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe, failures = triomq.aio.PushConsumer.subscribe, [triomq.errors.NoNameServer("no name server answers")]

    async def fails_once(consumer: triomq.aio.PushConsumer, topic: str) -> None:
        if failures:
            raise failures.pop()
        await subscribe(consumer, topic)

    monkeypatch.setattr(triomq.aio.PushConsumer, "subscribe", fails_once)

    async def main() -> None:
        broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
        await broker.startup()
        with pytest.raises(triomq.errors.NoNameServer):
            await take(broker.listen())
        await broker.kick(task(b"one"))
        (first,) = await take(broker.listen())
        assert first.data == b"one"
        await acknowledge(first)
        await broker.shutdown()

    asyncio.run(main())


def test_tasks_at_work_when_listening_ends_are_acknowledged(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        async def session(bodies: list[bytes]) -> set[bytes]:
            broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
            await broker.startup()
            for body in bodies:
                await broker.kick(task(body))
            listening = broker.listen()
            taken = await take(listening, len(bodies))
            await listening.aclose()
            for message in taken:
                await acknowledge(message)
            await broker.shutdown()
            return {message.data for message in taken}

        assert await session([b"one", b"two"]) == {b"one", b"two"}
        assert await session([b"three"]) == {b"three"}

    asyncio.run(main())


def test_unacknowledged_tasks_are_delivered_to_the_next_worker(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        bodies = {b"%d" % number for number in range(20)}
        for last in (False, True):
            broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
            await broker.startup()
            if not last:
                for body in bodies:
                    await broker.kick(task(body))
            listening = broker.listen()
            assert {message.data for message in await take(listening, 20)} == bodies
            await listening.aclose()
            await broker.shutdown()

    asyncio.run(main())


def test_what_takes_too_long_is_given_out_again(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        broker = RocketMQBroker(
            rocketmq.namesrv_addr, send_timeout_s=60, retries=triomq.ConsumeRetries(timeout_s=0.2, max_times=3)
        )
        await broker.startup()
        listening = broker.listen()
        await broker.kick(task())
        first, second = await take(listening, 2)
        assert first.data == second.data == b"body"
        await acknowledge(second)
        await acknowledge(first)  # too late, and no error
        await listening.aclose()
        await broker.shutdown()

    with rocketmq.clock.fast_forward():
        asyncio.run(main())


@pytest.mark.parametrize("days", [0.0001, 0.21, 40])
def test_a_delayed_task_is_delivered_when_it_is_due(days: float, rocketmq: RocketMQ) -> None:
    sent_ms = clock_of(rocketmq)

    async def main() -> None:
        broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60, clock=lambda: clock_of(rocketmq))
        await broker.startup()
        listening = broker.listen()
        await broker.kick(task(delay=days * 86_400))
        (message,) = await take(listening)
        assert message.data == b"body"
        assert clock_of(rocketmq) - sent_ms >= days * 86_400_000
        await acknowledge(message)
        await listening.aclose()
        await broker.shutdown()

    with rocketmq.clock.fast_forward():
        asyncio.run(main())
    assert {(each.tags, *each.keys) for each in rocketmq.messages("taskiq")} == {("jobs:add", "id-1")}


def test_what_cannot_be_sent_is_an_error_with_a_cause(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        broker = RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60)
        with pytest.raises(triomq.errors.InvalidCall, match="not started"):
            await broker.kick(task())
        with pytest.raises(triomq.errors.InvalidCall, match="not started"):
            await anext(broker.listen())
        await broker.startup()
        await broker.startup()  # as a program that starts a broker twice
        with pytest.raises(triomq.errors.MessageIllegal, match="more than 4194304"):
            await broker.kick(task(b"x" * 5_000_000))
        with pytest.raises(triomq.errors.InvalidCall, match="not a number of seconds"):
            await broker.kick(task(delay="soon"))
        with pytest.raises(triomq.errors.InvalidCall, match="a message has one tag"):
            await broker.kick(task(name="a||b"))
        await broker.kick(task(b"x" * 4_194_304))
        await broker.shutdown()
        await broker.shutdown()

    asyncio.run(main())


@pytest.mark.rocketmq(settings={"autoCreateTopicEnable": "false"})
def test_the_topic_is_created_with_its_queues(rocketmq: RocketMQ) -> None:
    async def main() -> None:
        for queues in (3, 5):  # what exists is not changed
            broker = RocketMQBroker(rocketmq.namesrv_addr, topic="jobs", queues=queues)
            await broker.startup()
            await broker.shutdown()

    asyncio.run(main())
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:
        (data,) = client.admin.route("jobs").queue_datas or []
        assert data.read_queue_nums == 3


TASKS = """
import asyncio, os, pathlib
from triomq_adapters.taskiq import RocketMQBroker

broker = RocketMQBroker("ADDRESS", send_timeout_s=60)

@broker.task
async def write(name: str, number: int, hang: bool = False) -> None:
    with open(name, "a") as file:
        file.write(f"{number}\\n")
    if hang and os.path.exists("hang"):
        await asyncio.sleep(3600)
"""


def test_worker_processes_that_are_killed_lose_no_task(
    rocketmq: RocketMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.py").write_text(TASKS.replace("ADDRESS", rocketmq.namesrv_addr))
    (tmp_path / "hang").touch()
    log, done = tmp_path / "log", tmp_path / "done"
    monkeypatch.syspath_prepend(tmp_path)
    jobs = importlib.import_module("jobs")
    del sys.modules["jobs"]

    async def send() -> None:
        await jobs.broker.startup()
        for number in range(100):
            await jobs.write.kiq("done", number, hang=number % 10 == 0)
        await jobs.broker.shutdown()

    asyncio.run(send())
    arguments = ["worker", "jobs:broker", "--workers", "1"]
    with worker("taskiq", arguments, tmp_path, log) as process:
        wait_until(lambda: len(lines(done)) == 100, "the first run of the tasks")
        kill_group(process)
    (tmp_path / "hang").unlink()
    with worker("taskiq", arguments, tmp_path, log) as process:
        # Those that hung have no acknowledgement; others that follow them in their queue may come again, too.
        hung = {str(number) for number in range(0, 100, 10)}
        wait_until(lambda: hung <= set(lines(done)[100:]), "the second run")
        end(process, log)
    assert set(lines(done)) == {str(number) for number in range(100)}
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:
        assert client.groups.progress("taskiq-workers").lag == 0
