"""Handlers cancelled at each await they and their runners go through: what they had not finished is delivered again.

An instrument counts the moments at which a handler's task goes to sleep; a trial is repeated, with the cancel at the
first, second, third ... of them, until none is left.
"""

# ruff: noqa: ASYNC110 - conditions live in the fake broker

from __future__ import annotations

from functools import partial
from itertools import count

import pytest
import trio

import triomq
from triomq_protocol.codes import RequestCode

Q0 = triomq.MessageQueue("T", "broker-a", 0)
MESSAGES = 4
FAILING = b"1"


class CancelAtAwait(trio.abc.Instrument):
    """Cancels a scope when a task that runs handlers falls asleep for the n-th time."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.scope = trio.CancelScope()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if "Handlers._work" in task.name:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


class Trial:
    """A consumer whose handlers are cancelled once, and what they had done by then."""

    def __init__(self, cluster, *, ordered=False, batch_max=1, fails=False):
        self.cluster = cluster
        self.broker = cluster.broker
        self.fails = fails
        self.options = {"ordered": ordered, "batch_max": batch_max, "start_from": "earliest", "drain_s": 2}
        self.failed = False
        self.begun = []
        self.done = []
        for number in range(MESSAGES):
            self.broker.store("T", 0, b"%d" % number, b"UNIQ_KEY\x01K%d" % number)

    def numbers(self, argument):
        messages = argument if isinstance(argument, list) else [argument]
        return [int(each.body) for each in messages]

    def end(self, argument):
        """What a handler does last."""
        numbers = self.numbers(argument)
        if self.fails and not self.failed and int(FAILING) in numbers:
            self.failed = True
            raise triomq.Later(1, suspend_s=0.1)
        self.done += numbers

    async def handle(self, argument):
        self.begun += self.numbers(argument)
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0.01)
        with trio.move_on_after(0.01):
            await trio.sleep_forever()
        self.end(argument)

    def handle_in_thread(self, argument):
        self.begun += self.numbers(argument)
        self.end(argument)

    def committed(self):
        return self.broker.offsets.get(("G", "T", 0)) or 0

    def sent_back(self):
        """Requests that may have given a message back to the broker."""
        codes = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
        return sum(len(self.broker.requests(code)) for code in codes)

    async def run(self, number, handler):
        """Cancelled at the n-th await, then run to the end.

        Returns:
            Whether there was such an await.
        """
        async with self.cluster.client() as client, client.push_consumer("G", **self.options) as consumer:
            await consumer.subscribe("T")
            instrument = CancelAtAwait(number)
            trio.lowlevel.add_instrument(instrument)
            try:
                with instrument.scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(partial(consumer.run, handler, concurrency=1))
                        await self.until(lambda: set(self.done) == set(range(MESSAGES)))
                        nursery.cancel_scope.cancel()
            finally:
                trio.lowlevel.remove_instrument(instrument)
            cancelled = instrument.left <= 0 and set(self.done) != set(range(MESSAGES))
            self.check_position(consumer._member.positions_of("T").get(Q0, 0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(consumer.run, handler, concurrency=1))
                await self.until(lambda: set(self.done) == set(range(MESSAGES)))
                await self.until(lambda: consumer._member.positions_of("T").get(Q0) == MESSAGES)
                consumer.drain()
        assert self.committed() == MESSAGES
        return cancelled

    def check_position(self, position):
        """Nothing that no handler has finished is passed over, unless a broker was asked to bring it again."""
        open_ = set(range(MESSAGES)) - set(self.done)
        if self.sent_back():
            open_ -= {int(FAILING)}
            if self.options["batch_max"] > 1:
                return  # the whole batch went back
        assert position <= min(open_, default=MESSAGES)

    async def until(self, condition):
        with trio.fail_after(100):
            while not condition():
                await trio.sleep(0.005)


@pytest.mark.parametrize("fails", [False, True], ids=["all-succeed", "one-fails"])
@pytest.mark.parametrize("batch_max", [1, 3])
@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_async_handlers(autojump_clock, ordered, batch_max, fails, make_group_cluster):
    for number in count(1):
        async with make_group_cluster() as cluster:
            trial = Trial(cluster, ordered=ordered, batch_max=batch_max, fails=fails)
            cancelled = await trial.run(number, trial.handle)
        if not cancelled:
            break
        # Each message is handled again from its start only if it was under way.
        assert len(trial.begun) <= MESSAGES + 2 * batch_max * (1 + fails)
    # Each batch goes through a checkpoint, a sleep, the inner nursery and one more sleep.
    assert number > 4 * -(-MESSAGES // batch_max)


@pytest.mark.parametrize("fails", [False, True], ids=["all-succeed", "one-fails"])
@pytest.mark.parametrize("batch_max", [1, 3])
@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_plain_handlers(ordered, batch_max, fails, make_group_cluster):
    """A function cannot be stopped: what it has finished counts, what it had not begun is delivered again."""
    for number in count(1):
        async with make_group_cluster() as cluster:
            trial = Trial(cluster, ordered=ordered, batch_max=batch_max, fails=fails)
            cluster.broker.consumers.levels_s = [0.0] * 19
            cancelled = await trial.run(number, trial.handle_in_thread)
        if not cancelled:
            break
        if not fails:
            assert sorted(trial.begun) == sorted(trial.done) == list(range(MESSAGES))
    assert number > 1


@pytest.mark.parametrize("closed", [False, True])
async def test_handlers_whose_tasks_fail_when_cancelled(autojump_clock, group_cluster, caplog, closed):
    """As when they return a connection that is gone: the cancel, or the end of the consumer, must not raise that."""

    async def clean_up_badly():
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("the connection is gone")

    async def handle(message):
        begun.append(message.queue_offset)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up_badly)
            await trio.sleep_forever()

    begun = []
    group_cluster.broker.store("T", 0, b"m")
    async with (
        group_cluster.client() as client,
        trio.open_nursery() as nursery,
        client.push_consumer("G", start_from="earliest", drain_s=1) as consumer,
    ):
        await consumer.subscribe("T")
        if closed:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(5)
        else:
            with trio.move_on_after(5):
                await consumer.run(handle)
        assert begun == [0]
    assert "the handler was cancelled and failed for <ReceivedMessage T queue 0 offset 0" in caplog.text
    assert "the connection is gone" in caplog.text
    assert group_cluster.broker.offsets["G", "T", 0] == 0, "neither a success nor a failure"
