"""Sends with a callback that share requests: each has its own result or error, and its place."""

from __future__ import annotations

import random
import threading

import pytest
import trio

import triomq
from triomq import errors
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.merging import BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGES_MAX, REFUSED_S, may_merge
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.record.batch import split_batch
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.send import SendMessageRequestV2

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
QUEUE = triomq.MessageQueue("T", "broker-a", 0)
pytestmark = pytest.mark.usefixtures("sends_twin")


async def merging_producer(client, *, linger_s=0, group="G", **options):
    options.setdefault("compressor", None)
    producer = client.producer(group, linger_s=linger_s, **options)
    await producer.send(triomq.Message("T", b"warm"), queue=triomq.MessageQueue("T", "broker-a", 1))
    return producer


def texts(count, size=0):
    return [(b"%d " % number).ljust(size, b".") for number in range(count)]


async def send_all(producer, bodies, make_callback, **options):
    callbacks = [make_callback() for _ in bodies]
    for body, callback in zip(bodies, callbacks, strict=True):
        await producer.send(triomq.Message("T", body), callback, **options)
    return callbacks


def element_counts(broker):
    """How many messages each request of sends has had, in order."""
    return [
        len(split_batch(command.body, b"").elements) if command.code == BATCH else 1
        for command in broker.seen
        if command.code in (SEND, BATCH)
    ][1:]


def outgoing(topic="T", body=b"x", properties="UNIQ_KEY\x01A\x02TAGS\x01t", **fields):
    out = Outgoing(topic, body, properties, "A", 0, 3.0)
    for name, value in fields.items():
        setattr(out, name, value)
    return out


@pytest.mark.parametrize(
    ("out", "merges"),
    [
        (outgoing(), True),
        (outgoing(flag=7), True),
        (outgoing(properties="mine\x01DELAY\x02UNIQ_KEY\x01A"), True),
        (outgoing(body=b"x" * MESSAGE_BYTES_MAX), False),
        (outgoing(properties="UNIQ_KEY\x01A\x02mine\x01" + "y" * MESSAGE_BYTES_MAX), False),
        (outgoing(topic="%RETRY%G"), False),
        (outgoing(topic="%LMQ%1"), False),
        (outgoing(sys_flag=1), False),
        (outgoing(retry=(1, 16)), False),
        (outgoing(code=BATCH), False),
        (outgoing(code=RequestCode.SEND_REPLY_MESSAGE_V2), False),
        (outgoing(properties="UNIQ_KEY\x01A\x02DELAY\x013"), False),
        (outgoing(properties="DELAY\x013\x02UNIQ_KEY\x01A"), False),
        (outgoing(properties="TIMER_DELAY_SEC\x013\x02UNIQ_KEY\x01A"), False),
        (outgoing(properties="UNIQ_KEY\x01A\x02TIMER_DELIVER_MS\x013"), False),
        (outgoing(properties="__STARTDELIVERTIME\x013\x02UNIQ_KEY\x01A"), False),
        (outgoing(properties="INNER_MULTI_DISPATCH\x01%LMQ%1\x02UNIQ_KEY\x01A"), False),
    ],
)
def test_what_may_share_a_request(out, merges):
    assert may_merge(out) is merges


