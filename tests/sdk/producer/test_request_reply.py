"""Request-reply: the request, the reply that a broker pushes, and those who wait for it."""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import trio
from consumer_broker import record_of

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import decode_properties, encode_properties
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.send import ReplyMessageRequest, SendMessageRequestV2
from triomq_protocol.wire.command import Command

SEND, REPLY = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
HEART_BEAT = RequestCode.HEART_BEAT
ASK = triomq.Message("T", b"ping")


def push_of(properties: dict[str, str], body: bytes = b"pong", **fields: Any) -> Command:
    """A reply as 4.9.7's broker pushes it."""
    header = ReplyMessageRequest(
        **{
            "producer_group": "CLIENT_INNER_PRODUCER",
            "topic": "C_REPLY_TOPIC",
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": 5,
            "flag": 0,
            "properties": encode_properties(properties),
            "born_host": "127.0.0.9:4711",
            "store_host": "127.0.0.1:10911",
            "store_timestamp": 7,
            **fields,
        }
    )
    return Command.request(PUSH, header, body=body, opaque=77)


def asked(command: Command) -> dict[str, str]:
    return decode_properties(command.header(SendMessageRequestV2).properties or "")


@pytest.fixture
def replying(cluster: Any) -> Callable[..., None]:
    """The next request is replied to by the broker that stores it, after a while."""

    def script(after_s: float = 1.0, times: int = 1, **options: Any) -> None:
        async def push(stream: trio.StapledStream, properties: dict[str, str]) -> None:
            await trio.sleep(after_s)
            own = {name: properties[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
            bodies = [b"pong %d" % number for number in range(times)] if times > 1 else [b"pong"]
            pushes = [push_of({"MSG_TYPE": "reply", **own}, **{"body": body, **options}) for body in bodies]
            async with cluster.broker.writing[stream]:
                await stream.send_all(b"".join(each.encode() for each in pushes))  # several come together

        def store(command: Command) -> Command:
            cluster.network.spawn(push, cluster.broker.asking, asked(command))
            return cluster.broker.send(command)

        cluster.broker.script(SEND, store)

    return script


def answers_to_pushes(broker: Any) -> list[int]:
    return [command.code for command in broker.seen if command.is_response]


# --- requests --------------------------------------------------------------------------------------------------------


async def test_a_request_gets_its_reply(autojump_clock, cluster, replying, properties_of):
    replying()
    async with cluster.client() as client:
        reply = await client.producer("G").request(ASK, 8.5)
        client_id = client.client_id
    (request,) = cluster.broker.requests(SEND)
    properties = properties_of(request)
    assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == (client_id, "8500")
    assert uuid.UUID(properties["CORRELATION_ID"]).version == 4
    assert (reply.body, reply.topic, reply.born_ms, reply.stored_ms) == (b"pong", "C_REPLY_TOPIC", 5, 7)
    assert (reply.born_host, reply.store_host) == (("127.0.0.9", 4711), ("127.0.0.1", 10911))
    assert reply.properties["CORRELATION_ID"] == properties["CORRELATION_ID"]
    assert reply.properties["ARRIVE_TIME"] == "1700000000000"
    assert answers_to_pushes(cluster.broker) == [0]


async def test_the_broker_knows_the_client_before_it_gets_the_request(autojump_clock, cluster, replying):
    beaten: list[float] = []
    known: list[bool] = []

    async def slow_beat(command: Command) -> Command:
        await trio.sleep(1)
        beaten.append(trio.current_time())
        return command.answer(0)

    async with cluster.client() as client:
        pull = client.pull_consumer("C")
        await pull.fetch_queues("T")
        producer = client.producer("other")
        await producer.send(ASK)
        await trio.sleep(1)  # the link is open, and has carried heartbeats without the group
        asked_at = trio.current_time()
        replying()
        store = cluster.broker.scripts[SEND].pop()
        cluster.broker.script(SEND, lambda command: (known.append(bool(beaten)), store(command))[1])
        cluster.broker.scripts[HEART_BEAT].extend([slow_beat] * 9)
        cluster.broker.seen.clear()
        await client.producer("G").request(ASK, 8)
    assert b'"groupName":"G"' in cluster.broker.requests(HEART_BEAT)[0].body
    assert known == [True]
    assert beaten[0] - asked_at == pytest.approx(1, abs=0.1)


async def test_all_brokers_of_the_reply_topic_know_the_client(autojump_clock, cluster, replying):
    """The one that replies may choose any of them."""
    other = cluster.add_master("broker-b", topic="C_REPLY_TOPIC")
    replying()
    async with cluster.client() as client:
        await client.producer("G").request(ASK, 8)
        assert b'"groupName":"G"' in other.requests(HEART_BEAT)[0].body
        assert other.requests(SEND) == []


async def test_requests_that_begin_together_all_wait_for_the_brokers_of_the_reply_topic(autojump_clock, cluster):
    other = cluster.add_master("broker-b", topic="C_REPLY_TOPIC")
    known_at: list[float] = []
    sent_at: list[float] = []

    async def slowly(command: Command) -> Command:
        await trio.sleep(0.5)
        known_at.append(trio.current_time())
        return command.answer(0)

    async def route(command: Command) -> Command:
        await trio.sleep(0.05)
        return cluster.name_server.serve(command)

    def store(command: Command) -> Command:
        sent_at.append(trio.current_time())
        return cluster.broker.send(command)

    other.script(HEART_BEAT, slowly)
    cluster.name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, route)
    cluster.broker.script(SEND, store, store)
    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = client.producer("G")
        nursery.start_soon(producer.request, ASK, 8)
        await trio.sleep(0.06)  # the route of the topic is known, that of the reply topic is not
        nursery.start_soon(producer.request, ASK, 8)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert len(sent_at) == 2
    assert min(sent_at) >= known_at[0]


async def test_a_broker_that_cannot_be_reached_holds_up_the_first_request_only(autojump_clock, cluster, replying):
    other = cluster.add_master("broker-b", topic="C_REPLY_TOPIC")
    cluster.network.hanging.add(other.address)
    async with cluster.client() as client:
        producer = client.producer("G")
        took = []
        for _ in range(3):
            replying(after_s=0)
            begun = trio.current_time()
            await producer.request(ASK, 8)
            took.append(trio.current_time() - begun)
    assert took == pytest.approx([1.5, 0, 0], abs=0.1)


@pytest.mark.parametrize("timeout_s", [3, 8])
async def test_silent_name_servers_leave_requests_the_time_to_be_sent(autojump_clock, cluster, replying, timeout_s):
    replies = []
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        cluster.network.hanging.add(cluster.name_server.address)
        await cluster.name_server.cut()

        async def ask() -> None:
            replies.append(await producer.request(ASK, timeout_s))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                replying(after_s=0.2)
                nursery.start_soon(ask)
    assert [reply.body for reply in replies] == [b"pong"] * 3


@pytest.mark.parametrize("sent_before", [4, 5, 6, 7])
async def test_a_request_is_sent_once_after_it_has_waited_for_a_broker(autojump_clock, cluster, sent_before):
    other = cluster.add_master("broker-b")
    async with cluster.client() as client:
        producer = client.producer("G")
        # Both are dialled before: then one cannot be reached, and the request waits for it.
        for _ in range(sent_before):
            await producer.send(triomq.Message("T", b"x"))
        await other.cut()
        cluster.network.hanging.add(other.address)
        stored = len(cluster.broker.bodies("T"))

        async def slowly(command: Command) -> Command:
            await trio.sleep(0.2)
            return cluster.broker.send(command)

        cluster.broker.script(SEND, *[slowly] * 9)
        with pytest.raises(errors.ReplyTimeout):
            await producer.request(ASK, 8)
    assert len(cluster.broker.bodies("T")) == stored + 1


async def test_several_requests_at_once_get_their_own_replies(autojump_clock, cluster):
    async def push(stream: trio.StapledStream, command: Command) -> None:
        number = int(command.body)
        await trio.sleep(10 - number)  # the last first
        await cluster.broker.push_to(stream, push_of(asked(command), b"reply %d" % number))

    def store(command: Command) -> Command:
        cluster.network.spawn(push, cluster.broker.asking, command)
        return cluster.broker.send(command)

    cluster.broker.script(SEND, *[store] * 10)
    replies = {}

    async def ask(number: int) -> None:
        replies[number] = (await producer.request(triomq.Message("T", b"%d" % number), 20)).body

    async with cluster.client() as client:
        producer = client.producer("G")
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
    assert replies == {number: b"reply %d" % number for number in range(10)}


async def test_the_first_reply_counts(autojump_clock, cluster, replying):
    replying(times=3)
    async with cluster.client() as client:
        reply = await client.producer("G").request(ASK, 8)
        await trio.sleep(1)
    assert reply.body == b"pong 0"
    assert answers_to_pushes(cluster.broker) == [0, 0, 0]


async def test_no_reply_in_time(autojump_clock, cluster, replying):
    replying(after_s=9)
    async with cluster.client() as client:
        producer = client.producer("G")
        begun = trio.current_time()
        with pytest.raises(errors.ReplyTimeout, match=r"no reply to message \w{32} of topic T within 8 s") as raised:
            await producer.request(ASK, 8)
        assert trio.current_time() - begun == pytest.approx(8)
        assert isinstance(raised.value, errors.RequestTimeout)
        assert "a consumer of the topic runs" in str(raised.value)
        await trio.sleep(2)  # the late one is taken, so that the one who replied sees no error
        assert answers_to_pushes(cluster.broker) == [0]
        replying()
        assert (await producer.request(ASK, 8)).body == b"pong"


async def test_a_request_that_cannot_be_sent(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        cluster.broker.script(SEND, lambda command: command.answer(13, "no"))
        with pytest.raises(errors.MessageIllegal):
            await producer.request(ASK, 8)
        cluster.broker.script(SEND, *[None] * 9)
        begun = trio.current_time()
        with pytest.raises(errors.TransientError) as raised:
            await producer.request(ASK, 1)
        assert not isinstance(raised.value, errors.ReplyTimeout)
        assert trio.current_time() - begun == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("missing", ["name server", "broker"])
async def test_a_request_that_was_never_written(autojump_clock, cluster, missing):
    if missing == "name server":
        cluster.name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[None] * 9)
    else:
        await cluster.broker.stop()
    async with cluster.client() as client:
        with pytest.raises(errors.NotReady, match="nothing could be sent of message") as raised:
            await client.producer("G").request(ASK, 1)
    asked_address = cluster.name_server.address if missing == "name server" else cluster.broker.address
    assert f"asked {asked_address}" in str(raised.value)
    assert "duplicate" not in str(raised.value)


async def test_a_reply_may_arrive_before_the_answer_to_the_request(autojump_clock, cluster):
    def silent(command: Command) -> None:
        cluster.network.spawn(cluster.broker.push_to, cluster.broker.asking, push_of(asked(command)))

    cluster.broker.script(SEND, silent)
    async with cluster.client() as client:
        begun = trio.current_time()
        reply = await client.producer("G").request(ASK, 8)
        assert trio.current_time() - begun == pytest.approx(0, abs=0.1)
    assert reply.body == b"pong"
    assert len(cluster.broker.requests(SEND)) == 1


async def test_a_compressed_reply(autojump_clock, cluster, replying):
    replying(body=zlib.compress(b"x" * 9000), sys_flag=1)
    async with cluster.client() as client:
        assert (await client.producer("G").request(ASK, 8)).body == b"x" * 9000


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"topic": ""}, "topic of 0"), ({"topic": "t" * 200}, "topic of 200"), ({"born_host": "nowhere"}, "")],
)
async def test_a_reply_that_cannot_be_read_is_refused(autojump_clock, cluster, replying, caplog, fields, text):
    replying(**fields)
    async with cluster.client() as client:
        producer = client.producer("G")
        if text:
            with pytest.raises(errors.ReplyTimeout):
                await producer.request(ASK, 3)
        else:
            assert (await producer.request(ASK, 3)).born_host == ("0.0.0.0", 0)
    assert answers_to_pushes(cluster.broker) == ([1] if text else [0])
    assert text in caplog.text


