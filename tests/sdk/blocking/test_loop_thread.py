"""Calls into a loop that ends, or that their thread is interrupted in: each ends, and what it got is not lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import types

import pytest
import trio
from trio._core._wakeup_socketpair import WakeupSocketpair

import triomq
from triomq import errors
from triomq._blocking import loop_thread

WAIT_S = 30
"""Longer than anything here takes on a machine at a quarter of its speed."""


QUEUE = triomq.MessageQueue("T", "broker-a", 0)


@pytest.fixture
def client(system_cluster):
    system_cluster.broker.consumers.serves_groups = True
    for number in range(10):
        system_cluster.broker.store("T", 0, b"m%d" % number, b"")
    options = system_cluster.options()
    with triomq.blocking.open_client(system_cluster.name_server.address, **options) as client:
        yield client


@pytest.fixture
def interrupt_at_end(monkeypatch):
    """A block whose call is interrupted when its result is there, before its thread has it."""
    main = threading.main_thread().ident
    set_end = loop_thread.Call._set_end
    armed = []

    def interrupt_and_set(call, end):
        if armed:
            armed.clear()
            signal.pthread_kill(main, signal.SIGINT)
        set_end(call, end)

    @contextlib.contextmanager
    def interrupt():
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            yield
        assert not armed

    monkeypatch.setattr(loop_thread.Call, "_set_end", interrupt_and_set)
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield interrupt
    signal.signal(signal.SIGINT, inherited)


async def five():
    await trio.lowlevel.checkpoint()
    return 5


def test_a_call_while_the_loop_ends_is_an_error():
    ending, queued = threading.Event(), threading.Event()
    generators, ended = [], []

    async def last():
        try:
            yield
        finally:
            # No task can be started any more, and what other threads queue is still called.
            ending.set()
            queued.wait(WAIT_S)

    @contextlib.asynccontextmanager
    async def session():
        generators.append(last())
        await anext(generators[0])
        yield

    class Token:
        def __init__(self, token):
            self.token = token

        def run_sync_soon(self, *job):
            self.token.run_sync_soon(*job)
            if ending.is_set():
                queued.set()

    def call():
        try:
            thread.call(five)
        except errors.ClientClosed as error:
            ended.append(error)

    thread = loop_thread.LoopThread(session, name="triomq")
    thread._token = Token(thread._token)
    closing = threading.Thread(target=thread.close)
    closing.start()
    assert ending.wait(WAIT_S)
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(WAIT_S)
    closing.join(WAIT_S)
    assert len(ended) == 1


def test_an_end_that_is_there_ends_an_interrupted_call():
    """The interrupt comes between the end of the wait and the check of its outcome."""

    class Interrupted:
        def __init__(self, lock):
            self.release = lock.release
            self.lock = lock

        def acquire(self, timeout):
            waits.set()
            if self.lock.acquire(timeout=timeout):
                raise KeyboardInterrupt

    async def run():
        await trio.to_thread.run_sync(waits.wait, WAIT_S)
        return 5

    async def give_back(result):
        given_back.append(result)
        await trio.lowlevel.checkpoint()

    @contextlib.asynccontextmanager
    async def session():
        yield

    waits, given_back, ended = threading.Event(), [], []
    thread = loop_thread.LoopThread(session, name="triomq")
    call = loop_thread.Call(run, give_back)
    call._running = Interrupted(call._running)

    def wait():
        with pytest.raises(KeyboardInterrupt):
            call.wait(thread._token)
        ended.append(True)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WAIT_S)
    thread.close()
    assert ended
    assert given_back == [5]


def test_an_interrupted_poll_is_polled_again(client, system_cluster, interrupt_at_end):
    with client.lite_pull_consumer("G", start_from="earliest", batch_max=4) as consumer:
        consumer.assign([QUEUE])
        assert [message.queue_offset for message in consumer.poll()] == [0, 1, 2, 3]
        with interrupt_at_end():
            consumer.poll()
        consumer.commit()
        assert system_cluster.broker.offsets["G", "T", 0] == 4
        assert [message.queue_offset for message in consumer.poll()] == [4, 5, 6, 7]
        consumer.seek(QUEUE, 2)
        messages = iter(consumer)
        assert next(messages).queue_offset == 2
        with interrupt_at_end():
            next(messages)
        assert [next(iter(consumer)).queue_offset for _ in range(4)] == [3, 4, 5, 6]


@pytest.mark.parametrize("take", [lambda consumer: consumer.poll(WAIT_S), lambda consumer: next(iter(consumer))])
def test_an_interrupted_delivery_is_given_out_again(client, interrupt_at_end, take):
    with client.push_consumer("G", start_from="earliest", drain_s=0.5) as consumer:
        consumer.subscribe("T")
        offsets = []
        for _ in range(2):
            with interrupt_at_end():
                take(consumer)
            with take(consumer) as message:
                offsets.append(message.queue_offset)
    assert offsets == [0, 1]


def test_an_interrupted_pull_leaves_the_position(client, interrupt_at_end):
    consumer = client.pull_consumer("G")
    for first in (0, 4):
        with interrupt_at_end():
            consumer.pull(QUEUE, max_messages=4)
        assert consumer.position(QUEUE) == first
        assert [message.queue_offset for message in consumer.pull(QUEUE, max_messages=4)] == [*range(first, first + 4)]
    with interrupt_at_end():
        consumer.pull(QUEUE, 0)
    assert consumer.position(QUEUE) == 8
    with consumer.share("T", max_messages=4) as pulls:
        first = next(pulls).messages[0].queue_offset
        with interrupt_at_end():
            next(pulls)
        assert next(pulls).messages[0].queue_offset == first + 4


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_what_an_interrupted_call_has_made_is_got_by_the_next(client, interrupt_at_end, kind):
    with interrupt_at_end():
        getattr(client, kind)("P")
    assert getattr(client, kind)("P") is getattr(client, kind)("P")


def test_an_interrupted_entry_of_a_share_is_left(client, interrupt_at_end):
    consumer = client.pull_consumer("G")
    pulls = consumer.share("T")
    with interrupt_at_end(), pulls:
        raise AssertionError("it was not entered")
    assert consumer._call_plain(lambda core: core._shares) == []
    with consumer.share("T") as pulls:
        assert next(pulls)


def test_an_interrupted_entry_of_a_push_consumer_is_left(client, interrupt_at_end):
    consumer = client.push_consumer("G", start_from="earliest")
    with interrupt_at_end(), consumer:
        raise AssertionError("it was not entered")
    assert consumer._call_plain(lambda core: core._member.closed)
    with client.push_consumer("G", start_from="earliest") as again:  # the group is free
        again.subscribe("T")
        delivery = again.poll(WAIT_S)
        assert delivery is not None
        delivery.done()


@pytest.mark.parametrize("patched", ["threading", "select"])
def test_a_process_whose_threads_are_greenlets_is_refused(monkeypatch, system_cluster, patched):
    monkey = types.SimpleNamespace(is_module_patched=lambda name: name == patched)
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)
    options = system_cluster.options()
    with pytest.raises(errors.InvalidCall, match=r"gevent has replaced the threads .* use workers with threads"):
        triomq.blocking.open_client(system_cluster.name_server.address, **options)
    # Imported, as by another library, it does no harm.
    monkey.is_module_patched = lambda _: False
    triomq.blocking.open_client(system_cluster.name_server.address, **options).close()


def test_a_signal_handler_closes_a_client_while_a_call_is_queued(client, monkeypatch):
    """A lock that trio takes to queue the call is held by the thread meanwhile, and the loop's end needs it."""
    monkeypatch.setattr(loop_thread, "JOIN_TIMEOUT_S", 100 * WAIT_S)
    wakeup = WakeupSocketpair.wakeup_thread_and_signal_safe
    producer = client.producer("P")
    sent = []

    def wake(pair):
        wakeup(pair)
        if threading.current_thread() is thread:
            monkeypatch.setattr(WakeupSocketpair, "wakeup_thread_and_signal_safe", wakeup)
            producer.send(triomq.Message("T", b"of the handler"), lambda _, error: sent.append(error), queue=QUEUE)
            client.close()
            sent.append("closed")

    def call():
        with contextlib.suppress(errors.ClientClosed):
            producer.send(triomq.Message("T", b"one"), queue=QUEUE)

    thread = threading.Thread(target=call, daemon=True)
    monkeypatch.setattr(WakeupSocketpair, "wakeup_thread_and_signal_safe", wake)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert sent == [None, "closed"]


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_signal_handler_makes_the_producer_whose_making_it_interrupts(client, monkeypatch, is_queued):
    """As one that sends a last message, when the program sends its first."""
    queue, made = loop_thread._queue, []

    def queue_and_handle(token, function, *args):
        monkeypatch.setattr(loop_thread, "_queue", queue)
        if is_queued:
            queue(token, function, *args)
        made.append(client.producer("P"))
        made[0].send(triomq.Message("T", b"of the handler"), queue=QUEUE)
        if not is_queued:
            queue(token, function, *args)

    monkeypatch.setattr(loop_thread, "_queue", queue_and_handle)
    producer = client.producer("P")
    assert made == [producer]
    assert client.producer("P") is producer
    producer.send(triomq.Message("T", b"one"), queue=QUEUE)
