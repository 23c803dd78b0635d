"""Awaited sends that are alone on their link: the same requests and results as by the longer way, whatever happens."""

from __future__ import annotations

import pytest
import trio
from cancellation import each_step
from trio.testing import wait_all_tasks_blocked

import triomq
from triomq import errors, plugins
from triomq._producer.lone_sends import LoneSends
from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import decode_properties
from triomq_protocol.requests.send import SendMessageRequestV2
from triomq_protocol.wire.command import Command

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
pytestmark = pytest.mark.usefixtures("sends_twin")

MESSAGES = [
    triomq.Message("T", b"plain"),
    triomq.Message("T", b"tags", tags="a", keys="k-1"),
    triomq.Message("T", b"escaped", tags='"a\\', keys=["k", "ü"]),
    triomq.Message("T", b"properties", properties={"p": "v"}, wait_store_ok=False, delay_level=3),
    triomq.Message("T", b"flag", flag=-7),
    triomq.Message("T", b"c" * 5000, tags="a"),
]


class Hook(plugins.SendHook):
    def before_send(self, context):
        """Nothing is added."""


@pytest.fixture
def lone(monkeypatch):
    """The bodies of the sends that were begun as lone ones."""
    bodies = []
    start = LoneSends.start

    def noting(self, message):
        send = start(self, message)
        if send is not None:
            bodies.append(message.body)
        return send

    monkeypatch.setattr(LoneSends, "start", noting)
    return bodies


async def warm_producer(client, **options):
    """A producer that knows its route and has a link, on which the client's heartbeat has been answered."""
    producer = client.producer(options.pop("group", "G"), **options)
    await producer.send(triomq.Message("T", b"warm"))
    await wait_all_tasks_blocked()
    return producer


def properties_of(command):
    return decode_properties(command.header(SendMessageRequestV2).properties)


def shape(command):
    """A send's request without what differs from one send to the next; and its properties, the id apart."""
    fields = dict(command.fields)
    for name in ("e", "g", "i", "a"):  # queue, born timestamp, properties, group
        fields.pop(name)
    pairs = properties_of(command)
    assert len(pairs.pop("UNIQ_KEY")) == 32
    return command.flag, command.version, fields, list(pairs.items()), command.body


@pytest.mark.parametrize("namespace", ["", "NS"])
async def test_requests_are_those_of_the_longer_way(autojump_clock, cluster, lone, namespace):
    cluster.name_server.add_route("NS%T", cluster.broker)
    async with cluster.client(namespace=namespace) as client:
        short, long = await warm_producer(client), await warm_producer(client, group="H", linger_s=None)
        for producer in (short, long):
            for message in MESSAGES:
                result = await producer.send(message)
                assert result.message_id in str(cluster.broker.requests(SEND)[-1].fields)
    _, *first = [shape(command) for command in cluster.broker.requests(SEND)][1:]
    half = len(MESSAGES)
    assert first[:half] == first[half:]
    # Not those with a flag or a body to compress.
    assert lone == [message.body for message in MESSAGES[:4]]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (triomq.Message("T", b"x", tags=5), errors.InvalidCall),
        (triomq.Message("T", b"x", properties={"p": "v" * 32768}), errors.MessageIllegal),
    ],
    ids=["kind", "size"],
)
async def test_a_refused_message_takes_no_turn(autojump_clock, cluster, lone, message, error):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        before = await producer.send(triomq.Message("T", b"before"))
        with pytest.raises(error):
            await producer.send(message)
        after = await producer.send(triomq.Message("T", b"after"))
    assert lone == [b"before", b"after"]
    assert {before.queue.queue_id, after.queue.queue_id} == {0, 1}