@pytest.mark.parametrize("sent", [True, False])
async def test_closing_fails_those_that_wait(autojump_clock, cluster, sent):
    async def never(address):
        await trio.sleep_forever()

    options = {} if sent else {"dial": never}
    async with cluster.client(**options) as client, trio.open_nursery() as nursery:
        producer = client.producer("G", send_timeout_s=60)

        async def ask() -> None:
            with pytest.raises(errors.ClientClosed, match="before the reply came") as caught:
                await producer.request(ASK, 60)
            assert ("the outcome is unknown" in str(caught.value)) == sent, "a broker has it, and consumers may"
            assert trio.current_time() - begun == pytest.approx(5, abs=0.1)

        begun = trio.current_time()
        nursery.start_soon(ask)
        await trio.sleep(5)
        await producer.aclose()
        with pytest.raises(errors.ClientClosed):
            await producer.request(ASK, 60)


async def test_waiting_requests_are_bounded_and_cancelled_ones_dropped(autojump_clock, cluster, monkeypatch):
    monkeypatch.setattr("triomq._producer.request_reply.REQUESTS_MAX", 2)
    async with cluster.client() as client:
        producer = client.producer("G")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.request, ASK, 60)
            nursery.start_soon(producer.request, ASK, 60)
            await trio.sleep(1)
            with pytest.raises(errors.Overloaded, match="2 requests of this client wait"):
                await producer.request(ASK, 60)
            nursery.cancel_scope.cancel()
        with pytest.raises(errors.ReplyTimeout):
            await producer.request(ASK, 1)
        with pytest.raises(errors.InvalidCall, match="timeout_s is 0"):
            await producer.request(ASK, 0)