@pytest.mark.parametrize("linger_s", [0, 1])
async def test_a_producer_starts_no_task_before_it_merges(autojump_clock, cluster, linger_s):
    async with cluster.client() as client:
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        producers = [client.producer(f"G{number}", linger_s=linger_s) for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        for producer in producers:
            await producer.aclose()


async def test_each_callback_gets_the_offset_of_its_message(autojump_clock, cluster, make_callback):
    bodies = texts(100)
    async with cluster.client() as client:
        producer = await merging_producer(client)
        callbacks = await send_all(producer, bodies, make_callback)
        await producer.flush()
    counts = element_counts(cluster.broker)
    assert sum(counts) == 100
    assert len(counts) < 10
    results = [result for callback in callbacks for result in callback.results]
    assert len(results) == len({result.message_id for result in results}) == 100
    for result, body in zip(results, bodies, strict=True):
        record = RecordView(cluster.broker.queues["T", result.queue.queue_id][result.queue_offset])
        assert record.body == body
        assert record.properties["UNIQ_KEY"] == result.message_id
        assert int(result.offset_message_id[16:], 16) == result.queue_offset  # as this broker numbers them
    # Each batch is the next queue's.
    assert {result.queue.queue_id for result in results} == {0, 1}


async def test_a_message_alone_is_no_batch(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        for number in range(3):
            await send_all(producer, [b"%d" % number], make_callback)
            await producer.flush()
    assert not cluster.broker.requests(BATCH)
    assert len(cluster.broker.requests(SEND)) == 4


async def test_without_the_option_each_message_has_its_request(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=None)
        await send_all(producer, texts(50), make_callback)
        await producer.flush()
    assert not cluster.broker.requests(BATCH)


@pytest.mark.parametrize("linger_s", [0, 0.5])
async def test_a_queue_keeps_the_order_of_all_kinds_of_sends(autojump_clock, cluster, make_callback, linger_s):
    chance = random.Random(14)
    sent = []
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=linger_s)
        for number in range(300):
            body = b"%d " % number
            kind = chance.choice(["plain"] * 12 + ["large", "delayed", "unsafe", "awaited", "oneway", "batch"])
            if kind == "large":
                body = body.ljust(MESSAGE_BYTES_MAX + 1, b".")
            message = triomq.Message(
                "T", body, delay_level=int(kind == "delayed"), wait_store_ok=kind != "unsafe", flag=number
            )
            sent.append(body)
            if kind == "awaited":
                await producer.send(message, queue=QUEUE)
            elif kind == "oneway":
                await producer.send_oneway(message, queue=QUEUE)
            elif kind == "batch":
                await producer.send_batch([message], queue=QUEUE)
            else:
                await producer.send(message, make_callback(), queue=QUEUE)
        await producer.flush()
    assert cluster.broker.stored["T", 0] == sent
    assert max(element_counts(cluster.broker)) > 3


async def test_the_batches_stay_within_their_limits(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=1)
        await send_all(producer, texts(MESSAGES_MAX * 2 + 5), make_callback, queue=QUEUE)
        await producer.flush()
        assert element_counts(cluster.broker) == [MESSAGES_MAX, MESSAGES_MAX, 5]
        cluster.broker.seen.clear()
        await send_all(producer, texts(45, 10_000), make_callback, queue=QUEUE)
        await producer.flush()
    sizes = [len(command.body) for command in cluster.broker.requests(BATCH)]
    assert len(sizes) == 4
    assert max(sizes) <= BYTES_MAX


async def test_messages_that_differ_in_what_a_batch_shares(autojump_clock, cluster, make_callback):
    cluster.name_server.add_route("U", cluster.broker)
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=1)
        await producer.send(triomq.Message("U", b"warm"))
        cluster.broker.seen.clear()
        for number in range(12):
            for topic in ("T", "U"):
                message = triomq.Message(topic, b"%d" % number, wait_store_ok=number < 6)
                queue = triomq.MessageQueue(topic, "broker-a", 0)
                await producer.send(message, make_callback(), queue=queue)
        await producer.flush()
    batches = [command.header(SendMessageRequestV2) for command in cluster.broker.requests(BATCH)]
    assert [(each.topic, each.properties) for each in batches] == [
        ("T", "WAIT\x01true"), ("U", "WAIT\x01true"), ("T", "WAIT\x01false"), ("U", "WAIT\x01false"),
    ]  # fmt: skip


async def test_messages_linger_for_so_long(autojump_clock, cluster):
    ended = []
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=0.5)
        started = trio.current_time()

        async def send(queue_id, *bodies):
            for body in bodies:
                await producer.send(
                    triomq.Message("T", body),
                    lambda result, error, body=body: ended.append((body, round(trio.current_time() - started, 1))),
                    queue=triomq.MessageQueue("T", "broker-a", queue_id),
                )

        await send(0, b"a", b"b")
        await trio.sleep(0.3)
        await send(0, b"c")
        await send(1, b"d", b"e")
        await trio.sleep(1)
    assert ended == [(b"a", 0.5), (b"b", 0.5), (b"c", 0.5), (b"d", 0.8), (b"e", 0.8)]
    assert element_counts(cluster.broker) == [3, 2]


