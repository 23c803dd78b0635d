"""The asyncio face: calls, cancellation, handlers in the user's loop, and how clients end with their loops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import traceback

import pytest
import sniffio
import trio
import uvloop

import triomq
from triomq import errors
from triomq._aio import guest_run, ticks
from triomq._client import opening
from triomq._producer import callbacks as callbacks_of_sends
from triomq_protocol.codes import RequestCode

QUEUE = triomq.MessageQueue("T", "broker-a", 0)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop, "threads": asyncio.new_event_loop}
if sys.version_info >= (3, 12):

    def eager_loop():
        loop = asyncio.new_event_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        return loop

    LOOPS["eager"] = eager_loop


@pytest.fixture(params=LOOPS)
def run(request, monkeypatch):
    """Runs a coroutine in a loop of each kind; of "threads", trio waits in threads, as where epoll is missing."""
    if request.param == "threads":
        monkeypatch.setattr(ticks, "NEEDED", ("no such attribute",))

    def run_in_loop(main):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(main())

    return run_in_loop


@pytest.fixture
def groups(system_cluster):
    """A cluster whose broker serves consumer groups, with ten messages."""
    system_cluster.broker.consumers.serves_groups = True
    for number in range(10):
        system_cluster.broker.store("T", 0, b"m%d" % number, b"")
    return system_cluster


def open_client(cluster, **options):
    return triomq.aio.open_client(cluster.name_server.address, **cluster.options(**options))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


# --- calls -------------------------------------------------------------------------------------------------------


def test_send_and_pull(run, system_cluster, make_callback):
    callback = make_callback()

    async def main():
        async with open_client(system_cluster) as client:
            async with client.producer("P") as producer:
                result = await producer.send(triomq.Message("T", b"one"), queue=QUEUE)
                assert await producer.send(triomq.Message("T", b"two"), callback, queue=QUEUE) is None
                await producer.flush()
                assert producer.in_flight == 0
                await producer.send_batch([triomq.Message("T", b"three")], queue=QUEUE)
                assert await producer.queues("T") == [QUEUE, triomq.MessageQueue("T", "broker-a", 1)]
            consumer = client.pull_consumer("G")
            assert (await consumer.fetch_queues("T"))[0] == QUEUE
            assert [message.body for message in await consumer.pull(QUEUE)] == [b"one", b"two", b"three"]
            consumer.seek(QUEUE, 1)
            assert await consumer.position(QUEUE) == 1
            await consumer.commit(QUEUE)
            assert await consumer.committed(QUEUE) == 1
            assert await client.admin.topics() == ["T"]
            assert client.statistics().topics == 1
            return result, len(asyncio.all_tasks())

    result, tasks = run(main)
    assert result.status is triomq.SendStatus.SEND_OK
    assert len(callback.results) == 1
    assert tasks == 2  # this one, and one that waits for the loop's end


def test_nothing_is_left_behind(run, system_cluster):
    async def main():
        async def once():
            async with open_client(system_cluster) as client:
                await client.producer("P", send_timeout_s=30).send(triomq.Message("T", b"x"))

        await once()
        before = threading.active_count(), descriptors(), asyncio.all_tasks()
        for _ in range(5):
            await once()
        assert (threading.active_count(), descriptors(), asyncio.all_tasks()) == before

    run(main)


def test_a_wait_that_is_shorter_than_a_step_of_the_loops_clock(run):
    """uvloop counts milliseconds, and its handle of a call that is due at once has no time."""
    problems = []
    sender, receiver = socket.socketpair()

    @contextlib.asynccontextmanager
    async def receiving():
        async def receive():
            with trio.socket.from_stdlib_socket(receiver) as stream:
                while True:
                    await stream.recv(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            yield
            nursery.cancel_scope.cancel()

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        session = await guest_run.GuestRun.open(receiving)

        async def send_and_wait():
            sender.send(b"x")
            await trio.sleep(0.0002)

        for _ in range(10):
            await session.call(send_and_wait)
        await session.close()

    with sender, receiver:
        receiver.setblocking(False)
        run(main)
    assert not problems


def test_calls_run_side_by_side(run, system_cluster):
    async def main():
        async with open_client(system_cluster) as client, client.producer("P") as producer:
            results = await asyncio.gather(*[producer.send(triomq.Message("T", b"x")) for _ in range(50)])
            async with open_client(system_cluster) as other:
                assert other.client_id != client.client_id
                await asyncio.gather(producer.queues("T"), other.producer("P").queues("T"))
            assert len({result.message_id for result in results}) == 50

    run(main)


def test_errors_are_raised_unchanged(run, system_cluster):
    async def main():
        with pytest.raises(errors.InvalidCall, match="nonsense"):
            await triomq.aio.open_client("nonsense")
        async with open_client(system_cluster) as client:
            producer = client.producer("P")
            with pytest.raises(errors.MessageIllegal):
                await producer.send(triomq.Message("T", b""))
            with pytest.raises(errors.InvalidCall, match="share it"):
                client.producer("P")
        for call in (lambda: producer.send(triomq.Message("T", b"x")), lambda: client.admin.topics()):
            with pytest.raises(errors.ClientClosed):
                await call()
        with pytest.raises(errors.ClientClosed):
            client.producer("Q")
        await client.aclose()
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_a_block_that_fails_waits_for_nothing(run, system_cluster, make_callback):
    callback = make_callback()
    system_cluster.broker.script(RequestCode.SEND_MESSAGE_V2, None)

    async def main():
        async with open_client(system_cluster) as client:
            await client.producer("P", send_timeout_s=3600).send(triomq.Message("T", b"x"), callback)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
    assert isinstance(callback.errors[0], errors.ClientClosed)


def test_closing_ends_a_waiting_call(run, system_cluster):
    system_cluster.broker.script(RequestCode.PULL_MESSAGE, None)

    async def main():
        client = await open_client(system_cluster)
        pull = asyncio.create_task(client.pull_consumer("G").pull(QUEUE, 0, block=True))
        while not system_cluster.broker.requests(RequestCode.PULL_MESSAGE):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(errors.ClientClosed):
            await pull

    run(main)


# --- cancellation ------------------------------------------------------------------------------------------------


def test_a_timeout_ends_the_call(run, system_cluster):
    system_cluster.broker.script(RequestCode.PULL_MESSAGE, None)

    limit = asyncio.Timeout(None)

    async def expire_once_sent():
        while not system_cluster.broker.requests(RequestCode.PULL_MESSAGE):  # noqa: ASYNC110
            await asyncio.sleep(0)
        limit.reschedule(asyncio.get_running_loop().time())

    async def main():
        async with open_client(system_cluster) as client:
            consumer = client.pull_consumer("G")
            expiring = asyncio.create_task(expire_once_sent())
            with pytest.raises(TimeoutError):
                async with limit:
                    await consumer.pull(QUEUE, 0, block=True)
            await expiring
            # Heartbeats are answered; a pull that was not given up would stay.
            async with asyncio.timeout(60):
                while any(link.pending for link in client.statistics().links):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert asyncio.current_task().cancelling() == 0
            assert (await consumer.pull(QUEUE, 0)).status is triomq.PullStatus.NO_NEW_MESSAGE

    run(main)


def test_a_call_that_ends_with_the_cancellation_gives_its_result_first(run, system_cluster):
    steps = []

    async def main():
        async with open_client(system_cluster) as client:

            async def answer():
                await trio.lowlevel.checkpoint()
                task.cancel()
                return "result"

            async def use():
                steps.append(await client._session.call(answer))
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    steps.append("cancelled")
                    raise

            task = asyncio.create_task(use())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelling() == 1

    run(main)
    assert steps == ["result", "cancelled"]


def test_a_result_within_an_expired_timeout_is_no_cancellation(run, system_cluster):
    async def main():
        async with open_client(system_cluster) as client:

            async def answer():
                await trio.lowlevel.checkpoint()
                limit.reschedule(-1)
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.05)
                return "result"

            async with asyncio.timeout(3600) as limit:
                assert await client._session.call(answer) == "result"
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert limit.expired()
            assert asyncio.current_task().cancelling() == 0

    run(main)


@pytest.mark.parametrize("steps", range(12))
def test_cancelling_while_opening_and_closing(run, system_cluster, steps):
    async def main():
        async def once():
            async with open_client(system_cluster) as client:
                await client.producer("P").send(triomq.Message("T", b"x"))

        task = asyncio.create_task(once())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await once()
        assert len(asyncio.all_tasks()) == 1

    run(main)


class CancelledAt:
    """Awaits a coroutine and cancels the task while it waits for the n-th time.

    Attributes:
        left: how many waits before the cancellation; more than 0 afterwards if there were fewer.
    """

    def __init__(self, coroutine, wait, turns):
        self._coroutine = coroutine
        self._turns = turns
        self.left = wait

    def __await__(self):
        step = functools.partial(self._coroutine.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self.left -= 1
            if self.left == 0:
                self._cancel_after(asyncio.current_task(), self._turns)
            try:
                step = functools.partial(self._coroutine.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001 - raised in the coroutine
                step = functools.partial(self._coroutine.throw, error)

    def _cancel_after(self, task, turns):
        if turns == 0:
            task.cancel()
        else:
            asyncio.get_running_loop().call_soon(self._cancel_after, task, turns - 1)


async def send_all_ways(cluster):
    async with open_client(cluster) as client, client.producer("P", transactions=commit) as producer:
        await producer.send(triomq.Message("T", b"x"), queue=QUEUE)
        await producer.send_batch([triomq.Message("T", b"x")])
        async with producer.transaction(triomq.Message("T", b"x")):
            pass


def commit(_):
    return triomq.TransactionState.COMMIT


async def push(cluster):
    async with open_client(cluster) as client, client.push_consumer("G", start_from="earliest", drain_s=0) as consumer:
        await consumer.subscribe("T")
        async for delivery in consumer:
            async with delivery:
                break


async def lite_pull(cluster):
    async with open_client(cluster) as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([QUEUE])
        await consumer.seek(QUEUE, 0)
        await consumer.poll()
        await consumer.commit()


async def share(cluster):
    async with open_client(cluster) as client, client.pull_consumer("H").share("T") as pulls:
        async for _ in pulls:
            break


@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize("use", [send_all_ways, push, lite_pull, share])
def test_cancelling_each_wait_leaves_nothing(run, groups, use, turns):
    """No task, thread or descriptor, as soon as the cancellation has come out; some turns of the loop after the wait began."""

    async def main():
        await use(groups)
        before = threading.active_count(), descriptors(), asyncio.all_tasks()
        for wait in itertools.count(1):
            cancelled = CancelledAt(use(groups), wait, turns)
            task = asyncio.create_task(awaited(cancelled))
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert nothing_more_than(before), wait
            assert guest_run._thread.run is None
            if cancelled.left > 0:
                break
            assert task.cancelled(), wait
        assert wait > 3

    run(main)


def nothing_more_than(before):
    """Than there was; threads and descriptors of earlier tests may have ended since."""
    threads, open_before, tasks = before
    return threading.active_count() <= threads and descriptors() <= open_before and asyncio.all_tasks() == tasks


async def awaited(awaitable):
    return await awaitable


def test_a_client_that_cannot_be_opened_leaves_nothing(run, system_cluster, monkeypatch):
    @contextlib.asynccontextmanager
    async def fail(*_, **__):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError
        yield

    async def main():
        async with open_client(system_cluster):
            pass
        before = threading.active_count(), descriptors(), asyncio.all_tasks()
        monkeypatch.setattr(opening, "open_client", fail)
        with pytest.raises(ZeroDivisionError):
            await open_client(system_cluster)
        assert nothing_more_than(before)

    run(main)


def test_asyncio_run_twice(system_cluster):
    """In one thread, each with a loop of its own, the second after one that ended by an error within the block."""

    async def main(body, error=None):
        async with open_client(system_cluster) as client:
            await client.producer("P").send(triomq.Message("T", body))
            if error is not None:
                raise error

    before = threading.active_count(), descriptors()
    asyncio.run(main(b"one"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(main(b"two", ZeroDivisionError()))
    asyncio.run(main(b"three"))
    assert threading.active_count() <= before[0]
    assert descriptors() <= before[1]
    assert system_cluster.broker.bodies("T") == [b"one", b"two", b"three"]


# --- the user's code ---------------------------------------------------------------------------------------------


def test_handlers_run_in_the_loop(run, groups):
    request = contextvars.ContextVar("request", default=None)
    seen = []

    async def main():
        loop = asyncio.get_running_loop()
        request.set("mine")

        async def handle(message):
            assert asyncio.get_running_loop() is loop
            assert (sniffio.current_async_library(), request.get()) == ("asyncio", "mine")
            await asyncio.sleep(0)
            seen.append(message.queue_offset)
            if len(seen) == 10:
                consumer.drain()

        async with (
            open_client(groups) as client,
            client.push_consumer("G", start_from="earliest", drain_s=5) as consumer,
        ):
            await consumer.subscribe("T")
            await consumer.run(handle, concurrency=3)
            assert consumer.assignment
        assert groups.broker.offsets["G", "T", 0] == 10

    run(main)
    assert sorted(seen) == list(range(10))


def test_push_polls(run, groups):
    async def main():
        async with (
            open_client(groups) as client,
            client.push_consumer("G", start_from="earliest", drain_s=5) as consumer,
        ):
            assert await consumer.poll() is None
            await consumer.subscribe("T")
            for offset in range(10):
                delivery = await consumer.poll(60)
                assert delivery.message.queue_offset == offset
                await delivery.done()
        assert groups.broker.offsets["G", "T", 0] == 10

    run(main)


@pytest.mark.parametrize("fault", ["raises", "cancels itself"])
def test_a_handler_that_fails_sends_its_message_back(run, groups, fault):
    async def main():
        async def handle(message):
            if message.queue_offset == 3 and fault == "raises":
                raise triomq.Later(2)
            if message.queue_offset == 3:
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            if message.queue_offset == 9:
                consumer.drain()

        async with (
            open_client(groups) as client,
            client.push_consumer("G", start_from="earliest", drain_s=5) as consumer,
        ):
            await consumer.subscribe("T")
            await consumer.run(handle, concurrency=1)
        levels = [each.fields["delayLevel"] for each in groups.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)]
        assert levels == ["2" if fault == "raises" else "0"]
        assert groups.broker.offsets["G", "T", 0] == 10

    run(main)


class Outcome(BaseException):
    """What tests are ended with, as by ``pytest.fail``."""


def test_an_exception_that_ends_a_test_is_raised_by_run_and_leaves_the_client_open(run, groups):
    async def main():
        async def handle(_message):
            raise Outcome

        async with open_client(groups) as client:
            async with client.push_consumer("G", start_from="earliest", drain_s=5) as consumer:
                await consumer.subscribe("T")
                with pytest.raises(Outcome):
                    await consumer.run(handle, concurrency=1)
            await client.producer("P").send(triomq.Message("T", b"x"), queue=QUEUE)

    run(main)


def test_cancelling_a_run_cancels_its_handlers(run, groups):
    ended = []

    async def main():
        started = asyncio.Event()

        async def handle(message):
            started.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append(message.queue_offset)
                raise

        async with (
            open_client(groups) as client,
            client.push_consumer("G", start_from="earliest", drain_s=0.5) as consumer,
        ):
            await consumer.subscribe("T")
            task = asyncio.create_task(consumer.run(handle, concurrency=1))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not groups.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert groups.broker.offsets.get(("G", "T", 0), 0) == 0

    run(main)
    assert ended == [0]


def test_deliveries(run, groups):
    seen = []

    async def main():
        async with (
            open_client(groups) as client,
            client.push_consumer("G", start_from="earliest", drain_s=0.5) as consumer,
        ):
            await consumer.subscribe("T")
            async for delivery in consumer:
                async with delivery:
                    seen.append(delivery.message.queue_offset)
                    if delivery.message.queue_offset == 3:
                        raise triomq.Later(2)
                    if delivery.message.queue_offset == 4:
                        raise ZeroDivisionError
                if len(seen) == 10:
                    break
        levels = [each.fields["delayLevel"] for each in groups.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)]
        assert levels == ["2", "0"]
        assert groups.broker.offsets["G", "T", 0] == 10

    run(main)
    assert seen == list(range(10))


def test_a_cancelled_delivery_is_redelivered(run, groups):
    async def main():
        async with (
            open_client(groups) as client,
            client.push_consumer("G", start_from="earliest", drain_s=0.5) as consumer,
        ):
            await consumer.subscribe("T")

            async def first():
                async with await anext(consumer) as delivery:
                    offsets.append(delivery.message.queue_offset)
                    await asyncio.sleep(3600)

            offsets = []
            task = asyncio.create_task(first())
            while not offsets:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with await anext(consumer) as again:
                assert again.message.queue_offset == offsets[0] == 0

    run(main)


def test_what_consume_hooks_set_is_set_in_the_block(run, groups):
    span = contextvars.ContextVar("span", default=None)

    class Spans:
        def around_consume(self, context):
            return self

        def __enter__(self):
            self.token = span.set("open")

        def __exit__(self, *error):
            span.reset(self.token)

    async def main():
        async with open_client(groups) as client:
            hooks = [Spans()]
            async with client.push_consumer("G", start_from="earliest", drain_s=0.5, consume_hooks=hooks) as consumer:
                await consumer.subscribe("T")
                async with await anext(consumer):
                    inside = span.get()  # an AssertionError in here would be the message's failure, and no more
                assert (inside, span.get()) == ("open", None)

    run(main)


def test_lite_pull_and_shares(run, groups):
    came = []

    async def main():
        async def on_assigned(queues):
            await asyncio.sleep(0)
            came.extend(queues)

        async with open_client(groups) as client:
            async with client.lite_pull_consumer("G", start_from="earliest", batch_max=4) as consumer:
                await consumer.assign([QUEUE])
                assert [message.queue_offset for message in await consumer.poll()] == [0, 1, 2, 3]
                await consumer.seek(QUEUE, 8)
                async for message in consumer:
                    if message.queue_offset == 9:
                        break
                assert consumer.assignment == [QUEUE]
            assert groups.broker.offsets["G", "T", 0] == 10
            seen = []
            callbacks = triomq.ConsumerCallbacks(on_assigned=on_assigned)
            async with client.pull_consumer("H").share("T", max_messages=4, callbacks=callbacks) as pulls:
                async for result in pulls:
                    seen += [message.queue_offset for message in result]
                    if len(seen) == 10:
                        break
                assert QUEUE in pulls.assignment

    run(main)
    assert QUEUE in came


@pytest.mark.parametrize("kind", ["async", "plain with a coroutine", "plain with a task", "object"])
def test_async_callbacks_of_sends(run, system_cluster, kind):
    results = []

    async def main():
        async def sent(result, error):
            library = sniffio.current_async_library()
            await asyncio.sleep(0)
            results.append((result.queue, error, library))

        class Callback:
            def on_success(self, result):
                return sent(result, None)

            def on_exception(self, error):
                """Not called."""

        callback = {
            "async": sent,
            "plain with a coroutine": lambda result, error: sent(result, error),
            "plain with a task": lambda result, error: asyncio.create_task(sent(result, error)),
            "object": Callback(),
        }[kind]
        async with open_client(system_cluster) as client:
            await client.producer("P").send(triomq.Message("T", b"x"), callback, queue=QUEUE)

    run(main)
    assert results == [(QUEUE, None, "asyncio")]


def test_wrong_callbacks_are_refused_as_in_trio(run, system_cluster):
    class Half:
        def on_success(self, result):
            """Not called."""

    class AsyncToCall:
        async def __call__(self, message):
            """Not called."""

    async def one_argument(result):
        """Not called."""

    async def main():
        async with open_client(system_cluster) as client, client.push_consumer("G") as consumer:
            for make in (client.push_consumer, client.lite_pull_consumer, client.pull_consumer("H").share):
                with pytest.raises(errors.InvalidCall, match=r"callbacks is int, not triomq\.ConsumerCallbacks"):
                    make("T", callbacks=3)
            with pytest.raises(errors.InvalidCall, match="transactions is Half, neither"):
                client.producer("P", transactions=Half())
            with pytest.raises(errors.InvalidCall, match="the handler is Half; give"):
                await consumer.run(Half())
            with pytest.raises(errors.InvalidCall, match=r"the handler .*AsyncToCall is a class"):
                await asyncio.wait_for(consumer.run(AsyncToCall), 20)
            with pytest.raises(errors.InvalidCall, match=r"transactions is the class .*AsyncToCall"):
                client.producer("P", transactions=AsyncToCall)
            producer = client.producer("P")
            for callback in (3, Half()):
                with pytest.raises(errors.InvalidCall, match="neither a function"):
                    await producer.send(triomq.Message("T", b"x"), callback)
            for callback in (one_argument, lambda: None):
                with pytest.raises(errors.InvalidCall, match=r"cannot be called with \(result, error\)"):
                    await producer.send(triomq.Message("T", b"x"), callback)

    run(main)


# --- loops and clients -------------------------------------------------------------------------------------------


def test_a_client_that_is_left_open_is_closed_with_its_loop(run, system_cluster, make_callback):
    callback = make_callback()

    async def main():
        client = await open_client(system_cluster)
        await client.producer("P").send(triomq.Message("T", b"x"), callback)
        return client

    client = run(main)
    assert len(callback.results) == 1
    assert system_cluster.broker.requests(RequestCode.UNREGISTER_CLIENT)
    assert guest_run._thread.run is None
    run(main)
    with pytest.raises(errors.ClientClosed):
        client.producer("Q")
    run(client.aclose)


def test_a_loop_that_is_closed_under_a_client(run, system_cluster, caplog):
    loop = asyncio.new_event_loop()

    async def leave():
        client = await open_client(system_cluster)
        await client.producer("P").send(triomq.Message("T", b"x"))
        client._session._run._guard._log_destroy_pending = False
        return client

    client = loop.run_until_complete(leave())
    loop.close()

    async def main():
        with pytest.raises(errors.InvalidCall, match="another event loop"):
            await client.admin.topics()
        async with open_client(system_cluster) as again:
            await again.producer("P").send(triomq.Message("T", b"y"))

    with caplog.at_level(logging.WARNING, "triomq"):
        run(main)
    assert [record.message for record in caplog.records if "event loop was closed" in record.message]
    assert len(system_cluster.broker.requests(RequestCode.UNREGISTER_CLIENT)) == 2


async def handle_until_closed(consumer, started):
    async def handle(_message):
        started.set()
        await asyncio.sleep(1000)

    await consumer.subscribe("T")
    await consumer.run(handle, concurrency=1)


async def revoke_until_closed(consumer, _started):
    await consumer.subscribe("T")
    while not consumer.assignment:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    await consumer.aclose()


@pytest.mark.parametrize("waits", [handle_until_closed, revoke_until_closed])
def test_a_loop_that_is_closed_under_users_code(run, groups, caplog, waits):
    """Handlers and callbacks in a closed loop never end: the loop that closes their client must not wait for them."""
    loop = asyncio.new_event_loop()

    async def leave():
        started = asyncio.Event()

        async def revoked(_queues):
            started.set()
            await asyncio.sleep(1000)

        client = await open_client(groups)
        callbacks = triomq.ConsumerCallbacks(on_revoked=revoked)
        consumer = client.push_consumer("G", start_from="earliest", drain_s=1000, callbacks=callbacks)
        await consumer.__aenter__()
        waiting = asyncio.create_task(waits(consumer, started))
        await started.wait()
        for task in asyncio.all_tasks():
            task._log_destroy_pending = False
        return client, waiting

    kept = loop.run_until_complete(leave())
    loop.close()

    async def main():
        async with open_client(groups) as again:
            await again.producer("P").send(triomq.Message("T", b"y"))

    with caplog.at_level(logging.WARNING, "triomq"):
        run(main)
    assert [record.message for record in caplog.records if "event loop was closed" in record.message]
    assert groups.broker.offsets["G", "T", 0] == 0, "nothing was handled"
    del kept


def test_an_interrupt_that_trio_sees_is_the_loops(system_cluster):
    loop = asyncio.new_event_loop()

    async def main():
        client = await open_client(system_cluster)

        async def interrupt():
            await trio.lowlevel.checkpoint()
            signal.raise_signal(signal.SIGINT)

        client._session._run._guard._log_destroy_pending = False
        with pytest.raises(errors.ClientClosed):
            await client._session.call(interrupt)
        await asyncio.sleep(60)

    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Not asyncio.run, which has a handler of its own.
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        loop.run_until_complete(cancel_all(loop))
        assert guest_run._thread.run is None
    finally:
        signal.signal(signal.SIGINT, inherited)
        loop.close()


async def cancel_all(loop):
    others = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def test_two_loops_in_one_thread(system_cluster):
    one, two = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def opening():
        return await open_client(system_cluster)

    try:
        client = one.run_until_complete(opening())
        with pytest.raises(errors.InvalidCall, match="open on another event loop"):
            two.run_until_complete(opening())
        one.run_until_complete(client.aclose())
        two.run_until_complete(two.run_until_complete(opening()).aclose())
    finally:
        one.close()
        two.close()


def test_a_loop_in_each_thread(system_cluster):
    ended = []

    def work():
        async def main():
            async with open_client(system_cluster) as client, client.producer("P") as producer:
                for _ in range(20):
                    await producer.send(triomq.Message("T", b"x"))
            ended.append(guest_run._thread.run)

        asyncio.run(main())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [None] * 4
    assert len(system_cluster.broker.bodies("T")) == 80


def test_without_a_loop():
    with pytest.raises(errors.InvalidCall, match=r"none runs here; start one by asyncio\.run"):
        triomq.aio.open_client("127.0.0.1:1").__await__().send(None)


def test_a_client_that_is_not_entered_names_the_cure():
    how = r"triomq\.aio\.open_client is entered by `async with triomq\.aio\.open_client\(\.\.\.\) as client:`"
    with (
        pytest.raises(errors.InvalidCall, match=rf"{how}, or awaited.*; without a loop use triomq\.blocking"),
        triomq.aio.open_client("ns:9876"),
    ):
        pytest.fail("it was entered")
    with pytest.raises(AttributeError, match=rf"no attribute 'producer': {how}"):
        triomq.aio.open_client("ns:9876").producer("P")


def test_trios_client_is_refused_while_a_client_is_open(run, system_cluster):
    async def main():
        async with open_client(system_cluster):
            with pytest.raises(errors.InvalidCall, match=r"this is an asyncio loop; use triomq\.aio\.open_client"):
                async with triomq.open_client("ns:9876"):
                    pytest.fail("it was opened")

    run(main)


async def test_within_trio():
    with pytest.raises(errors.InvalidCall, match=r"triomq\.open_client in trio"):
        await triomq.aio.open_client("127.0.0.1:1")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="forking a process with threads is a warning since Python 3.12")
def test_a_process_that_is_forked_while_a_client_is_open(system_cluster):
    async def main():
        async with open_client(system_cluster) as client:
            child = os.fork()
            if not child:
                _in_child(system_cluster)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222
            await client.producer("P").send(triomq.Message("T", b"parent"))
            return code

    assert asyncio.run(main()) == 0


def _in_child(system_cluster):
    code = 1
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)
    try:

        async def main():
            await open_client(system_cluster)

        with pytest.raises(errors.InvalidCall, match="forked while a client"):
            asyncio.run(main())
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not go on with pytest
        traceback.print_exc()
    finally:
        os._exit(code)


# --- the loop ----------------------------------------------------------------------------------------------------


def test_tasks_of_trio_that_are_always_ready_leave_the_event_loop_its_turns(run, system_cluster):
    turns = {"trio": 0, "asyncio": 0}

    async def always_ready():
        while True:
            turns["trio"] += 1
            await trio.lowlevel.checkpoint()

    async def main():
        async with open_client(system_cluster):
            nursery = guest_run._thread.run.nursery
            guest_run._thread.run.ticks.wake()
            nursery.start_soon(always_ready)
            while turns["trio"] < 1000:
                turns["asyncio"] += 1
                await asyncio.sleep(0)
            nursery.cancel_scope.cancel()

    run(main)
    assert turns["asyncio"] >= 1000 // ticks.TICKS_AT_ONCE


def test_a_deadline_ends_its_wait_although_another_was_set_before(run, system_cluster):
    async def main():
        async with open_client(system_cluster):
            the_run, done = guest_run._thread.run, asyncio.Event()

            async def waits():
                with trio.move_on_after(3600):
                    with trio.move_on_after(0.05):
                        await trio.sleep_forever()
                    with trio.move_on_after(0.01):
                        await trio.sleep_forever()
                    await trio.sleep(0.03)
                done.set()

            the_run.ticks.wake()
            the_run.nursery.start_soon(waits)
            async with asyncio.timeout(20):
                await done.wait()

    run(main)


@pytest.mark.parametrize("what", ["member", "client"])
@pytest.mark.parametrize("kind", ["lite", "push", "producer"])
def test_a_callback_that_would_wait_for_itself_is_refused(run, groups, kind, what):
    refused = []

    async def main():
        async def close(*_args):
            try:
                await (client if what == "client" else member).aclose()
            except errors.InvalidCall as error:
                refused.append(str(error))
            called.set()

        called = asyncio.Event()
        async with open_client(groups) as client:
            if kind == "producer":
                member = client.producer("P")
                await member.send(triomq.Message("T", b"x"), close)
            else:
                make = client.lite_pull_consumer if kind == "lite" else client.push_consumer
                callbacks = triomq.ConsumerCallbacks(on_assigned=close)
                member = make("G", callbacks=callbacks)
                await member.__aenter__()
                await member.subscribe("T")
            await called.wait()
            await member.aclose()

    run(main)
    assert "waits for all callbacks" in refused[0]


@pytest.mark.parametrize("where", ["send", "on_assigned", "handler"])
@pytest.mark.parametrize("when", ["in the block", "at its end"])
def test_a_callback_that_waits_for_a_task_which_closes_ends_when_the_program_is_cancelled(
    run, groups, monkeypatch, where, when
):
    """That cannot be refused: the callback need not wait for the task."""
    monkeypatch.setattr(callbacks_of_sends, "CALLBACK_GRACE_S", 0.1)
    ended = []

    async def main():
        async def close(*_args):
            closing = asyncio.create_task(client.aclose())
            called.set()
            try:
                await closing
            finally:
                ended.append(where)

        async def use():
            nonlocal client
            async with open_client(groups) as client:
                if where == "send":
                    await client.producer("P").send(triomq.Message("T", b"x"), close)
                else:
                    on_assigned = close if where == "on_assigned" else None
                    callbacks = triomq.ConsumerCallbacks(on_assigned=on_assigned)
                    consumer = client.push_consumer("G", callbacks=callbacks, start_from="earliest")
                    await consumer.__aenter__()
                    await consumer.subscribe("T")
                    if where == "handler":
                        runs.append(asyncio.create_task(consumer.run(close, concurrency=1)))
                await called.wait()
                if when == "in the block":
                    await asyncio.sleep(3600)

        client, called, runs = None, asyncio.Event(), []
        using = asyncio.create_task(use())
        await called.wait()
        await asyncio.sleep(0)
        using.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait({using, *runs})
        for each in runs:
            each.exception()

    run(main)
    assert ended == [where]


@pytest.mark.parametrize("where", ["in the callback", "in a task"])
def test_a_callback_that_ends_the_block_of_its_client_gets_an_end(run, system_cluster, monkeypatch, where):
    monkeypatch.setattr(callbacks_of_sends, "CALLBACK_GRACE_S", 0.1)
    ended = []

    async def main():
        async def leave(*_args):
            leaving = stack.aclose()
            try:
                await (leaving if where == "in the callback" else asyncio.create_task(leaving))
            except errors.InvalidCall as error:
                ended.append(str(error))
            finally:
                called.set()

        called, stack = asyncio.Event(), contextlib.AsyncExitStack()
        async with asyncio.timeout(60):
            client = await stack.enter_async_context(open_client(system_cluster))
            await client.producer("P").send(triomq.Message("T", b"x"), leave)
            await called.wait()
            await client.aclose()

    run(main)
    assert ["waits for all callbacks" in each for each in ended] == [True] * (where == "in the callback")


def test_a_cancelled_end_of_a_client_does_not_wait_for_a_callback(run, system_cluster, monkeypatch):
    monkeypatch.setattr(callbacks_of_sends, "CALLBACK_GRACE_S", 0.1)
    ended = []

    async def main():
        async def endless(*_args):
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("callback")

        async def use():
            client = await open_client(system_cluster)
            await client.producer("P").send(triomq.Message("T", b"x"), endless)
            closing.set()
            await client.aclose()

        closing = asyncio.Event()
        using = asyncio.create_task(use())
        await closing.wait()
        await asyncio.sleep(0)
        using.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait({using})
        ended.append("close")
        assert using.cancelled()

    run(main)
    assert ended == ["callback", "close"]


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_groups_have_the_prefix_of_the_namespace(run, system_cluster, kind):
    async def main():
        async with open_client(system_cluster, namespace="NS") as client:
            return getattr(client, kind)("G").group

    assert run(main) == "NS%G"


def test_a_handler_waits_for_the_end_of_another_client_even_if_cancelled(run, groups, monkeypatch):
    """Its cancelled end is waited for, since that client does not wait for the handler."""
    monkeypatch.setattr(callbacks_of_sends, "CALLBACK_GRACE_S", 0.1)
    left = []

    async def endless(*_args):
        await asyncio.sleep(3600)

    async def main():
        async def handle(_message):
            other = await open_client(groups, instance_name="other")
            await other.producer("P").send(triomq.Message("T", b"x"), endless)
            closing.set()
            try:
                await other.aclose()
            finally:
                left.append(other._session._ended.done())

        closing = asyncio.Event()
        async with open_client(groups) as client, client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            running = asyncio.create_task(consumer.run(handle, concurrency=1))
            await closing.wait()
            running.cancel()
            await asyncio.wait({running})

    run(main)
    assert left == [True]


@pytest.mark.parametrize("what", ["flush", "member", "client"])
def test_a_callback_that_waits_for_a_task_which_closes_gets_an_end(run, system_cluster, monkeypatch, what):
    monkeypatch.setattr(callbacks_of_sends, "CALLBACK_GRACE_S", 0.1)
    ended = []

    async def main():
        async def close(*_args):
            called.set()
            try:
                await asyncio.create_task(
                    {"flush": producer.flush, "member": producer.aclose, "client": client.aclose}[what]()
                )
            finally:
                ended.append(what)

        called = asyncio.Event()
        async with asyncio.timeout(60):
            client = await open_client(system_cluster)
            producer = client.producer("P")
            await producer.send(triomq.Message("T", b"x"), close)
            await called.wait()
            await client.aclose()

    run(main)
    assert ended == [what]


@pytest.mark.parametrize("when", ["before its consumer ends", "after that"])
def test_a_handler_in_a_thread_that_waits_for_a_task_which_closes_gets_an_end(run, groups, when):
    ended = []

    async def main():
        def close(_message):
            loop.call_soon_threadsafe(called.set)
            if when == "after that":
                closed.wait(60)
            ended.append(asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(60))

        called, closed, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
        async with open_client(groups) as client:
            consumer = client.push_consumer("G", start_from="earliest", drain_s=0.1)
            await consumer.__aenter__()
            await consumer.subscribe("T")
            running = asyncio.create_task(consumer.run(close, concurrency=10))
            await called.wait()
            if when == "after that":
                await consumer.aclose()
                closed.set()
            await running

    run(main)
    assert set(ended) == {None}


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer", "share"])
def test_what_a_closed_client_has_closed_can_be_closed(run, groups, kind):
    async def main():
        client = await open_client(groups)
        member = client.pull_consumer("G").share("T") if kind == "share" else getattr(client, kind)("G")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the end of the block is tested
            async with member:
                await client.aclose()
                raise ZeroDivisionError
        if kind != "share":
            await member.aclose()

    run(main)