# --- replies ---------------------------------------------------------------------------------------------------------

REQUEST = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.7@1", "TTL": "8000", "CLUSTER": "C", "UNIQ_KEY": "K"}


def request_with(**changes: str | None) -> triomq.ReceivedMessage:
    properties = {name: value for name, value in {**REQUEST, **changes}.items() if value is not None}
    record = record_of(
        "T", 0, b"ping", encode_properties(properties).encode(), queue_offset=0, physical_offset=0, times=0
    )
    return triomq.ReceivedMessage(RecordView(record), triomq.MessageQueue("T", "broker-a", 0))


@pytest.fixture
async def reply_cluster(cluster: Any) -> Any:
    """A cluster whose broker takes replies."""
    cluster.name_server.add_route("C_REPLY_TOPIC", cluster.broker, queues=1)
    return cluster


async def test_a_reply_is_sent_as_javas_client_sends_it(autojump_clock, reply_cluster, properties_of):
    reply_cluster.broker.script(REPLY, reply_cluster.broker.send)
    async with reply_cluster.client() as client:
        assert await client.producer("G").reply(request_with(), b"pong", properties={"own": "1"}) is True
    (command,) = reply_cluster.broker.requests(REPLY)
    header = command.header(SendMessageRequestV2)
    assert (header.topic, header.producer_group, command.body) == ("C_REPLY_TOPIC", "G", b"pong")
    properties = properties_of(command)
    assert properties.pop("UNIQ_KEY") != "K"
    assert properties == {
        "own": "1",
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "10.0.0.7@1",
        "TTL": "8000",
    }