async def test_neither_flush_nor_a_full_producer_waits_for_the_lingering(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=2.5, max_in_flight=5)
        started = trio.current_time()
        callbacks = await send_all(producer, texts(23), make_callback, queue=QUEUE)
        await producer.flush()
        assert trio.current_time() - started < 0.1
    assert all(len(callback.results) == 1 for callback in callbacks)


@pytest.mark.parametrize("code", [13, 3])
async def test_what_is_refused_as_a_batch_is_sent_alone(autojump_clock, cluster, make_callback, code):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        cluster.broker.script(BATCH, lambda command: command.answer(code, "no batches here"))
        cluster.broker.script(SEND, None, lambda command: command.answer(13, "not this one"))
        cluster.broker.scripts[SEND].popleft()
        callbacks = await send_all(producer, texts(10), make_callback, queue=QUEUE)
        await producer.flush()
        assert [len(callback.results) for callback in callbacks] == [0] + [1] * 9
        (error,) = callbacks[0].errors
        assert error.remark == "not this one"
        # For a while no batch is tried, and then again.
        for later, batches in ((0, 1), (REFUSED_S + 1, 2)):
            await trio.sleep(later)
            await send_all(producer, texts(10), make_callback, queue=QUEUE)
            await producer.flush()
            assert len(cluster.broker.requests(BATCH)) == batches
    assert cluster.broker.stored["T", 0] == texts(10)[1:] + texts(10) * 2


@pytest.mark.parametrize("later", ["later", "x" * 40_000], ids=["later", "too long"])
@pytest.mark.parametrize("code", [13, 14], ids=["refused", "failed"])
async def test_what_a_batch_has_sent_is_sent_again(autojump_clock, cluster, make_callback, properties_of, code, later):
    """A program may use one table of properties for many messages, and change it meanwhile."""
    properties, keys = {"n": "first"}, ["first"]
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=1)
        cluster.broker.script(BATCH, lambda command: command.answer(code, "no"))
        callbacks = [make_callback() for _ in range(4)]
        for callback in callbacks:
            await producer.send(triomq.Message("T", b"x", keys=keys, properties=properties), callback)
        properties["n"], keys[0] = later, later
        await producer.flush()
        assert all(len(callback.results) == 1 for callback in callbacks)
        ids = {callback.results[0].message_id for callback in callbacks}
    sent = [properties_of(command) for command in cluster.broker.requests(SEND)[1:]]
    assert {pairs.pop("UNIQ_KEY") for pairs in sent} == ids
    assert sent == [{"n": "first", "KEYS": "first"}] * 4


async def test_a_batch_that_fails_is_an_attempt_of_each_message(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        cluster.broker.script(BATCH, lambda command: command.answer(14, "stopping"))
        callbacks = await send_all(producer, texts(10), make_callback)
        await producer.flush()
        assert all(len(callback.results) == 1 for callback in callbacks)
        assert len(cluster.broker.requests(SEND)) == 11
        # To a given queue there is one attempt.
        cluster.broker.script(BATCH, lambda command: command.answer(2, "busy"))
        callbacks = await send_all(producer, texts(5), make_callback, queue=QUEUE)
        await producer.flush()
    # The first one has found the link idle, and went alone.
    assert [len(callback.results) for callback in callbacks] == [1, 0, 0, 0, 0]
    found = [error for callback in callbacks for error in callback.errors]
    assert [(error.code, error.remark, len(error.attempts)) for error in found] == [(2, "busy", 1)] * 4
    assert len({id(error) for error in found}) == len({id(error.__cause__) for error in found}) == 4
    assert len({str(error) for error in found}) == 4  # each names its message


async def test_a_lost_link_fails_each_message(autojump_clock, cluster, make_callback):
    async with cluster.client(route_wait_s=0) as client:
        producer = await merging_producer(client)
        cluster.broker.script(SEND, None)
        cluster.broker.script(BATCH, None)
        callbacks = await send_all(producer, texts(6), make_callback, queue=QUEUE)
        await trio.testing.wait_all_tasks_blocked()
        assert len(cluster.broker.requests(BATCH)) == 1
        await cluster.broker.cut()
        await producer.flush()
    for callback in callbacks:
        (error,) = callback.errors
        assert isinstance(error, errors.LinkLost)
        assert error.advice == errors.MAY_BE_STORED


async def test_no_answer_to_a_batch_is_a_timeout_of_each_message(autojump_clock, cluster, make_callback):
    async with cluster.client() as client:
        producer = await merging_producer(client, send_timeout_s=2)
        cluster.broker.script(SEND, None)
        cluster.broker.script(BATCH, None)
        started = trio.current_time()
        callbacks = await send_all(producer, texts(6), make_callback, queue=QUEUE)
        await producer.flush()
        assert trio.current_time() - started == pytest.approx(2, abs=0.1)
    assert [type(error) for callback in callbacks for error in callback.errors] == [errors.RequestTimeout] * 6


@pytest.mark.parametrize("written", [False, True])
async def test_an_abort_ends_each_send_once(autojump_clock, cluster, make_callback, written):
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=1)
        cluster.broker.script(BATCH, None)
        callbacks = await send_all(producer, texts(6), make_callback)
        if written:
            await trio.sleep(1.1)
        producer.abort()
        await trio.sleep(5)
        assert len(cluster.broker.requests(BATCH)) == written
    for callback in callbacks:
        (error,) = callback.errors
        assert isinstance(error, errors.ClientClosed)
        assert (error.advice == errors.MAY_BE_STORED) is written


