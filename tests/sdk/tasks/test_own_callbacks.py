"""Callbacks, handlers and checks that close the object which has called them: refused at once, and no end hangs."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq import errors


def closes(calls, close, *, also=lambda: None):
    """An async callback that records how it was refused; once."""

    async def callback(*_args):
        if calls:
            return
        calls.append(None)
        try:
            await close()
        except errors.InvalidCall as error:
            calls[0] = str(error)
        also()

    return callback


def closes_in_nursery(close):
    """The same from a task which the callback waits for."""

    async def inner():
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close)
        except* errors.InvalidCall as group:
            raise group.exceptions[0] from None

    return inner


@pytest.fixture(params=["itself", "its nursery"])
def where(request):
    return closes_in_nursery if request.param == "its nursery" else lambda close: close


@pytest.mark.parametrize("kind", ["push", "lite"])
@pytest.mark.parametrize("what", ["consumer", "client"])
@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
async def test_a_consumer_s_callback(autojump_clock, group_cluster, kind, what, name, where):
    calls = []
    with trio.fail_after(120):
        async with group_cluster.client() as client:
            close = where(lambda: (client if what == "client" else consumer).aclose())
            callbacks = triomq.ConsumerCallbacks(**{name: closes(calls, close)})
            make = client.push_consumer if kind == "push" else client.lite_pull_consumer
            async with make("G", callbacks=callbacks) as consumer:
                await consumer.subscribe("T")
                await trio.sleep(5)
                await consumer.unsubscribe("T")
                await trio.sleep(25)
                # Nothing has begun to close.
                await consumer.subscribe("T")
    assert "waits for all callbacks, so a callback cannot wait for it" in calls[0]
    assert ("drain()" in calls[0]) == (kind == "push")


async def test_the_callback_of_an_assignment_by_hand(autojump_clock, group_cluster):
    """It runs in the task of the caller, whose other tasks may close the consumer."""
    calls = []
    begun, closing = trio.Event(), trio.Event()

    async def refused():
        await closes(calls, consumer.aclose)()
        begun.set()
        await closing.wait()

    async def close_elsewhere():
        await begun.wait()
        closing.set()
        await consumer.aclose()

    async with group_cluster.client() as client:
        callbacks = triomq.ConsumerCallbacks(on_assigned=lambda _queues: refused())
        consumer = client.lite_pull_consumer("G", callbacks=callbacks)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close_elsewhere)
                await consumer.assign([triomq.MessageQueue("T", "broker-a", 0)])
    assert "waits for all callbacks" in calls[0]


async def run_handler(cluster, what, where, *, plain=False, ordered=False):
    cluster.broker.store("T", 0, b"x")
    calls = []
    async with (
        cluster.client() as client,
        client.push_consumer("G", start_from="earliest", ordered=ordered) as consumer,
    ):
        close = where(lambda: (client if what == "client" else consumer).aclose())
        handler = closes(calls, close, also=consumer.drain)
        await consumer.subscribe("T")
        with trio.fail_after(8):  # less than `drain_s`
            await consumer.run((lambda message: trio.from_thread.run(handler, message)) if plain else handler)
    assert "call drain()" in calls[0]


@pytest.mark.parametrize("what", ["consumer", "client"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_handler(autojump_clock, group_cluster, what, ordered, where):
    await run_handler(group_cluster, what, where, ordered=ordered)


@pytest.mark.parametrize("what", ["consumer", "client"])
async def test_a_plain_handler(group_cluster, what, where):
    """In real time: the virtual clock does not wait for threads."""
    await run_handler(group_cluster, what, where, plain=True)


async def test_a_handler_closes_others(autojump_clock, group_cluster):
    group_cluster.broker.store("T", 0, b"x")

    async def handler(_message):
        await producer.aclose()
        await other.aclose()
        consumer.drain()

    async with group_cluster.client() as client:
        producer = client.producer("P")
        async with (
            client.push_consumer("H") as other,
            client.push_consumer("G", start_from="earliest") as consumer,
        ):
            await consumer.subscribe("T")
            with trio.fail_after(60):
                await consumer.run(handler)
        with pytest.raises(errors.ClientClosed):
            await producer.send(triomq.Message("T", b"x"))
        with pytest.raises(errors.ClientClosed):
            await other.subscribe("T")


@pytest.mark.parametrize("what", ["flush", "aclose", "client"])
async def test_a_send_s_callback(autojump_clock, cluster, what, where):
    calls = []
    with trio.fail_after(60):
        async with cluster.client() as client, client.producer("P") as producer:
            close = where(client.aclose if what == "client" else getattr(producer, what))
            await producer.send(triomq.Message("T", b"x"), closes(calls, close))
            await producer.flush()
            # Nothing has begun to close.
            await producer.send(triomq.Message("T", b"x"))
    assert "waits for all callbacks" in calls[0]


async def test_a_callback_that_waits_for_another_task_which_closes(autojump_clock, group_cluster, caplog):
    """That cannot be refused. It is shielded here, so that it ends only after the consumer."""
    closed = trio.Event()

    async def close():
        try:
            await consumer.aclose()
        finally:
            closed.set()

    async def wait(_queues):
        nursery.start_soon(close)
        with trio.CancelScope(shield=True):
            await closed.wait()

    async with group_cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.lite_pull_consumer("G", callbacks=triomq.ConsumerCallbacks(on_assigned=wait))
        await consumer.subscribe("T")
        with trio.fail_after(60):
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()
    assert closed.is_set()
    assert "a callback of consumer group G still runs" in caplog.text


@pytest.mark.parametrize("what", ["flush", "producer", "client"])
async def test_a_send_s_callback_that_waits_for_another_task(autojump_clock, group_cluster, what):
    """The task need not wait for the callback that has started it, and waits for all else."""
    log = []

    async def other(*_args):
        await trio.sleep(1)
        log.append("other")

    async def callback(*_args):
        done = trio.Event()

        async def end():
            await {"flush": producer.flush, "producer": producer.aclose, "client": client.aclose}[what]()
            log.append(what)
            done.set()

        nursery.start_soon(end)
        try:
            await done.wait()
        finally:
            log.append("callback")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, group_cluster.client() as client:
            producer = client.producer("P")
            await producer.send(triomq.Message("T", b"x"), other)
            await producer.send(triomq.Message("T", b"x"), callback)
            await trio.sleep(30)
    # An end cancels the callback after the 5 s that callbacks get.
    assert log == (["other", "flush", "callback"] if what == "flush" else ["other", "callback", what])


@pytest.mark.parametrize("what", ["consumer", "client"])
async def test_the_end_of_a_client_waits_for_ends_in_other_tasks(autojump_clock, group_cluster, what):
    """It closed the links, so that the results of handlers which still ran were lost."""
    group_cluster.broker.store("T", 0, b"x", b"")
    begun, handled = trio.Event(), []

    async def handle(_message):
        begun.set()
        await trio.sleep(2)
        handled.append(True)

    async with (
        group_cluster.client() as client,
        client.push_consumer("G", start_from="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handle)
        await begun.wait()
        nursery.start_soon((consumer if what == "consumer" else client).aclose)
        await trio.testing.wait_all_tasks_blocked()
        await client.aclose()
        assert handled
        assert group_cluster.broker.offsets["G", "T", 0] == 1


@pytest.mark.parametrize("first", ["consumer", "client"])
async def test_on_revoked_that_waits_for_a_task_which_closes_the_client(autojump_clock, group_cluster, first):
    """The end of the consumer waits for the callback without a limit."""
    revoked = []

    async def on_revoked(queues):
        done = trio.Event()

        async def end():
            await client.aclose()
            done.set()

        nursery.start_soon(end)
        await done.wait()
        revoked.extend(queues)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, group_cluster.client() as client:
            callbacks = triomq.ConsumerCallbacks(on_revoked=on_revoked)
            consumer = client.lite_pull_consumer("G", callbacks=callbacks)
            await consumer.subscribe("T")
            await trio.sleep(5)
            await (consumer if first == "consumer" else client).aclose()
    assert revoked