async def test_a_long_reply_is_compressed(autojump_clock, reply_cluster):
    reply_cluster.broker.script(REPLY, reply_cluster.broker.send)
    async with reply_cluster.client() as client:
        await client.producer("G").reply(request_with(TTL=None), b"x" * 9000)
    (command,) = reply_cluster.broker.requests(REPLY)
    assert zlib.decompress(command.body) == b"x" * 9000
    assert command.header(SendMessageRequestV2).sys_flag & 1


@pytest.mark.parametrize(
    "remark",
    ["push reply message fail, channel of <10.0.0.7@1> not found.", "push reply message to 10.0.0.7@1fail."],
)
async def test_a_requester_that_is_gone_is_no_error(autojump_clock, reply_cluster, remark):
    reply_cluster.broker.script(REPLY, *[lambda command: command.answer(1, remark)] * 3)
    async with reply_cluster.client() as client:
        assert await client.producer("G").reply(request_with(), b"pong") is False


async def test_a_reply_that_one_broker_cannot_push_goes_to_another(autojump_clock, reply_cluster):
    other = reply_cluster.add_master("broker-b", topic="C_REPLY_TOPIC")
    gone = "push reply message fail, channel of <10.0.0.7@1> not found."
    reply_cluster.broker.scripts[REPLY].extend([lambda command: command.answer(1, gone)] * 9)
    other.scripts[REPLY].extend([other.send] * 9)
    async with reply_cluster.client() as client:
        assert [await client.producer("G").reply(request_with(), b"pong")] == [True]
    assert len(other.requests(REPLY)) == 1