async def test_a_callback_that_aborts_during_the_results(autojump_clock, cluster, make_callback):
    calls = []
    async with cluster.client() as client:
        producer = await merging_producer(client)

        def callback(result, error):
            calls.append((result, error))
            producer.abort()

        for body in texts(6):
            await producer.send(triomq.Message("T", body), callback)
        await trio.sleep(1)
    assert [result is not None for result, _ in calls] == [True] + [False] * 5
    assert {error.advice for _, error in calls[1:]} == {errors.MAY_BE_STORED}


async def test_hooks_see_each_message_and_may_send_it_alone(autojump_clock, cluster, make_callback):
    class Hook:
        def __init__(self):
            self.before, self.after = [], []

        def before_send(self, context):
            self.before.append((context.message.body, context.batch_count))
            name = "TIMER_DELAY_SEC" if context.message.body == b"3 " else "traceparent"
            return {name: "1"}

        def after_send(self, context, outcome):
            self.after.append((context.message_id, outcome.message_id))

    hook = Hook()
    async with cluster.client() as client:
        producer = await merging_producer(client, hooks=[hook], linger_s=1)
        hook.before.clear()
        hook.after.clear()
        await send_all(producer, texts(8), make_callback, queue=QUEUE)
        await producer.flush()
    assert hook.before == [(body, 1) for body in texts(8)]
    assert len(hook.after) == 8
    assert all(own == found for own, found in hook.after)
    assert element_counts(cluster.broker) == [3, 1, 4]
    assert cluster.broker.stored["T", 0] == texts(8)
    records = [RecordView(record).properties for record in cluster.broker.queues["T", 0]]
    assert ["traceparent" in each for each in records] == [True] * 3 + [False] + [True] * 4


@pytest.mark.parametrize("linger_s", [-1, float("nan"), "1", 3.0])
async def test_a_linger_time_that_is_refused(autojump_clock, cluster, linger_s):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="linger_s"):
            client.producer("G", linger_s=linger_s)


# --- awaited sends -----------------------------------------------------------------------------------------------


async def send_awaited(producer, bodies, **options):
    """Send each in a task of its own, over a link without other requests; returns what became of each."""
    await trio.testing.wait_all_tasks_blocked()
    ends = [None] * len(bodies)

    async def one(number, body):
        try:
            ends[number] = await producer.send(triomq.Message("T", body), **options)
        except errors.MQError as error:
            ends[number] = error

    async with trio.open_nursery() as nursery:
        for number, body in enumerate(bodies):
            nursery.start_soon(one, number, body)
    return ends