async def test_all_kinds_of_sends_use_the_queues_in_turn(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        results = [await producer.send(MESSAGES[number % 5]) for number in range(10)]
    assert len(lone) == 8
    assert [result.queue.queue_id for result in results] in ([0, 1] * 5, [1, 0] * 5)


@pytest.mark.parametrize(
    "options",
    [
        {"linger_s": 0.5},
        {"linger_s": None},
        {"hooks": [Hook()]},
        {"faults": plugins.LatencyFaults()},
        {"retry": plugins.Retries(retry_not_stored_ok=True)},
    ],
    ids=["linger", "apart", "hooks", "faults", "retry"],
)
async def test_producers_whose_sends_need_more(autojump_clock, cluster, lone, options):
    async with cluster.client() as client:
        producer = await warm_producer(client, **options)
        await producer.send(MESSAGES[0])
    assert not lone


async def test_producers_of_a_unit_need_more(autojump_clock, cluster, lone):
    async with cluster.client(unit_mode=True) as client:
        producer = await warm_producer(client)
        await producer.send(MESSAGES[0])
    assert not lone


async def test_only_on_a_link_on_which_nothing_waits(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(producer.send, triomq.Message("T", b"%d" % number))
    assert len(lone) == 1
    assert len(cluster.broker.bodies("T")) == 21


async def test_what_was_accepted_before_is_written_first(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        written = []
        producer._attempts.before_start = lambda: written.append(len(cluster.broker.requests(SEND)))
        await producer.send(MESSAGES[0])
    assert lone
    assert written == [1]


async def test_a_cancel_at_any_step_leaves_nothing_behind(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        (link,) = [link for link in client._links.open_links() if link.address == cluster.broker.address]
        for cancel in each_step():
            with cancel:
                await producer.send(MESSAGES[0])
            assert not link.pending
            assert isinstance(await producer.send(MESSAGES[1]), triomq.SendResult)
        assert producer.in_flight == 0
        assert link.is_open
    assert len(lone) >= 4


async def test_a_late_answer_is_not_that_of_the_next_send(autojump_clock, cluster, lone):
    async def late(command):
        answer = cluster.broker.serve(command)
        await trio.sleep(1)
        return answer

    async with cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, late, late)
        with trio.move_on_after(0.5):
            await producer.send(triomq.Message("T", b"given up"))
        result = await producer.send(triomq.Message("T", b"next"))
        assert cluster.broker.stored["T", result.queue.queue_id][result.queue_offset] == b"next"
    assert lone == [b"given up", b"next"]


async def test_a_request_of_the_broker_arrives_between(autojump_clock, cluster, lone):
    """The reader answers it while the send waits."""
    async with cluster.client() as client:
        producer = await warm_producer(client)

        async def asks_first(command):
            await cluster.broker.push_to(cluster.broker.asking, Command.request(9999, opaque=4711))
            return cluster.broker.serve(command)

        cluster.broker.script(SEND, asks_first)
        result = await producer.send(MESSAGES[0])
        assert result.status is triomq.SendStatus.SEND_OK
        await wait_all_tasks_blocked()
    (answer,) = [command for command in cluster.broker.seen if command.is_response]
    assert answer.opaque == 4711
    assert lone == [b"plain"]


async def test_the_first_attempt_counts_when_it_fails(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, lambda command: command.answer(14, "stopping"))
        result = await producer.send(triomq.Message("T", b"again", tags="a", keys="k"))
        (sends,) = client.statistics().sends
        assert (sends.stored, sends.retries, sends.errors) == (2, 1, {})
    refused, stored = [shape(command) for command in cluster.broker.requests(SEND)[1:]]
    assert refused == stored
    assert {properties_of(each)["UNIQ_KEY"] for each in cluster.broker.requests(SEND)[1:]} == {result.message_id}
    assert lone == [b"again"]


async def test_a_further_attempt_sends_what_the_first_one_sent(autojump_clock, cluster, lone):
    """The table of properties and the list of keys may have changed since."""
    properties, keys = {"n": "first"}, ["first"]

    def changed(command):
        properties["n"], keys[0] = "x" * 40_000, "later"
        return command.answer(14, "stopping")

    async with cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, changed)
        await producer.send(triomq.Message("T", b"x", keys=keys, properties=properties))
    refused, stored = [shape(command) for command in cluster.broker.requests(SEND)[1:]]
    assert refused == stored
    assert refused[3] == [("n", "first"), ("KEYS", "first")]
    assert lone == [b"x"]


async def test_the_next_attempt_uses_another_broker(autojump_clock, cluster, lone):
    brokers = cluster.broker, cluster.add_master("broker-b")
    async with cluster.client() as client:
        producer = await warm_producer(client)
        for _ in range(3):
            await producer.send(triomq.Message("T", b"warm"))
        await wait_all_tasks_blocked()
        for number in range(8):
            for broker in brokers:
                broker.seen.clear()
                broker.scripts.clear()
                broker.script(SEND, lambda command: command.answer(14, "stopping"))
            result = await producer.send(triomq.Message("T", b"%d" % number))
            # Each refuses once: the second attempt has gone to the other one.
            assert sum(len(broker.requests(SEND)) for broker in brokers) == 3
            assert result.status is triomq.SendStatus.SEND_OK
    assert lone[-8:] == [b"%d" % number for number in range(8)]


async def test_all_attempts_are_listed_when_the_last_one_fails(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, *[lambda command: command.answer(14, "stopping")] * 9)
        with pytest.raises(errors.MQError, match="stopping") as caught:
            await producer.send(MESSAGES[0])
        (sends,) = client.statistics().sends
    assert len(caught.value.attempts) == len(cluster.broker.requests(SEND)) - 1 > 1
    assert {attempt.address for attempt in caught.value.attempts} == {cluster.broker.address}
    assert sum(sends.errors.values()) == 1
    assert lone == [b"plain"]


async def test_a_link_that_is_lost_and_an_answer_that_does_not_come(autojump_clock, cluster, lone):
    async def cut(_command):
        await cluster.broker.cut()

    async with cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, cut)
        assert (await producer.send(MESSAGES[0])).status is triomq.SendStatus.SEND_OK
        await wait_all_tasks_blocked()
        started = trio.current_time()
        cluster.broker.script(SEND, *[None] * 9)
        with pytest.raises(errors.RequestTimeout) as caught:
            await producer.send(MESSAGES[1])
        assert trio.current_time() - started == pytest.approx(3)
        assert caught.value.attempts
    assert lone == [b"plain", b"tags"]


async def test_a_client_that_closes_fails_it(autojump_clock, cluster, lone):
    ends = []
    async with trio.open_nursery() as nursery, cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, None)

        @nursery.start_soon
        async def send():
            with pytest.raises(errors.ClientClosed, match="the outcome is unknown") as caught:
                await producer.send(MESSAGES[0])
            ends.append(caught.value)

        await wait_all_tasks_blocked()
    assert ends
    assert lone == [b"plain"]


async def test_sends_are_counted(autojump_clock, cluster, lone):
    async with cluster.client() as client:
        producer = await warm_producer(client)
        cluster.broker.script(SEND, lambda command: weakly(cluster.broker, command))
        result = await producer.send(MESSAGES[0])
        assert result.status is triomq.SendStatus.FLUSH_DISK_TIMEOUT
        await producer.send(MESSAGES[1])
        (sends,) = client.statistics().sends
    assert (sends.stored, sends.body_bytes, sends.weakly) == (3, 13, {"FLUSH_DISK_TIMEOUT": 1})
    assert len(lone) == 2


def weakly(broker, command):
    answer = broker.serve(command)
    answer.code = 10
    return answer
