"""Ordered consumers that decide when to commit: consumed messages wait for it, or are given out again."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consumer_broker import until

import triomq
from triomq import errors

Q0 = triomq.MessageQueue("T", "broker-a", 0)


def fill(cluster: Any, count: int, *, first: int = 0, queue_id: int = 0) -> None:
    for number in range(first, first + count):
        cluster.broker.store("T", queue_id, b"%d" % number)


def committed(cluster: Any, queue_id: int = 0) -> int | None:
    offset: int | None = cluster.broker.offsets.get(("G", "T", queue_id))
    return offset


def by_hand(open_consumer: Any, **options: Any) -> Any:
    return open_consumer(ordered=True, auto_commit=False, **options)


class Script:
    """A handler with given answers: body -> the answers of its deliveries, the last one for all further ones."""

    def __init__(self, answers: dict[int, list[Any]]) -> None:
        self.seen: list[int] = []
        self.times: list[int] = []
        self._answers = answers

    def answer(self, message: Any) -> Any:
        number = int(message.body)
        self.seen.append(number)
        self.times.append(message.reconsume_times)
        answers = self._answers.get(number, [None])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def __call__(self, message: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return self.answer(message)


async def test_nothing_is_committed_before_the_handler_commits(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 5)
    script = Script({3: [triomq.Commit()]})
    async with by_hand(open_consumer) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await until(lambda: len(script.seen) == 5)
        await trio.sleep(30)
        assert committed(group_cluster) == 4
        fill(group_cluster, 1, first=5)
        await until(lambda: len(script.seen) == 6)
        consumer.drain()
    assert script.seen == [0, 1, 2, 3, 4, 5]
    assert committed(group_cluster) == 4, "nor at the end"


async def test_the_next_member_gets_what_was_not_committed(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 5)
    first, second = Script({1: [triomq.Commit()]}), Script({4: [triomq.Commit()]})
    for script in (first, second):
        async with by_hand(open_consumer) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, script)
            await until(lambda script=script: 4 in script.seen)
            await trio.sleep(1)
            consumer.drain()
    assert (first.seen, second.seen) == ([0, 1, 2, 3, 4], [2, 3, 4])
    assert committed(group_cluster) == 5


async def test_a_rollback_returns_to_the_last_commit(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 6)
    script = Script({1: [triomq.Commit()], 4: [triomq.Rollback(suspend_s=7), triomq.Commit()]})
    async with by_hand(open_consumer) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await until(lambda: len(script.seen) == 5)
        rolled_back_s = trio.current_time()
        await until(lambda: len(script.seen) == 9)
        assert 6.9 <= trio.current_time() - rolled_back_s < 7.5
        await until(lambda: committed(group_cluster) == 5)
        consumer.drain()
    assert script.seen == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert set(script.times) == {0}, "they have not failed"


async def test_a_failure_is_repeated_alone(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 4)
    script = Script({2: [ValueError("once"), triomq.Later(suspend_s=2), None], 3: [triomq.Commit()]})
    async with by_hand(open_consumer) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await until(lambda: committed(group_cluster) == 4)
        consumer.drain()
    assert script.seen == [0, 1, 2, 2, 2, 3]
    assert script.times == [0, 0, 0, 1, 2, 0]


async def test_a_dead_letter_leaves_the_commit_where_it_is(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 4)
    script = Script({1: [ValueError("always")]})
    options = {"retries": triomq.ConsumeRetries(max_times=2)}
    async with by_hand(open_consumer, **options) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await until(lambda: 3 in script.seen)
        await trio.sleep(20)
        assert committed(group_cluster) == 0
        consumer.drain()
    assert script.seen == [0, 1, 1, 1, 2, 3]


async def test_batches_and_functions_answer_alike(group_cluster, open_consumer):
    fill(group_cluster, 4)
    script = Script({3: [triomq.Rollback(suspend_s=0.01), triomq.Commit()]})

    def handler(batch):
        return [script.answer(message) for message in batch][-1]

    async with by_hand(open_consumer, batch_max=2) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handler)
        with trio.fail_after(60):
            while len(script.seen) < 8:  # noqa: ASYNC110 - a thread fills it
                await trio.sleep(0.01)
        consumer.drain()
    assert script.seen == [0, 1, 2, 3, 0, 1, 2, 3]
    assert committed(group_cluster) == 4


async def test_a_function_for_single_messages(group_cluster, open_consumer):
    fill(group_cluster, 3)
    script = Script({1: [triomq.Rollback(suspend_s=0.01), triomq.Commit()]})
    async with by_hand(open_consumer) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script.answer)
        with trio.fail_after(60):
            while len(script.seen) < 5:  # noqa: ASYNC110 - a thread fills it
                await trio.sleep(0.01)
        consumer.drain()
    assert script.seen == [0, 1, 0, 1, 2]
    assert committed(group_cluster) == 2


async def test_deliveries_commit_and_roll_back(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 4)
    seen = []
    async with by_hand(open_consumer) as consumer:
        async for delivery in consumer:
            seen.append(int(delivery.message.body))
            if seen[-1] == 1 and len(seen) == 2:
                await delivery.rollback()
                with pytest.raises(errors.InvalidCall, match="answered already"):
                    await delivery.commit()
            elif seen[-1] == 2:
                async with delivery:
                    await delivery.commit()
            elif seen[-1] == 3:
                break
            else:
                async with delivery:
                    pass
    assert seen == [0, 1, 0, 1, 2, 3]
    assert committed(group_cluster) == 3


async def test_a_seek_ends_what_waits_for_a_commit(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 6)
    script = Script({5: [None, triomq.Commit()]})
    async with by_hand(open_consumer) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await until(lambda: len(script.seen) == 6)
        await consumer.seek(Q0, 3)
        await until(lambda: len(script.seen) == 9)
        await until(lambda: committed(group_cluster) == 6)
        consumer.drain()
    assert script.seen == [0, 1, 2, 3, 4, 5, 3, 4, 5]


async def test_too_much_that_is_not_committed_stops_the_pulls(autojump_clock, group_cluster, open_consumer, caplog):
    fill(group_cluster, 100)
    script = Script({})
    options = {"limits": triomq.FlowLimits(count=10), "pulling": triomq.PullOptions(max_messages=4)}
    async with by_hand(open_consumer, **options) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await trio.sleep(60)
        assert 10 < len(script.seen) <= 14
        (line,) = [each for each in caplog.messages if "not committed" in each]
        assert "before the handler returns Commit() or raises Rollback()" in line
        consumer.drain()


async def test_with_auto_commit_a_rollback_is_a_failure(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, 3)
    script = Script({1: [triomq.Rollback(), triomq.Commit()]})
    async with open_consumer(ordered=True) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, script)
        await until(lambda: committed(group_cluster) == 3)
        consumer.drain()
    assert script.seen == [0, 1, 1, 2]


async def test_concurrent_consumers_have_no_commits_by_hand(autojump_clock, group_cluster):
    async with group_cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="needs ordered=True"):
            client.push_consumer("G", auto_commit=False)