async def test_awaited_sends_of_many_tasks_share_requests(autojump_clock, cluster):
    bodies = texts(100)
    async with cluster.client() as client:
        producer = await merging_producer(client)
        results = await send_awaited(producer, bodies)
        assert producer.in_flight == 0
        (sends,) = client.statistics().sends
    counts = element_counts(cluster.broker)
    assert sum(counts) == 100
    assert max(counts) > 10
    assert sends.stored == 101
    assert len({result.message_id for result in results}) == 100
    for body, result in zip(bodies, results, strict=True):
        assert cluster.broker.stored["T", result.queue.queue_id][result.queue_offset] == body


async def test_one_awaited_send_after_the_other_has_its_request(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        results = [await producer.send(triomq.Message("T", body)) for body in texts(6)]
    assert element_counts(cluster.broker) == [1] * 6
    assert [result.queue.queue_id for result in results] in ([0, 1] * 3, [1, 0] * 3)


@pytest.mark.parametrize(
    ("options", "how"),
    [({"linger_s": None}, {}), ({"linger_s": 0.5}, {}), ({}, {"selector": lambda queues, _message, _arg: queues[0]})],
)
async def test_awaited_sends_that_have_requests_of_their_own(autojump_clock, cluster, options, how):
    async with cluster.client() as client:
        producer = await merging_producer(client, **options)
        started = trio.current_time()
        await send_awaited(producer, texts(20), **how)
        assert trio.current_time() == started
    assert element_counts(cluster.broker) == [1] * 20


async def test_awaited_sends_to_a_queue_keep_the_order_in_which_their_tasks_came(
    autojump_clock, cluster, make_callback
):
    bodies = texts(30)
    async with cluster.client() as client:
        producer = await merging_producer(client)
        async with trio.open_nursery() as nursery:
            for body in bodies[:-1]:
                nursery.start_soon(lambda body=body: producer.send(triomq.Message("T", body), queue=QUEUE))
                await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await producer.send(triomq.Message("T", bodies[-1]), make_callback(), queue=QUEUE)
    assert cluster.broker.stored["T", 0] == bodies


async def test_each_awaited_send_of_a_batch_that_fails_has_its_error(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        cluster.broker.script(BATCH, lambda command: command.answer(2, "busy"))
        ends = await send_awaited(producer, texts(5), queue=QUEUE)
        failed = [end for end in ends if not isinstance(end, triomq.SendResult)]
        # One has found the link idle, and went alone.
        assert [(error.code, error.remark, len(error.attempts)) for error in failed] == [(2, "busy", 1)] * 4
        assert len({str(error) for error in failed}) == 4
        # Where there is another attempt, they are made one by one.
        cluster.broker.script(BATCH, lambda command: command.answer(14, "stopping"))
        assert all(isinstance(end, triomq.SendResult) for end in await send_awaited(producer, texts(5)))


@pytest.mark.parametrize("code", [14, 13, 3], ids=["failed", "refused", "unknown to the broker"])
async def test_an_awaited_send_that_is_cancelled_is_not_tried_again(autojump_clock, cluster, code):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        started = trio.current_time()

        async def refuse(command):
            await trio.sleep(1)
            return command.answer(code, "stopping")

        cluster.broker.script(BATCH, refuse)
        with trio.move_on_after(0.5) as scope:
            await send_awaited(producer, texts(5))
        assert scope.cancelled_caught
        assert producer.in_flight == 4
        await producer.flush()
        assert trio.current_time() - started == pytest.approx(1)
    (batch,) = cluster.broker.requests(BATCH)
    assert len(split_batch(batch.body, b"").elements) == 4
    assert len(cluster.broker.requests(SEND)) == 2  # the first one of all, and the one that found the link idle


async def test_others_of_a_batch_go_on_when_one_awaited_send_is_cancelled(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await merging_producer(client)

        async def slowly(command):
            await trio.sleep(1)
            return cluster.broker.serve(command)

        cluster.broker.script(SEND, slowly)
        cluster.broker.script(BATCH, slowly)
        ends = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, triomq.Message("T", b"first"))
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

            @nursery.start_soon
            async def cancelled():
                with trio.move_on_after(0.1):
                    await producer.send(triomq.Message("T", b"cancelled"))
                ends.append(trio.current_time())

            @nursery.start_soon
            async def waits():
                ends.append(await producer.send(triomq.Message("T", b"waits")))

        _at, result = ends
        assert isinstance(result, triomq.SendResult)
        assert producer.in_flight == 0
    stored = [body for bodies in cluster.broker.stored.values() for body in bodies]
    assert sorted(stored) == [b"cancelled", b"first", b"waits", b"warm"]


async def test_an_abort_ends_awaited_sends(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        cluster.broker.script(SEND, None)
        cluster.broker.script(BATCH, None)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def abort():
                await trio.sleep(0.1)
                producer.abort()

            ends = await send_awaited(producer, texts(5))
    # One has found the link idle, and went alone: it has ended with the client.
    assert [type(end) for end in ends].count(errors.ClientClosed) >= 4


def answer_late(cluster):
    """Let the route of topic U arrive half a second late; the event is set when it has been asked for."""
    cluster.name_server.add_route("U", cluster.broker)
    asked = trio.Event()

    async def slow(command):
        asked.set()
        await trio.sleep(0.5)
        return cluster.name_server.serve(command)

    cluster.name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, slow)
    return asked


@pytest.mark.parametrize("with_callback", [False, True])
@pytest.mark.parametrize("linger_s", [0, 1])
async def test_a_send_whose_queue_is_chosen_while_the_producer_closes(
    autojump_clock, cluster, make_callback, with_callback, linger_s
):
    """It must not join a batch that is not written any more."""
    async with cluster.client() as client:
        producer = await merging_producer(client, linger_s=linger_s)
        # Its task has been started.
        await send_all(producer, texts(3), make_callback)
        await producer.flush()
        asked = answer_late(cluster)
        callback = make_callback()
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def send():
                    message = triomq.Message("U", b"late")
                    with pytest.raises(errors.ClientClosed):
                        await producer.send(
                            message,
                            callback if with_callback else None,
                            selector=lambda queues, _message, _arg: queues[0],
                        )

                await asked.wait()
                # Something waits on the link, so that the message would open a batch.
                cluster.broker.script(SEND, None)
                other = client.producer("other")
                await other.send(triomq.Message("T", b"waits"), make_callback())
                await producer.aclose()
        assert not len(callback)
        assert producer.in_flight == 0
        other.abort()
    assert b"late" not in cluster.broker.bodies("U")


@pytest.mark.parametrize(
    "kind",
    ["send", "callback", "batch", "pinned", "selector", "callback and selector", "oneway", "oneway and selector"],
)
async def test_a_send_that_waits_for_its_route_ends_with_its_producer(autojump_clock, cluster, make_callback, kind):
    def first(queues, _message, _arg):
        return queues[0]

    calls = {
        "send": lambda producer: producer.send(triomq.Message("U", b"late")),
        "callback": lambda producer: producer.send(triomq.Message("U", b"late"), make_callback()),
        "batch": lambda producer: producer.send_batch([triomq.Message("U", b"late")]),
        "pinned": lambda producer: producer.send(
            triomq.Message("U", b"late"), queue=triomq.MessageQueue("U", "broker-a", 0)
        ),
        "selector": lambda producer: producer.send(triomq.Message("U", b"late"), selector=first),
        "callback and selector": lambda producer: producer.send(
            triomq.Message("U", b"late"), make_callback(), selector=first
        ),
        "oneway": lambda producer: producer.send_oneway(triomq.Message("U", b"late")),
        "oneway and selector": lambda producer: producer.send_oneway(triomq.Message("U", b"late"), selector=first),
    }
    async with cluster.client() as client:
        producer = client.producer("G")
        asked = answer_late(cluster)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send():
                with pytest.raises(errors.ClientClosed) as caught:
                    await calls[kind](producer)
                assert "may be stored" not in str(caught.value)

            await asked.wait()
            closed = trio.current_time()
            await producer.aclose()
        assert trio.current_time() == closed  # not only when the route comes
        await trio.sleep(1)
    assert not cluster.broker.bodies("U")


async def test_an_awaited_batch_is_not_repeated_after_its_producers_end(autojump_clock, cluster):
    refused = trio.Event()

    async def refuse(command):
        refused.set()
        return command.answer(ResponseCode.SYSTEM_ERROR, "refused")

    async with cluster.client() as client:
        producer = await merging_producer(client)
        cluster.broker.script(RequestCode.SEND_BATCH_MESSAGE, *[refuse] * 9)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send():
                with pytest.raises(errors.ClientClosed):
                    await producer.send_batch([triomq.Message("T", b"refused")])

            await refused.wait()
            await trio.testing.wait_all_tasks_blocked()
            await producer.aclose()
    assert len(cluster.broker.requests(RequestCode.SEND_BATCH_MESSAGE)) == 1


async def test_a_one_way_message_whose_route_comes_after_the_producers_end(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await merging_producer(client)
        asked = answer_late(cluster)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send():
                with pytest.raises(errors.ClientClosed):
                    await producer.send_oneway(triomq.Message("U", b"late"))

            await asked.wait()
            await producer.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert not cluster.broker.bodies("U")


class HeldCompressor(triomq.plugins.ZlibCompressor):
    """Compresses a body only once `go_on` is set."""

    def __init__(self):
        super().__init__()
        self.started, self.go_on = threading.Event(), threading.Event()

    def compress(self, body):
        self.started.set()
        assert self.go_on.wait(10)
        return super().compress(body)

    async def close_meanwhile(self, producer):
        """Close the producer while a body is compressed, and let that go on afterwards."""
        await trio.to_thread.run_sync(self.started.wait, 10)
        await producer.aclose()
        self.go_on.set()


@pytest.mark.parametrize("with_callback", [False, True])
async def test_a_body_that_is_compressed_while_the_producer_closes(cluster, make_callback, with_callback):
    compressor = HeldCompressor()
    async with cluster.client() as client:
        producer = await merging_producer(client, compressor=compressor)
        callback = make_callback()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send():
                with pytest.raises(errors.ClientClosed):
                    await producer.send(triomq.Message("T", b"x" * 200_000), callback if with_callback else None)

            await compressor.close_meanwhile(producer)
        assert not len(callback)
    assert cluster.broker.bodies("T") == [b"warm"]


async def test_a_half_message_that_is_compressed_while_the_producer_closes(cluster):
    compressor = HeldCompressor()
    async with cluster.client() as client:
        producer = client.producer(
            "G", transactions=lambda _message: triomq.TransactionState.COMMIT, compressor=compressor
        )
        await producer.send(triomq.Message("T", b"warm"))
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send():
                with pytest.raises(errors.ClientClosed):
                    await producer.send_half(triomq.Message("T", b"x" * 200_000))

            await compressor.close_meanwhile(producer)
    assert cluster.broker.bodies("T") == [b"warm"]


async def test_awaited_sends_beyond_what_may_be_in_flight_have_requests_of_their_own(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await merging_producer(client, max_in_flight=10)
        results = await send_awaited(producer, texts(40))
    assert all(isinstance(result, triomq.SendResult) for result in results)
    counts = element_counts(cluster.broker)
    assert sum(counts) == 40
    assert max(counts) == 10


async def test_a_send_with_little_time_left_opens_no_batch(autojump_clock, cluster, make_callback):
    """Those that joined it would have no other time: they would be sent again, and stored twice."""
    dial = cluster.network.dial

    async def dial_late(address):
        if address == cluster.broker.address:
            await trio.sleep(2.9)
        return await dial(address)

    async def slowly(command):
        await trio.sleep(0.3)
        return cluster.broker.send(command)

    cluster.broker.script(SEND, slowly, slowly)
    cluster.broker.script(BATCH, slowly, slowly)
    async with (
        cluster.client(dial=dial_late) as client,
        client.producer("G", linger_s=0.01, compressor=None) as producer,
    ):
        late = make_callback()
        await producer.send(triomq.Message("T", b"late"), late, queue=QUEUE)  # returns when the connection is open
        assert client._links.ready(cluster.broker.address) is not None
        callbacks = await send_all(producer, texts(5), make_callback, queue=QUEUE)
        await trio.sleep(5)
    assert [type(error) for error in late.errors] == [errors.RequestTimeout]
    assert [len(callback.results) for callback in callbacks] == [1] * 5
    assert sorted(cluster.broker.bodies("T")) == [*texts(5), b"late"]