async def test_other_failures_of_a_reply_are_errors(autojump_clock, reply_cluster):
    reply_cluster.broker.script(REPLY, lambda command: command.answer(13, "too long"))
    async with reply_cluster.client() as client:
        producer = client.producer("G")
        with pytest.raises(errors.MessageIllegal):
            await producer.reply(request_with(), b"pong")
        for missing in ("CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"):
            with pytest.raises(errors.InvalidCall, match=re.escape("<ReceivedMessage T") + f".*(no reply|{missing})"):
                await producer.reply(request_with(**{missing: None}), b"pong")
        with pytest.raises(errors.InvalidCall, match="characters other than"):
            await producer.reply(request_with(CLUSTER="a b"), b"pong")
        await producer.aclose()
        with pytest.raises(errors.ClientClosed):
            await producer.reply(request_with(), b"pong")


@pytest.mark.parametrize("face", ["delivery", "handler"])
async def test_a_push_consumer_replies(autojump_clock, group_cluster, face):
    cluster = group_cluster
    cluster.name_server.add_route("C_REPLY_TOPIC", cluster.broker, queues=1)
    cluster.broker.script(REPLY, cluster.broker.send)
    cluster.broker.store("T", 0, b"ping", encode_properties(REQUEST).encode())
    async with cluster.client() as client, client.push_consumer("C", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        if face == "delivery":
            async for delivery in consumer:
                async with delivery:
                    assert await delivery.reply(b"pong") is True
                break
        else:

            async def handle(message: triomq.ReceivedMessage) -> None:
                assert await consumer.reply(message, b"pong") is True
                consumer.drain()

            await consumer.run(handle)
    (command,) = cluster.broker.requests(REPLY)
    assert (command.body, asked(command)["CORRELATION_ID"]) == (b"pong", "c-1")
    assert command.header(SendMessageRequestV2).producer_group == "CLIENT_INNER_PRODUCER"


def test_without_await(system_cluster):
    """The blocking face: a delivery, a handler and a producer reply, and a request ends in time."""
    cluster = system_cluster
    cluster.broker.consumers.serves_groups = True
    cluster.name_server.add_route("C_REPLY_TOPIC", cluster.broker, queues=1)
    cluster.broker.scripts[REPLY].extend([cluster.broker.send] * 3)
    cluster.broker.store("T", 0, b"ping", encode_properties(REQUEST).encode())
    with triomq.blocking.open_client(cluster.name_server.address, **cluster.options()) as client:
        producer = client.producer("G")
        with client.push_consumer("C", start_from="earliest") as consumer:
            consumer.subscribe("T")
            for delivery in consumer:
                with delivery as message:
                    assert delivery.reply(b"by delivery") is True
                    assert consumer.reply(message, b"by consumer") is True
                    assert producer.reply(message, b"by producer") is True
                break
        with pytest.raises(errors.ReplyTimeout):
            producer.request(ASK, 0.05)
    assert [command.body for command in cluster.broker.requests(REPLY)] == [
        b"by delivery",
        b"by consumer",
        b"by producer",
    ]
