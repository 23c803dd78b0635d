"""Successful sends: the sent bytes and the results."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress
from functools import partial

import pytest
import trio

import triomq
from triomq import errors
from triomq._producer.sender import Sender
from triomq._producer.strategies.queue_selectors import check_choice
from triomq_protocol.codes import RequestCode
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.requests.send import SendMessageRequestV2


def sends(node):
    return [
        command
        for command in node.seen
        if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    ]


async def test_send_returns_where_the_message_is_stored(autojump_clock, cluster, properties_of):
    async with cluster.client() as client:
        producer = client.producer("G")
        result = await producer.send(triomq.Message("T", b"one", tags="a", keys=("k1", "k2"), properties={"u": "v"}))
    (request,) = sends(cluster.broker)
    header = request.header(SendMessageRequestV2)
    properties = properties_of(request)
    assert result.status is triomq.SendStatus.SEND_OK
    assert result.message_id == properties["UNIQ_KEY"]
    assert result.queue == triomq.MessageQueue("T", "broker-a", header.queue_id)
    assert (result.queue_offset, result.offset_message_id) == (0, "7F00000100002A9F0000000000000000")
    assert (result.region_id, result.trace_on, result.transaction_id) == ("DefaultRegion", True, None)
    assert properties == {"u": "v", "KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": result.message_id}
    assert (header.producer_group, header.bname, header.default_topic) == ("G", "broker-a", "TBW102")
    assert header.born_timestamp == 1_700_000_000_000
    assert request.body == b"one"
    assert request.version == 407


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (triomq.Message("T", b"x"), {}),
        (triomq.Message("T", b"x", tags="ä"), {"TAGS": "ä"}),
        (triomq.Message("T", b"x", keys=["k1", "k2"]), {"KEYS": "k1 k2"}),
        (triomq.Message("T", b"x", tags="a b|c"), {"TAGS": "a b|c"}),
        (triomq.Message("T", b"x", tags='"\\', keys=["a"]), {"TAGS": '"\\', "KEYS": "a"}),
        (triomq.Message("T", b"x", delay_level=1), {"DELAY": "1"}),
        (triomq.Message("T", b"x", delay_level=18), {"DELAY": "18"}),
        (triomq.Message("T", b"x", wait_store_ok=False, tags="t"), {"WAIT": "false", "TAGS": "t"}),
    ],
)
async def test_properties(autojump_clock, cluster, properties_of, message, expected):
    async with cluster.client() as client:
        result = await client.producer("G").send(message)
    assert properties_of(sends(cluster.broker)[0]) == {**expected, "UNIQ_KEY": result.message_id}


async def test_sends_use_the_queues_in_turn(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        ids = [(await producer.send(triomq.Message("T", b"x"))).queue.queue_id for _ in range(6)]
    assert ids in ([0, 1] * 3, [1, 0] * 3)


async def test_every_message_has_an_id_of_its_own(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        ids = {(await producer.send(triomq.Message("T", b"x"))).message_id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(each) == 32 for each in ids)


async def test_explicit_queue(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        for queue_id in (1, 1, 0):
            queue = triomq.MessageQueue("T", "broker-a", queue_id)
            assert (await producer.send(triomq.Message("T", b"x"), queue=queue)).queue == queue
        with pytest.raises(errors.InvalidCall, match="topic U"):
            await producer.send(triomq.Message("T", b"x"), queue=triomq.MessageQueue("U", "broker-a", 0))


async def test_selector_sees_the_queues_in_order(autojump_clock, cluster):
    cluster.add_master("broker-b")
    seen = []

    def select(queues, message, arg):
        seen.append((list(queues), message.body, arg))
        return queues[arg]

    async with cluster.client() as client:
        producer = client.producer("G")
        result = await producer.send(triomq.Message("T", b"x"), selector=select, arg=2)
        by_hash = await producer.send(
            triomq.Message("T", b"x"), selector=triomq.plugins.select_by_hash, arg="polygenelubricants"
        )
        with pytest.raises(errors.InvalidCall, match="IndexError"):
            await producer.send(triomq.Message("T", b"x"), selector=select, arg=9)
        with pytest.raises(errors.InvalidCall, match="none of the topic's 4 queues"):
            await producer.send(triomq.Message("T", b"x"), selector=lambda queues, message, arg: None)
    queues = [triomq.MessageQueue("T", name, number) for name in ("broker-a", "broker-b") for number in (0, 1)]
    assert seen[0] == (queues, b"x", 2)
    assert result.queue == queues[2]
    assert by_hash.queue == queues[0]  # hash -2147483648, % 4


A_QUEUE = triomq.MessageQueue("T", "broker-a", 0)
BY_HASH = triomq.plugins.select_by_hash


@pytest.mark.parametrize(
    ("queue", "selector", "arg", "what"),
    [
        (None, None, None, None),
        (A_QUEUE, None, None, None),
        (None, BY_HASH, None, None),
        (None, BY_HASH, "order-1", None),
        (A_QUEUE, BY_HASH, "order-1", "give either queue= or selector=, not both"),
        (A_QUEUE, None, "order-1", "arg is 'order-1', and queue= names the queue already"),
        (
            None,
            None,
            "order-1",
            "arg is 'order-1', and without selector= .*give selector=triomq.plugins.select_by_hash",
        ),
        (None, None, 0, "arg is 0, and without selector="),
        (None, None, "", "arg is '', and without selector="),
    ],
)
def test_what_chooses_one_queue(queue, selector, arg, what):
    if what is None:
        check_choice(queue, selector, arg)
        return
    with pytest.raises(errors.InvalidCall, match=what):
        check_choice(queue, selector, arg)


@pytest.mark.parametrize("linger_s", [0.0, None])
@pytest.mark.parametrize("given", [{"arg": "order-1"}, {"arg": 0, "queue": A_QUEUE}])
async def test_an_arg_without_a_selector_is_refused_whatever_the_kind_of_send(
    autojump_clock, cluster, make_callback, given, linger_s
):
    """The order that its caller wants would be silently lost."""
    callback = make_callback()
    async with cluster.client() as client:
        producer = client.producer("G", linger_s=linger_s)
        with pytest.raises(errors.InvalidCall, match="selector="):
            await producer.send(triomq.Message("T", b"x"), **given)
        with pytest.raises(errors.InvalidCall, match="selector="):
            await producer.send(triomq.Message("T", b"x"), callback, **given)
        with pytest.raises(errors.InvalidCall, match="selector="):
            await producer.send_oneway(triomq.Message("T", b"x"), **given)
        await producer.flush()
    assert (sends(cluster.broker), len(callback)) == ([], 0)


@pytest.mark.parametrize("face", ["blocking", "aio"])
def test_an_arg_without_a_selector_is_refused_by_the_other_faces(system_cluster, make_callback, face):
    callback, address, options = make_callback(), system_cluster.name_server.address, system_cluster.options()
    message = triomq.Message("T", b"x")

    def blocking():
        with triomq.blocking.open_client(address, **options) as client:
            producer = client.producer("G")
            for send in (producer.send, partial(producer.send, callback=callback), producer.send_oneway):
                with pytest.raises(errors.InvalidCall, match="selector="):
                    send(message, arg="order-1")

    async def aio():
        async with triomq.aio.open_client(address, **options) as client:
            producer = client.producer("G")
            for send in (producer.send, partial(producer.send, callback=callback), producer.send_oneway):
                with pytest.raises(errors.InvalidCall, match="selector="):
                    await send(message, arg="order-1")

    if face == "blocking":
        blocking()
    else:
        asyncio.run(aio())
    assert (sends(system_cluster.broker), len(callback)) == ([], 0)


async def test_oneway(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send_oneway(triomq.Message("T", b"gone"))
        await trio.sleep(0.1)
    (request,) = sends(cluster.broker)
    assert request.is_oneway
    assert cluster.broker.bodies("T") == [b"gone"]


async def test_batch(autojump_clock, cluster):
    messages = [triomq.Message("T", b"b%d" % number, tags="t", flag=number) for number in range(3)]
    async with cluster.client() as client:
        result = await client.producer("G").send_batch(messages)
    (request,) = sends(cluster.broker)
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    assert request.header(SendMessageRequestV2).batch
    assert cluster.broker.bodies("T") == [b"b0", b"b1", b"b2"]
    ids = result.message_id.split(",")
    assert len(set(ids)) == 3
    for number, message_id in enumerate(ids):
        assert message_id.encode() in cluster.broker.queues["T", result.queue.queue_id][number]


async def test_a_batch_of_a_generator(autojump_clock, cluster):
    class Hook:
        def before_send(self, context):
            return None

        def after_send(self, context, outcome):
            return None

    async with cluster.client() as client:
        for group, hooks in (("G", []), ("H", [Hook()])):
            result = await client.producer(group, hooks=hooks).send_batch(
                triomq.Message("T", b"b%d" % number) for number in range(3)
            )
            assert len(result.message_id.split(",")) == 3
    assert sorted(cluster.broker.bodies("T")) == [b"b0", b"b0", b"b1", b"b1", b"b2", b"b2"]


async def test_a_batch_that_is_encoded_already(autojump_clock, cluster):
    ids = [f"{number:032X}" for number in range(2)]
    elements = b"".join(encode_batch_element(b"b", f"UNIQ_KEY\x01{own}".encode()) for own in ids)
    async with cluster.client() as client:
        producer = client.producer("G")
        queue = (await producer.queues("T"))[1]
        result = await producer.send_elements("T", elements, ids, queue=queue)
        for arguments in (("no topic!", elements, ids), ("T", b"", ids), ("T", b"x" * 5_000_000, ids)):
            with pytest.raises(errors.CallError):
                await producer.send_elements(*arguments)
    (request,) = sends(cluster.broker)
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    assert request.body == elements
    assert (result.queue, result.message_id) == (queue, ",".join(ids))
    assert cluster.broker.bodies("T") == [b"b", b"b"]


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([], "empty"),
        (iter([]), "empty"),
        (triomq.Message("T", b"a"), r"messages is one triomq.Message: give a list of several, or send\(message\)"),
        (b"ab", "messages is bytes, not a list of triomq.Message"),
        (7, "messages is int, not a list of triomq.Message"),
        (None, "messages is NoneType, not a list of triomq.Message"),
        ([triomq.Message("T", b"a"), b"b"], "message 1 of the batch is bytes, not triomq.Message"),
        ([triomq.Message("T", b"a"), triomq.Message("U", b"b")], "goes to topic U"),
        ([triomq.Message("T", b"a", delay_level=1)], "delay"),
        (
            [triomq.Message("T", b"a", properties={"TIMER_DELAY_SEC": "9"})],
            "message 0 of .* time of delivery, .* alone",
        ),
        (
            [triomq.Message("T", b"a", properties={"__STARTDELIVERTIME": "9000000000000"})],
            "message 0 of .* time of delivery .* alone",
        ),
        ([triomq.Message("T", b"a"), triomq.Message("T", b"b", wait_store_ok=False)], "wait_store_ok"),
        ([triomq.Message("%RETRY%g", b"a")], "retry topic"),
        ([triomq.Message("T", b"x" * 3_000_000)] * 2, "split_batch"),
        (
            [triomq.Message("T", b"a"), triomq.Message("T", b"b", keys="\udcff")],
            r"(?s)keys has .*lone surr.*message 1 of the batch",
        ),
        ([triomq.Message("T", b"a", properties={"p": "\udcff"})], r"(?s)the property 'p' has .*message 0 of the batch"),
        ([triomq.Message("T", b"a")] * 9_001, r"9001 messages, more than 9000: .*triomq.split_batch cuts it"),
    ],
)
async def test_what_is_no_batch(autojump_clock, cluster, messages, what):
    async with cluster.client() as client:
        with pytest.raises(errors.CallError, match=what):
            await client.producer("G").send_batch(messages)
    assert not sends(cluster.broker)


@pytest.mark.parametrize(
    ("messages", "bounds", "text"),
    [
        ("ab", {}, "messages is str, not a list"),
        (triomq.Message("T", b"x"), {}, "messages is one triomq.Message"),
        (5, {}, "messages is int, not a list"),
        ([b"x"], {}, "bytes, not triomq.Message"),
        ([triomq.Message("T", b"x")], {"max_count": 0}, "max_count is 0"),
        ([triomq.Message("T", b"x")], {"max_bytes": "1000"}, "max_bytes is '1000'"),
    ],
)
def test_what_cannot_be_split_into_batches_is_named(messages, bounds, text):
    with pytest.raises(errors.InvalidCall, match=text):
        list(triomq.split_batch(messages, **bounds))


def test_split_batch():
    messages = [triomq.Message("T", b"x" * 400) for _ in range(10)] + [triomq.Message("U", b"y")]
    batches = list(triomq.split_batch(messages, max_bytes=1500))
    assert [len(batch) for batch in batches] == [3, 3, 3, 1, 1]
    assert [message for batch in batches for message in batch] == messages
    assert [len(batch) for batch in triomq.split_batch(messages, max_count=4)] == [4, 4, 2, 1]
    halved = [triomq.Message("T", b"x", keys="\udcff")]
    assert list(triomq.split_batch(halved)) == [halved]  # the send refuses it
    with pytest.raises(errors.MessageIllegal, match="more than a batch may have"):
        list(triomq.split_batch(messages, max_bytes=400))


@pytest.mark.parametrize(("size", "compressed"), [(4095, False), (4096, True), (100_000, True)])
async def test_large_bodies_are_compressed(autojump_clock, cluster, size, compressed):
    body = b"x" * size
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", body))
        queue = next(key for key, stored in cluster.broker.queues.items() if stored)
        consumer = client.pull_consumer("C")
        (message,) = await consumer.pull(triomq.MessageQueue("T", "broker-a", queue[1]), 0)
    (request,) = sends(cluster.broker)
    assert request.header(SendMessageRequestV2).sys_flag == (769 if compressed else 0)
    assert request.body == (zlib.compress(body, 5) if compressed else body)
    assert message.body == body


async def test_very_large_bodies_are_compressed_in_a_thread(cluster):
    # On the real clock: the virtual one does not see threads.
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x" * 200_000))
    (request,) = sends(cluster.broker)
    assert request.body == zlib.compress(b"x" * 200_000, 5)


async def test_what_does_not_shrink_stays_as_it_is(autojump_clock, cluster):
    import random

    body = random.Random(7).randbytes(5000)
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", body))
        await client.producer("H", compressor=None).send(triomq.Message("T", b"x" * 5000))
    assert [request.header(SendMessageRequestV2).sys_flag for request in sends(cluster.broker)] == [0, 0]


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_weaker_statuses_are_results(autojump_clock, cluster, code):
    def weakly(command):
        answer = cluster.broker.send(command)
        answer.code = code
        return answer

    cluster.broker.script(RequestCode.SEND_MESSAGE_V2, weakly)
    async with cluster.client() as client:
        result = await client.producer("G").send(triomq.Message("T", b"x"))
    assert result.status == code
    assert len(sends(cluster.broker)) == 1


@pytest.mark.parametrize(
    ("message", "error", "what"),
    [
        (triomq.Message("", b"x"), errors.InvalidCall, "blank"),
        (triomq.Message("a b", b"x"), errors.InvalidCall, "characters"),
        (triomq.Message("t" * 128, b"x"), errors.InvalidCall, "128 characters"),
        (triomq.Message("SCHEDULE_TOPIC_XXXX", b"x"), errors.InvalidCall, "forbidden"),
        (triomq.Message("T", b""), errors.MessageIllegal, "empty"),
        (triomq.Message("T", "x"), errors.InvalidCall, r"str, not bytes: give body\.encode\(\)"),
        (triomq.Message("T", b"x", properties={"n": 7}), errors.InvalidCall, "the property 'n' is 7, and needs text"),
        (triomq.Message("T", b"x" * 4194305), errors.MessageIllegal, "4194305 bytes"),
        (triomq.Message("T", b"x", tags="a\x02b"), errors.InvalidCall, "tags"),
        (triomq.Message("T", b"x", keys=["a", " "]), errors.InvalidCall, "keys"),
        (triomq.Message("T", b"x", keys=5), errors.InvalidCall, "keys"),
        (triomq.Message("T", b"x", keys=iter(["a"])), errors.InvalidCall, "keys"),
        ("x", errors.InvalidCall, "str, not triomq.Message"),
        (triomq.Message(["T"], b"x"), errors.InvalidCall, "the topic is list, not text"),
        (triomq.Message("T", b"x", properties=[("a", "b")]), errors.InvalidCall, "properties is list, .* give a dict"),
        (triomq.Message("T", b"x", properties="a=b"), errors.InvalidCall, "properties is str, .* give a dict"),
        (triomq.Message("T", b"x", properties={"TAGS": "a"}), errors.InvalidCall, "reserved"),
        (triomq.Message("T", b"x", properties={"a": ""}), errors.InvalidCall, "blank"),
        (triomq.Message("T", b"x", properties={"a": "y" * 32768}), errors.MessageIllegal, "properties"),
        (triomq.Message("T", b"x", flag=2**31), errors.InvalidCall, "flag is 2147483648, not a whole number from"),
        (triomq.Message("T", b"x", delay_level=-3), errors.InvalidCall, "delay_level is -3, neither 0"),
        (triomq.Message("T", b"x", delay_level=60), errors.InvalidCall, "delay_level is 60.*levels are not seconds"),
        (triomq.Message("T", b"x", delay_level=1.5), errors.InvalidCall, "delay_level is 1.5"),
        (triomq.Message("T", b"x", delay_level=True), errors.InvalidCall, "delay_level is True, neither 0"),
        (
            triomq.Message("T", b"x", delay_level="3"),
            errors.InvalidCall,
            "delay_level is '3', which is text, neither 0",
        ),
        (triomq.Message("T", b"x", delay_level=None), errors.InvalidCall, "delay_level is None, neither 0"),
        (triomq.Message("T", b"x", flag=True), errors.InvalidCall, "flag is True, not a whole number"),
        (triomq.Message("T", b"x", keys="a\nb"), errors.InvalidCall, r"keys has 'a\\nb' .*'\\n'.*keys=\['a', 'b'\]"),
        (triomq.Message("T", b"x", keys=["k", "a\x7f"]), errors.InvalidCall, r"keys has 'a\\x7f' with the control"),
        (triomq.Message("T", b"x", keys="a\ud800"), errors.InvalidCall, r"keys has 'a\\ud800' with the lone surrogate"),
        (triomq.Message("T", b"x", keys=["k", "\udfff"]), errors.InvalidCall, "keys has .* lone surrogate"),
        (triomq.Message("T", b"x", tags="\ud800"), errors.InvalidCall, "tags has .* lone surrogate"),
        (triomq.Message("T", b"x", properties={"p": "\ud83d"}), errors.InvalidCall, "property 'p' has .* lone surr"),
        (triomq.Message("T", b"x", properties={"\ud83d": "v"}), errors.InvalidCall, "the property .* lone surr"),
        (triomq.Message("T", b"x", tags="a||b"), errors.InvalidCall, r"tags is 'a\|\|b', but a message has one tag"),
        (triomq.Message("T", b"x", tags="a && b"), errors.InvalidCall, "tags is 'a && b', but a message has one tag"),
        (triomq.Message("T", b"x", tags=" a "), errors.InvalidCall, "tags is ' a '.*write 'a'"),
        (triomq.Message("T", b"x", keys=["a b"]), errors.InvalidCall, "the key 'a b' in keys has a blank"),
        (triomq.Message("T", b"x", keys="a b"), errors.InvalidCall, r"keys is 'a b'.*keys=\['a', 'b'\]"),
    ],
)
async def test_illegal_messages_are_refused_before_anything_is_sent(
    autojump_clock, cluster, make_callback, message, error, what
):
    callback = make_callback()
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"warm"))
        with pytest.raises(error, match=what):
            await producer.send(message)
        with pytest.raises(error, match=what):
            await producer.send(message, callback)
    assert len(sends(cluster.broker)) == 1
    assert len(callback) == 0


async def test_an_unknown_topic_uses_the_default_topics_queues_until_it_exists(autojump_clock, cluster):
    cluster.name_server.add_route("TBW102", cluster.broker, queues=8, perm=7)
    async with cluster.client() as client:
        producer = client.producer("G")
        ids = {(await producer.send(triomq.Message("new", b"x"))).queue.queue_id for _ in range(16)}
        assert ids == {0, 1, 2, 3}
        header = sends(cluster.broker)[0].header(SendMessageRequestV2)
        assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
        other = cluster.add_master("broker-b", topic="new")
        await trio.sleep(31)
        names = {(await producer.send(triomq.Message("new", b"x"))).queue.broker_name for _ in range(8)}
        assert names == {"broker-a", "broker-b"}
        assert sends(other)


async def test_unknown_topic_without_a_default_is_an_error(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.RouteNotFound, match="topic nowhere") as caught:
            await client.producer("G").send(triomq.Message("nowhere", b"x"))
    assert caught.value.attempts


async def test_hooks_see_every_send_and_cannot_break_it(autojump_clock, cluster, make_callback):
    seen = []

    class Hook:
        def before_send(self, context):
            seen.append(("before", context.message.body, context.group))
            raise RuntimeError("a hook's own fault")

        def after_send(self, context, outcome):
            seen.append(("after", context.message_id, getattr(outcome, "message_id", outcome)))

    callback = make_callback()
    async with cluster.client() as client:
        producer = client.producer("G", hooks=[Hook()])
        result = await producer.send(triomq.Message("T", b"one"))
        await producer.send(triomq.Message("T", b"two"), callback)
        await producer.flush()
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, lambda command: command.answer(13, "no"))
        with pytest.raises(errors.MessageIllegal) as caught:
            await producer.send(triomq.Message("T", b"three"))
    assert seen[:2] == [("before", b"one", "G"), ("after", result.message_id, result.message_id)]
    assert seen[2:4] == [
        ("before", b"two", "G"),
        ("after", callback.results[0].message_id, callback.results[0].message_id),
    ]
    assert seen[5][2] is caught.value


class Tracing:
    """Adds a property to each message, and remembers how its send ended."""

    def __init__(self, added):
        self.added = added
        self.seen = []

    def before_send(self, context):
        return self.added

    def after_send(self, context, outcome):
        self.seen.append((context.message.body, context.oneway, context.batch_count, outcome))


async def test_hooks_see_batches_and_one_way_messages_too(autojump_clock, cluster):
    hook = Tracing(None)
    async with cluster.client() as client:
        producer = client.producer("G", hooks=[hook])
        result = await producer.send_batch([triomq.Message("T", b"one"), triomq.Message("T", b"two")])
        await producer.send_oneway(triomq.Message("T", b"three"))
        assert hook.seen == [(b"one", False, 2, result), (b"two", False, 2, result), (b"three", True, 1, None)]
        hook.seen.clear()
        cluster.broker.script(RequestCode.SEND_BATCH_MESSAGE, lambda command: command.answer(13, "no"))
        with pytest.raises(errors.MessageIllegal) as caught:
            await producer.send_batch([triomq.Message("T", b"four")])
        with pytest.raises(errors.MQError) as lost:
            await producer.send_oneway(triomq.Message("nowhere", b"five"))
    assert hook.seen == [(b"four", False, 1, caught.value), (b"five", True, 1, lost.value)]


async def test_hooks_add_properties(autojump_clock, cluster, make_callback, properties_of):
    added = {"traceparent": "00-1", "u": "hook"}
    async with cluster.client() as client:
        producer = client.producer("G", hooks=[Tracing(added)])
        message = triomq.Message("T", b"one", tags="a", properties={"u": "own", "v": "own"})
        await producer.send(message)
        await producer.send(message, make_callback())
        await producer.flush()
        await producer.send_oneway(message)
        await producer.send_batch([message])
        await trio.testing.wait_all_tasks_blocked()
    assert message.properties == {"u": "own", "v": "own"}
    *single, batch = sends(cluster.broker)
    assert len(single) == 3
    for request in single:
        properties = properties_of(request)
        assert properties == {**added, "v": "own", "TAGS": "a", "UNIQ_KEY": properties["UNIQ_KEY"]}
    assert b"traceparent\x0100-1" in batch.body


@pytest.mark.parametrize("added", [{"TAGS": "other"}, {"a": ""}, {"a": 5}, {"a": "y" * 32768}, "text"])
async def test_what_hooks_may_not_add_is_left_out(autojump_clock, cluster, properties_of, caplog, added):
    async with cluster.client() as client:
        producer = client.producer("G", hooks=[Tracing(added), Tracing({"b": "2"})])
        result = await producer.send(triomq.Message("T", b"one", tags="a"))
        await producer.send_batch([triomq.Message("T", b"one")])
    properties = properties_of(sends(cluster.broker)[0])
    assert properties.keys() - {"b"} == {"TAGS", "UNIQ_KEY"}
    assert (properties["TAGS"], properties["UNIQ_KEY"]) == ("a", result.message_id)
    assert "hook" in caplog.text


async def test_a_group_has_one_producer_per_client(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        with pytest.raises(errors.InvalidCall, match="already"):
            client.producer("G")
        with pytest.raises(errors.InvalidCall, match="reserved"):
            client.producer("DEFAULT_PRODUCER")
        await producer.aclose()
        with pytest.raises(errors.ClientClosed):
            await producer.send(triomq.Message("T", b"x"))
        await client.producer("G").send(triomq.Message("T", b"x"))


@pytest.mark.parametrize("topic", [None, 5, b"T"])
async def test_a_topic_that_is_no_text_is_refused(autojump_clock, cluster, topic):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=r"the topic is .*, not text"):
            await client.producer("G").send(triomq.Message(topic, b"x"))


async def test_errors_found_locally_are_not_reported_as_answers(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.MessageIllegal) as caught:
            await client.producer("G").send(triomq.Message("T", bytes((4 << 20) + 1)))
    assert "answered" not in str(caught.value)
    assert "4 MiB" in str(caught.value)


async def test_an_argument_that_is_none_is_not_ignored(cluster):
    with pytest.raises(TypeError, match="no argument send_timeout_s"):
        async with cluster.client(send_timeout_s=1):
            pass
    with pytest.raises(errors.InvalidCall, match="from int"):
        async with triomq.open_client(5):
            pass


async def test_what_is_no_message_is_refused_also_as_the_first_of_all(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=r"str, not triomq\.Message"):
            await client.producer("G").send("x")


@pytest.mark.parametrize("callback", ["x", 5, object()])
async def test_what_is_neither_a_function_nor_has_the_methods_is_no_callback(autojump_clock, cluster, callback):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="on_success"):
            await client.producer("G").send(triomq.Message("T", b"x"), callback)
    assert not sends(cluster.broker)


class Called:
    """An object that is called like a function."""

    def __call__(self, result):
        pass

    def with_both(self, result, error):
        pass

    def with_one(self, result):
        pass


@pytest.mark.parametrize(
    "callback",
    [
        lambda result: None,
        lambda: None,
        lambda result, error, more: None,
        lambda result, *, error: None,
        Called(),
        Called().with_one,
        partial(lambda result, error: None, "bound"),
        partial(lambda result, error: None, error=None),
    ],
)
async def test_a_function_that_cannot_take_result_and_error_is_no_callback(autojump_clock, cluster, callback):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=r"cannot be called with \(result, error\)"):
            await client.producer("G").send(triomq.Message("T", b"x"), callback)
    assert not sends(cluster.broker)


async def test_a_class_is_no_callback(autojump_clock, cluster):
    class Callback(Called):
        def on_success(self, result):
            """Not called."""

        on_exception = on_success

    async with cluster.client() as client:
        producer = client.producer("G")
        for each in (Called, Callback):
            with pytest.raises(errors.InvalidCall, match=f"{each.__name__} is a class; give an object of it"):
                await producer.send(triomq.Message("T", b"x"), each)
    assert not sends(cluster.broker)


@pytest.mark.parametrize(
    "callback",
    [
        lambda result, error: None,
        lambda *both: None,
        lambda result, error, more=None: None,
        lambda result, error, *, more=None: None,
        Called().with_both,
        partial(lambda number, result, error: None, 5),
        partial(lambda result, error, number: None, number=5),
        {}.setdefault,
    ],
)
async def test_functions_that_take_both_are_callbacks(autojump_clock, cluster, callback):
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"), callback)
    assert len(sends(cluster.broker)) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("send_timeout_s", 0),
        ("send_timeout_s", -1.0),
        ("send_timeout_s", float("nan")),
        ("max_in_flight", 0),
        ("max_in_flight_bytes", 0),
        ("max_body_bytes", 0),
        ("max_body_bytes", "1"),
        ("compress_from_bytes", -1),
    ],
)
async def test_a_number_out_of_range_is_refused_and_the_group_stays_free(autojump_clock, cluster, option, value):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=f"{option} is {value!r}, not a"):
            client.producer("G", **{option: value})
        client.producer("G")


@pytest.mark.parametrize(
    "options", [{"refresh_every_s": 0}, {"heartbeat_every_s": -1}, {"max_pending": 0}, {"max_topics": 0.5}]
)
async def test_a_clients_number_out_of_range_is_refused(options):
    with pytest.raises(errors.InvalidCall, match=next(iter(options))):
        async with triomq.open_client("127.0.0.1:1", **options):
            pass


@pytest.mark.parametrize("freed", ["cancelled", "lost"])
@pytest.mark.parametrize("kind", ["awaited", "one way"])
async def test_what_waits_for_a_full_link_is_sent_when_there_is_room(autojump_clock, cluster, kind, freed):
    async with cluster.client(max_pending=1) as client:
        producer = client.producer("G", retry=triomq.plugins.Retries(attempts=1), linger_s=None)
        await producer.send(triomq.Message("T", b"first"))
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, None)
        started = trio.current_time()

        async def fills(task_status):
            with trio.CancelScope() as scope:
                task_status.started(scope)
                with suppress(errors.LinkLost):
                    await producer.send(triomq.Message("T", b"unanswered"))

        async def waits():
            send = producer.send if kind == "awaited" else producer.send_oneway
            await send(triomq.Message("T", b"waits"))

        async with trio.open_nursery() as nursery:
            scope = await nursery.start(fills)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(waits)
            await trio.testing.wait_all_tasks_blocked()
            if freed == "lost":
                await cluster.broker.cut()
            else:
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == started
    assert sorted(cluster.broker.bodies("T")) == [b"first", b"waits"]


@pytest.mark.parametrize("linger_s", [None, 0.0])
async def test_the_time_of_a_send_begins_when_it_is_accepted(autojump_clock, cluster, linger_s, caplog):
    async def slowly(command):
        await trio.sleep(1)
        return cluster.broker.serve(command)

    ends = []
    async with cluster.client() as client:
        producer = client.producer("G", max_in_flight=1, linger_s=linger_s)
        await producer.send(triomq.Message("T", b"first"))
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, *[slowly] * 6)
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(producer.send, triomq.Message("T", b"x"), lambda _result, error: ends.append(error))
        await producer.flush()
    assert ends == [None] * 6
    assert len(cluster.broker.bodies("T")) == 7
    assert "closing the link" not in caplog.text


@pytest.mark.parametrize("with_callback", [False, True])
async def test_a_selector_that_waits_for_its_queues_takes_of_the_same_time(autojump_clock, cluster, with_callback):
    async def slowly(command):
        await trio.sleep(2)
        return cluster.name_server.serve(command)

    ends = []
    cluster.name_server.add_route("T2", cluster.broker)
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T2", b"opens the link"))
        cluster.name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, slowly)
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, None)
        started = trio.current_time()
        message, options = triomq.Message("T", b"x"), {"selector": lambda queues, _message, _arg: queues[0]}
        if with_callback:
            await producer.send(message, lambda _result, error: ends.append(error), **options)
            await producer.flush()
            assert [type(error) for error in ends] == [errors.RequestTimeout]
        else:
            with pytest.raises(errors.RequestTimeout):
                await producer.send(message, **options)
        assert trio.current_time() - started == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("kind", ["awaited", "callback", "transaction"])
async def test_nothing_is_written_after_a_compression_that_took_all_the_time(
    autojump_clock, cluster, monkeypatch, kind
):
    async def slowly(_self, _out):
        await trio.sleep(4)

    monkeypatch.setattr(Sender, "compress", slowly)
    ends = []
    async with cluster.client() as client:
        producer = client.producer("G", transactions=lambda _message: triomq.TransactionState.COMMIT)
        await producer.send(triomq.Message("T", b"first"))
        message = triomq.Message("T", b"x" * 5000)
        if kind == "callback":
            await producer.send(message, lambda _result, error: ends.append(error))
            await producer.flush()
            assert [type(error) for error in ends] == [errors.NotReady]
        else:
            with pytest.raises(errors.NotReady):
                await (producer.send(message) if kind == "awaited" else producer.send_half(message))
    assert len(sends(cluster.broker)) == 1
