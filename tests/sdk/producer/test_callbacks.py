"""Sends with a callback: each is called exactly once, in every case."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq import errors
from triomq._message.repeated_failures import LINES_MAX
from triomq_protocol.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


async def warm_up(client, group="G", **options):
    producer = client.producer(group, **options)
    await producer.send(triomq.Message("T", b"warm"))
    return producer


async def test_success(autojump_clock, cluster, make_callback):
    callbacks = [make_callback() for _ in range(200)]
    async with cluster.client() as client:
        producer = await warm_up(client)
        for number, callback in enumerate(callbacks):
            assert await producer.send(triomq.Message("T", b"%d" % number), callback) is None
        await producer.flush()
        assert producer.in_flight == 0
    assert all(len(callback.results) == 1 and not callback.errors for callback in callbacks)
    assert sorted(cluster.broker.bodies("T"), key=lambda b: b.zfill(4))[:-1] == [b"%d" % n for n in range(200)]
    # Every callback got its own message.
    ids = {callback.results[0].message_id for callback in callbacks}
    assert len(ids) == 200


async def test_the_first_send_of_all_needs_no_warm_up_and_keeps_order(autojump_clock, cluster, make_callback):
    queue = triomq.MessageQueue("T", "broker-a", 0)
    async with cluster.client() as client:
        producer = client.producer("G")
        for number in range(20):
            await producer.send(triomq.Message("T", b"%d" % number), make_callback(), queue=queue)
        await producer.flush()
    assert cluster.broker.stored["T", 0] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_a_function_is_called_once_with_result_or_error(autojump_clock, cluster, colour):
    calls = []

    def plain(result, error):
        calls.append((result, error))

    async def with_a_pause(result, error):
        await trio.sleep(1)
        calls.append((result, error))

    callback = plain if colour == "plain" else with_a_pause
    async with cluster.client() as client:
        producer = await warm_up(client)
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
        ((result, error),) = calls
        assert (result.status, error) == (triomq.SendStatus.SEND_OK, None)
        calls.clear()
        cluster.broker.script(SEND, lambda command: command.answer(13, "no"))
        await producer.send(triomq.Message("T", b"y"), callback)
        await producer.flush()
        ((result, error),) = calls
        assert (result, error.code) == (None, 13)
    assert len(calls) == 1


@pytest.mark.parametrize("colour", ["plain", "async"])
@pytest.mark.parametrize("linger_s", [0.0, None], ids=["merged", "alone"])
async def test_a_callback_that_fails_for_each_message_is_a_few_lines(autojump_clock, cluster, caplog, colour, linger_s):
    def plain(_result, _error):
        raise ValueError("no")

    async def awaited(_result, _error):
        raise ValueError("no")

    async with cluster.client() as client:
        producer = await warm_up(client, linger_s=linger_s)
        for number in range(100):
            await producer.send(triomq.Message("T", b"%d" % number), plain if colour == "plain" else awaited)
        await producer.flush()
    failed = [record for record in caplog.records if "the callback of message" in record.getMessage()]
    assert len(failed) == LINES_MAX
    assert [bool(record.exc_info) for record in failed] == [True] + [False] * (LINES_MAX - 1)


async def test_a_function_is_called_once_when_the_producer_closes_before_the_answer(autojump_clock, cluster):
    async def late(command):
        await trio.sleep(1)
        return cluster.broker.send(command)

    calls = []
    async with cluster.client() as client:
        producer = await warm_up(client)
        cluster.broker.script(SEND, late)
        await producer.send(triomq.Message("T", b"x"), lambda result, error: calls.append((result, error)))
        producer.abort()
        await trio.sleep(2)
    ((result, error),) = calls
    assert result is None
    assert isinstance(error, errors.ClientClosed)


@pytest.mark.parametrize("code", [2, 13])
async def test_refusal(autojump_clock, cluster, make_callback, code):
    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client)
        cluster.broker.script(SEND, lambda command: command.answer(code, "no"))
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
    (error,) = callback.errors
    assert error.code == code
    assert len(error.attempts) == 1
    assert not callback.results


async def test_a_retry_is_sent_to_the_other_broker(autojump_clock, cluster, make_callback):
    other = cluster.add_master("broker-b")
    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client)
        for broker in (cluster.broker, other):
            broker.seen.clear()
            broker.script(SEND, lambda command: command.answer(14, "stopping"))
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
    (result,) = callback.results
    assert result.status is triomq.SendStatus.SEND_OK
    assert len(cluster.broker.requests(SEND)) + len(other.requests(SEND)) == 3


async def test_the_error_lists_all_attempts(autojump_clock, cluster, make_callback):
    callback = make_callback()
    async with cluster.client(route_wait_s=0) as client:
        producer = await warm_up(client)
        cluster.broker.script(SEND, *[lambda command: command.answer(14, "stopping")] * 3)
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
    (error,) = callback.errors
    assert isinstance(error, errors.BrokerUnavailable)
    assert [attempt.address for attempt in error.attempts] == [cluster.broker.address] * 3


async def test_link_loss_fails_all_once(autojump_clock, cluster, make_callback):
    callbacks = [make_callback() for _ in range(50)]
    async with cluster.client() as client:
        producer = await warm_up(client, retry=triomq.plugins.Retries(attempts=1))
        for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):
            cluster.broker.script(code, *[None] * 50)
        started = trio.current_time()
        for callback in callbacks:
            await producer.send(triomq.Message("T", b"x"), callback)
        await trio.sleep(0.1)
        assert producer.in_flight == 50
        await cluster.broker.stop()
        await producer.flush()
        assert trio.current_time() - started == pytest.approx(0.1)
    assert all(isinstance(callback.errors[0], errors.LinkLost) for callback in callbacks)
    assert all(len(callback) == 1 for callback in callbacks)


async def test_a_dead_broker_from_the_start(autojump_clock, cluster, make_callback):
    await cluster.broker.stop()
    callback = make_callback()
    async with cluster.client(route_wait_s=0) as client:
        await client.producer("G").send(triomq.Message("T", b"x"), callback)
    (error,) = callback.errors
    assert isinstance(error, errors.ConnectFailed)
    assert len(error.attempts) == 3


async def test_a_producer_that_closes_by_force_between_two_attempts(autojump_clock, cluster, make_callback):
    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client, retry=triomq.plugins.Retries(first_pause_s=1.0))
        cluster.broker.seen.clear()
        cluster.broker.script(SEND, lambda command: command.answer(14, "stopping"))
        await producer.send(triomq.Message("T", b"x"), callback)
        await trio.sleep(0.1)
        producer.abort()
        await trio.sleep(5)
    (error,) = callback.errors
    assert isinstance(error, errors.ClientClosed)
    assert not callback.results


async def test_deadline(autojump_clock, cluster, make_callback):
    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client, send_timeout_s=1.0)
        cluster.broker.script(SEND, None, None, None)
        started = trio.current_time()
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
        assert trio.current_time() - started == pytest.approx(1.0)
    assert isinstance(callback.errors[0], errors.RequestTimeout)


async def test_closing_waits_for_answers(autojump_clock, cluster, make_callback):
    async def late(command):
        await trio.sleep(1)
        return cluster.broker.send(command)

    callback = make_callback()
    async with cluster.client() as client:
        async with client.producer("G") as producer:
            cluster.broker.script(SEND, late)
            await producer.send(triomq.Message("T", b"x"), callback)
        assert len(callback.results) == 1
        with pytest.raises(errors.ClientClosed):
            await producer.send(triomq.Message("T", b"x"), callback)
    assert len(callback) == 1


async def test_closing_leaves_time_for_retries(autojump_clock, cluster, make_callback):
    async def refuse_late(command):
        await trio.sleep(0.5)
        return command.answer(14, "not now")

    callback = make_callback()
    async with cluster.client() as client:
        async with client.producer("G") as producer:
            cluster.broker.script(SEND, refuse_late)
            await producer.send(triomq.Message("T", b"x"), callback)
        assert len(callback.results) == 1


@pytest.mark.parametrize("how", ["producer", "client", "cancel"])
async def test_a_failing_block_fails_what_is_in_flight_once(autojump_clock, cluster, make_callback, how):
    callbacks = [make_callback() for _ in range(5)]

    async def work():
        async with cluster.client() as client:
            producer = await warm_up(client)
            cluster.broker.script(SEND, *[None] * 5)
            if how == "producer":
                async with producer:
                    await fill(producer)
                    raise ZeroDivisionError
            await fill(producer)
            if how == "client":
                raise ZeroDivisionError
            scope.cancel()
            await trio.sleep_forever()

    async def fill(producer):
        for callback in callbacks:
            await producer.send(triomq.Message("T", b"x"), callback)

    with trio.CancelScope() as scope:
        if how == "cancel":
            await work()
        else:
            with pytest.raises(ZeroDivisionError):  # as it is, not in a group
                await work()
    assert all(len(callback) == 1 for callback in callbacks)
    assert all(isinstance(callback.errors[0], errors.ClientClosed) for callback in callbacks)


async def test_an_answer_after_the_abort_changes_nothing(autojump_clock, cluster, make_callback):
    async def late(command):
        await trio.sleep(1)
        return cluster.broker.send(command)

    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client)
        cluster.broker.script(SEND, late)
        await producer.send(triomq.Message("T", b"x"), callback)
        await trio.sleep(0.1)
        producer.abort()
        await trio.sleep(2)
    assert len(callback.errors) == 1
    assert not callback.results


async def test_async_callbacks_run_to_their_end_before_the_producer_closes(autojump_clock, cluster):
    events = []

    class Slow:
        async def on_success(self, result):
            events.append("begin")
            await trio.sleep(1)
            events.append("end")

        async def on_exception(self, error):
            events.append(error)

    async with cluster.client() as client:
        async with client.producer("G") as producer:
            await producer.send(triomq.Message("T", b"x"), Slow())
            await trio.sleep(0.5)
            assert producer.in_flight == 1
        assert events == ["begin", "end"]


async def test_async_callbacks_of_an_aborted_producer_get_some_time(autojump_clock, cluster):
    events = []

    class Slow:
        def __init__(self, pause):
            self.pause = pause

        async def on_success(self, result):
            raise AssertionError

        async def on_exception(self, error):
            await trio.sleep(self.pause)
            events.append(self.pause)

    async def work():
        async with cluster.client() as client:
            producer = await warm_up(client)
            cluster.broker.script(SEND, None, None)
            await producer.send(triomq.Message("T", b"x"), Slow(1))
            await producer.send(triomq.Message("T", b"x"), Slow(1000))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert events == [1]
    assert trio.current_time() == pytest.approx(5)


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_a_raising_callback_affects_no_other(autojump_clock, cluster, make_callback, caplog, colour):
    class Plain:
        def on_success(self, result):
            raise RuntimeError("its own fault")

        on_exception = on_success

    class Async:
        async def on_success(self, result):
            raise RuntimeError("its own fault")

        on_exception = on_success

    good = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client)
        await producer.send(triomq.Message("T", b"x"), Plain() if colour == "plain" else Async())
        await producer.send(triomq.Message("T", b"y"), good)
        await producer.flush()
    assert len(good.results) == 1
    assert "its own fault" in caplog.text


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [({"max_in_flight": 3}, 3), ({"max_in_flight_bytes": 25}, 2), ({"max_in_flight_bytes": 5}, 1)],
)
async def test_back_pressure(autojump_clock, cluster, make_callback, limits, allowed):
    async def late(command):
        await trio.sleep(1)
        return cluster.broker.send(command)

    callbacks = [make_callback() for _ in range(allowed + 1)]
    async with cluster.client() as client:
        producer = await warm_up(client, **limits)
        for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):
            cluster.broker.script(code, *[late] * (allowed + 1))
        started = trio.current_time()
        for callback in callbacks[:-1]:
            await producer.send(triomq.Message("T", b"x" * 10), callback)
        assert trio.current_time() == started
        with trio.move_on_after(0.5) as scope:
            await producer.send(triomq.Message("T", b"x" * 10), callbacks[-1])
        assert scope.cancelled_caught
        await producer.send(triomq.Message("T", b"x" * 10), callbacks[-1])
        assert trio.current_time() - started == pytest.approx(1)
        await producer.flush()
    assert all(len(callback.results) == 1 for callback in callbacks)


async def test_waiting_for_capacity_ends_when_the_producer_closes(autojump_clock, cluster, make_callback):
    waiting = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client, max_in_flight=1)
        cluster.broker.script(SEND, None)
        await producer.send(triomq.Message("T", b"x"), make_callback())
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait():
                with pytest.raises(errors.ClientClosed):
                    await producer.send(triomq.Message("T", b"y"), waiting)

            await trio.sleep(0.1)
            producer.abort()
    assert len(waiting) == 0


async def test_a_long_run_of_sends_lets_others_run(autojump_clock, cluster, make_callback):
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = await warm_up(client)
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        before = turns
        for _ in range(320):
            await producer.send(triomq.Message("T", b"x"), make_callback())
        assert turns - before >= 9
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "form", ["awaited", "awaited-retried", "callback", "callback-cold", "oneway", "batch", "selector"]
)
async def test_cancel_at_every_await(autojump_clock, cluster, make_callback, cancel_at_step, form):
    """Wherever a send is cancelled, its callback is called at most once, and exactly once if it was accepted."""
    step, finished = 0, False
    while not finished:
        step += 1
        assert step < 200
        callback, accepted = make_callback(), False
        async with cluster.client() as client:
            producer = client.producer(f"G{step}", max_in_flight=2)
            if form != "callback-cold":
                await producer.send(triomq.Message("T", b"warm"))
            message = triomq.Message("T", b"x")
            with cancel_at_step(step) as cancel:
                if form.startswith("awaited"):
                    if form == "awaited-retried":
                        cluster.broker.script(SEND, lambda command: command.answer(14, "not now"))
                    await producer.send(message)
                elif form == "oneway":
                    await producer.send_oneway(message)
                elif form == "batch":
                    await producer.send_batch([message, message])
                elif form == "selector":
                    await producer.send(message, callback, selector=triomq.plugins.select_by_hash, arg="a")
                    accepted = True
                else:
                    for _ in range(4):
                        each = make_callback()
                        callback, accepted = each, False
                        await producer.send(message, each)
                        accepted = True
                finished = True
            finished = finished and not cancel.scope.cancelled_caught
            await producer.send(triomq.Message("T", b"after"))
            await producer.flush()
            assert producer.in_flight == 0
        assert len(callback) == accepted


async def test_hundreds_at_once_are_called_once_though_the_broker_dies_and_comes_back(
    autojump_clock, cluster, make_callback
):
    other = cluster.add_master("broker-b")
    callbacks = [make_callback() for _ in range(300)]

    async def die_and_come_back():
        for _ in range(3):
            await trio.sleep(0.05)
            await cluster.broker.stop()
            await trio.sleep(0.05)
            cluster.broker.up = True

    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = await warm_up(client, max_in_flight=16)
        nursery.start_soon(die_and_come_back)
        for callback in callbacks:
            await producer.send(triomq.Message("T", b"x"), callback)
            await trio.sleep(0.001)
        await producer.flush()
    assert all(len(callback) == 1 for callback in callbacks)
    assert all(callback.results for callback in callbacks)
    assert len(cluster.broker.bodies("T")) + len(other.bodies("T")) >= 301


async def test_sending_is_a_cancellation_point_even_when_nothing_waits(autojump_clock, cluster, make_callback):
    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client)
        cluster.broker.seen.clear()
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.send(triomq.Message("T", b"x"), callback)
        assert scope.cancelled_caught
        await producer.flush()
    assert len(callback) == 0
    assert not cluster.broker.requests(SEND)


@pytest.mark.parametrize("form", ["callback", "awaited"])
async def test_a_send_that_was_written_when_the_client_closed_may_be_stored(
    autojump_clock, cluster, make_callback, form
):
    failures = []

    async def send(producer, body):
        try:
            await producer.send(triomq.Message("T", body))
        except errors.MQError as error:
            failures.append(error)

    async def use_and_fail(nursery):
        async with cluster.client() as client:
            producer = await warm_up(client)
            producers.append(producer)
            cluster.broker.script(SEND, None)
            if form == "callback":
                await producer.send(triomq.Message("T", b"x"), callback)
            else:
                nursery.start_soon(send, producer, b"x")
            await trio.testing.wait_all_tasks_blocked()
            raise RuntimeError("the end")

    producers = []
    callback = make_callback()
    async with trio.open_nursery() as nursery:
        with pytest.raises(RuntimeError, match="the end"):
            await use_and_fail(nursery)
    (error,) = callback.errors or failures
    assert isinstance(error, errors.ClientClosed)
    assert "the outcome is unknown" in str(error)
    with pytest.raises(errors.ClientClosed) as caught:
        await producers[0].send(triomq.Message("T", b"y"))
    assert "unknown" not in str(caught.value)


@pytest.mark.parametrize("linger_s", [0.0, None])
@pytest.mark.parametrize("end", ["stored", "link lost", "producer closed"])
async def test_a_callback_that_ends_the_program_is_not_the_last_one_called(autojump_clock, cluster, end, linger_s):
    calls = []

    def callback(result, error):
        calls.append(result or error)
        if len(calls) == 2:
            raise SystemExit(3)

    async def silent(_command):
        await trio.sleep(5)
        if end == "link lost":
            await cluster.broker.cut()

    producer = None

    async def send():
        nonlocal producer
        async with cluster.client() as client:
            producer = client.producer("P", linger_s=linger_s)
            await producer.send(triomq.Message("T", b"first"))
            if end != "stored":
                cluster.broker.script(SEND, *[silent] * 5)
                cluster.broker.script(BATCH, *[silent] * 5)
                cluster.broker.up = False
            for number in range(5):
                await producer.send(triomq.Message("T", b"m%d" % number), callback)
            await trio.sleep(1)
            if end == "producer closed":
                producer.abort()
            await producer.flush()

    with pytest.raises(SystemExit):
        await send()
    assert len(calls) == 5
    assert producer.in_flight == 0


@pytest.mark.parametrize("name", ["flush", "aclose"])
async def test_a_callback_that_would_wait_for_itself_is_refused(autojump_clock, cluster, caplog, name):
    """It would never end, and with it neither would the end of its producer."""
    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = await warm_up(client)

        async def wait_here(_result, _error):
            await getattr(producer, name)()

        async def wait_elsewhere(_result, _error):
            nursery.start_soon(getattr(producer, name))
            called.set()

        called = trio.Event()
        with trio.fail_after(60):
            await producer.send(triomq.Message("T", b"x"), wait_here)
            await producer.flush()
            await producer.send(triomq.Message("T", b"x"), wait_elsewhere)
            await called.wait()
    (record,) = [each for each in caplog.records if each.exc_info]
    assert isinstance(record.exc_info[1], errors.InvalidCall)
    assert f"{name}() waits for all callbacks" in str(record.exc_info[1])
