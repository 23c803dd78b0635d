"""One connection: who waits for what, and how it ends."""

from __future__ import annotations

import itertools
import random

import pytest
import trio
from trio.testing import memory_stream_pair

import triomq
from triomq import errors
from triomq._transport.link import WRITE_EVERY, Link, TaskWaiter
from triomq._transport.links import DEAD_MAX, Backoff, Links
from triomq_protocol.requests import (
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    NotifyConsumerIdsChangedRequest,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder


class Peer:
    """The other end of a link, controlled by the test."""

    def __init__(self, stream):
        self.stream = stream
        self.decoder = FrameDecoder()
        self.waiting = []

    async def next(self):
        while not self.waiting:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self.waiting += self.decoder.feed(bytes(data))
        return self.waiting.pop(0)


@pytest.fixture
async def link_pair(nursery):
    ours, theirs = memory_stream_pair()
    link = Link("peer:1", ours, max_pending=4, max_unsent_bytes=10_000)
    await nursery.start(link.run)
    return link, Peer(theirs)


class NowaitMemoryStream(trio.abc.Stream):
    """A stream that takes bytes without waiting: at most ``capacity`` of them, the rest has to wait for the writer."""

    def __init__(self, inner):
        self.inner = inner
        self.capacity = 1_000_000
        self.at_once = []
        self.later = []

    def send_nowait(self, data, /):
        taken = bytes(data[: self.capacity])
        self.at_once.append(taken)
        return len(taken)

    def receive_nowait(self, max_bytes, /):
        raise trio.WouldBlock

    async def send_all(self, data):
        self.later.append(bytes(data))
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        return await self.inner.receive_some(max_bytes)

    async def aclose(self):
        await self.inner.aclose()


def ask(code=999):
    return Command.request(code)


async def outcome(link, timeout_s=3.0):
    try:
        return await link.request(ask(), timeout_s)
    except errors.MQError as error:
        return error


async def test_answers_find_their_requests_in_any_order(autojump_clock, link_pair, nursery):
    link, peer = link_pair
    answers = {}

    async def request(code):
        answers[code] = await link.request(ask(code), 3)

    for code in (1, 2, 3):
        nursery.start_soon(request, code)
    requests = [await peer.next() for _ in range(3)]
    assert len({each.opaque for each in requests}) == 3
    for each in reversed(requests):
        await peer.stream.send_all(each.answer(0, str(each.code)).encode())
    await trio.testing.wait_all_tasks_blocked()
    assert {code: answer.remark for code, answer in answers.items()} == {1: "1", 2: "2", 3: "3"}


async def test_a_frame_is_sent_at_once_if_requested_or_alone(nursery):
    stream = NowaitMemoryStream(memory_stream_pair()[0])
    link = Link("peer:1", stream)
    await nursery.start(link.run)

    def submit(frame, *, now=False):
        opaque = link.next_opaque()
        link.submit(frame, opaque, TaskWaiter(trio.current_time() + 60), now=now)

    submit(b"alone")
    submit(b"urgent", now=True)
    assert stream.at_once == [b"alone", b"urgent"]
    submit(b"one")
    submit(b"two")
    # Others are on their way: nothing overtakes them.
    submit(b"three", now=True)
    assert stream.at_once == [b"alone", b"urgent"]
    await trio.testing.wait_all_tasks_blocked()
    assert stream.later == [b"onetwothree"]
    stream.capacity = 2
    submit(b"long", now=True)
    submit(b"next", now=True)
    assert stream.at_once[2:] == [b"lo"]
    await trio.testing.wait_all_tasks_blocked()
    assert stream.later[1:] == [b"ngnext"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("frames", "capacity", "at_once", "later"),
    [
        (WRITE_EVERY, 1_000_000, [range(1)], [range(1, WRITE_EVERY)]),
        (WRITE_EVERY + 1, 1_000_000, [range(1), range(1, WRITE_EVERY + 1)], []),
        (WRITE_EVERY + 3, 1_000_000, [range(1), range(1, WRITE_EVERY + 1)], [range(WRITE_EVERY + 1, WRITE_EVERY + 3)]),
        # A full kernel is not asked again and again: the writer has the rest, in order.
        (3 * WRITE_EVERY, 6, [range(1), range(1, 3)], [range(3, 3 * WRITE_EVERY)]),
    ],
)
async def test_a_burst_begins_to_be_sent_before_its_end(nursery, frames, capacity, at_once, later):
    stream = NowaitMemoryStream(memory_stream_pair()[0])
    link = Link("peer:1", stream)
    await nursery.start(link.run)
    stream.capacity = capacity

    def bytes_of(writes):
        return [b"".join(b"%2d " % number for number in numbers) for numbers in writes]

    for number in range(frames):
        link.submit(b"%2d " % number, link.next_opaque(), TaskWaiter(trio.current_time() + 60))
    assert stream.at_once == bytes_of(at_once)
    assert not stream.later
    await trio.testing.wait_all_tasks_blocked()
    assert stream.later == bytes_of(later)
    assert link.unsent_bytes == 0


async def test_frames_split_anywhere(autojump_clock, link_pair, nursery):
    link, peer = link_pair
    results = []

    @nursery.start_soon
    async def request():
        results.append(await outcome(link))

    asked = await peer.next()
    for byte in asked.answer(7, "in pieces").encode():
        await peer.stream.send_all(bytes([byte]))
    await trio.testing.wait_all_tasks_blocked()
    assert results[0].remark == "in pieces"


async def test_an_answer_in_front_of_garbage_is_received(autojump_clock, link_pair, nursery):
    link, peer = link_pair
    results = []

    async def request():
        results.append(await outcome(link))

    nursery.start_soon(request)
    nursery.start_soon(request)
    asked = await peer.next()
    await peer.next()
    await peer.stream.send_all(asked.answer(7, "received").encode() + b"\x7f\xff\xff\xff????")
    await trio.testing.wait_all_tasks_blocked()
    results.sort(key=lambda each: isinstance(each, Exception))
    assert results[0].remark == "received"
    assert isinstance(results[1], errors.ProtocolViolation)
    assert not link.is_open


async def test_a_late_answer_is_dropped_and_the_link_lives(autojump_clock, link_pair, nursery):
    link, peer = link_pair
    assert isinstance(await outcome(link, 1.0), errors.RequestTimeout)
    late = await peer.next()
    await peer.stream.send_all(late.answer(0).encode())
    await trio.testing.wait_all_tasks_blocked()
    assert link.is_open
    assert not link.pending


async def test_each_request_has_its_own_deadline(autojump_clock, link_pair, nursery):
    link, peer = link_pair
    ends = {}
    started = trio.current_time()

    async def request(timeout_s):
        await outcome(link, timeout_s)
        ends[timeout_s] = trio.current_time() - started

    for timeout_s in (3.0, 1.0, 2.0):
        nursery.start_soon(request, timeout_s)
    requests = [await peer.next() for _ in range(3)]
    await trio.sleep(0.5)
    await peer.stream.send_all(Command.request(40).encode())  # a sign of life
    await trio.sleep(2)
    await peer.stream.send_all(requests[0].answer(0).encode())
    await trio.sleep(3)
    assert sorted(ends) == [1.0, 2.0, 3.0]
    assert ends[1.0] == pytest.approx(1.0)
    assert ends[2.0] == pytest.approx(2.0)


async def test_an_opaque_of_a_waiting_request_is_not_given_again(autojump_clock, link_pair):
    link, _ = link_pair
    link._opaque = 0x7FFFFFFE
    first = link.next_opaque()
    link.pending[first] = TaskWaiter(60)
    link.pending[0] = link.pending[1] = link.pending[first]
    assert (first, link.next_opaque(), link.next_opaque()) == (0x7FFFFFFF, 2, 3)
    link.pending.clear()


async def test_a_cancelled_request_is_dropped(autojump_clock, link_pair):
    link, peer = link_pair
    with trio.move_on_after(1):
        await link.request(ask(), 30)
    assert not link.pending
    assert link.is_open
    assert (await peer.next()).code == 999


async def test_a_silent_peer_is_given_up_after_two_timeouts(autojump_clock, link_pair):
    link, _peer = link_pair
    assert isinstance(await outcome(link, 1.0), errors.RequestTimeout)
    assert link.is_open
    await outcome(link, 1.0)
    await trio.testing.wait_all_tasks_blocked()
    assert not link.is_open
    assert isinstance(await outcome(link), errors.LinkLost)


async def test_requests_that_time_out_together_do_not_fail_those_with_more_time(autojump_clock, link_pair, nursery):
    """A peer that pauses for two seconds answers them, and they may be in an order that no second attempt would keep."""
    link, peer = link_pair
    ends = []

    async def patient():
        ends.append(await outcome(link, 3.0))

    nursery.start_soon(patient)
    command = await peer.next()
    for number in range(20):
        nursery.start_soon(outcome, link, 1.5 + number / 100)
    await trio.sleep(2)
    assert link.is_open
    await peer.stream.send_all(command.answer(0).encode())
    await trio.testing.wait_all_tasks_blocked()
    assert [each.code for each in ends] == [0]


async def test_a_silent_peer_is_given_up_a_second_after_requests_timed_out_together(autojump_clock, link_pair, nursery):
    """Even if nothing was sent since: the next requests would find a dead link."""
    link, _peer = link_pair
    for number in range(3):
        nursery.start_soon(outcome, link, 1.0 + number / 100)
    await trio.sleep(1.9)
    assert link.is_open
    await trio.sleep(0.2)
    assert not link.is_open


async def test_a_peer_whose_long_answer_arrives_slowly_is_not_given_up(autojump_clock, link_pair, nursery):
    """Short requests time out meanwhile, since their answers come after it on the connection."""
    link, peer = link_pair
    nursery.start_soon(outcome, link, 1.0)
    frame = (await peer.next()).answer(0, body=bytes(100)).encode()
    for begin in range(0, len(frame), 20):
        await peer.stream.send_all(frame[begin : begin + 20])
        assert isinstance(await outcome(link, 1.0), errors.RequestTimeout)
        assert link.is_open


async def test_a_proxy_is_not_given_up_for_a_broker_that_it_does_not_answer_for(autojump_clock, link_pair, nursery):
    """Its client would leave its groups, and their other members would share the queues again."""
    link, peer = link_pair
    link._is_shared = lambda address: address == link.address
    nursery.start_soon(outcome, link)
    command = await peer.next()
    await peer.stream.send_all(command.answer(0).encode())
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(10):
        assert isinstance(await outcome(link, 3.0), errors.RequestTimeout)
        assert link.is_open
    # It would not answer for itself either.
    for _ in range(2):
        await outcome(link, 3.0)
    await trio.testing.wait_all_tasks_blocked()
    assert not link.is_open


@pytest.mark.parametrize("how", ["eof", "reset", "garbage", "close", "huge"])
async def test_every_waiter_fails_at_once_when_the_link_ends(autojump_clock, link_pair, nursery, how):
    link, peer = link_pair
    results = []

    async def request():
        results.append(await outcome(link, 1000))

    for _ in range(3):
        nursery.start_soon(request)
    await peer.next()
    started = trio.current_time()
    if how == "eof":
        await peer.stream.send_eof()
    elif how == "reset":
        await trio.aclose_forcefully(peer.stream)
    elif how == "garbage":
        await peer.stream.send_all(b"\x00\x00\x00\x08\x00\x00\x00\x04nope")
    elif how == "huge":
        await peer.stream.send_all(b"\x7f\xff\xff\xff")
    else:
        link.close(errors.ClientClosed("over"))
    await trio.testing.wait_all_tasks_blocked()
    expected = {"garbage": errors.ProtocolViolation, "huge": errors.ProtocolViolation, "close": errors.ClientClosed}
    assert [type(each) for each in results] == [expected.get(how, errors.LinkLost)] * 3
    assert len({id(each) for each in results}) == 3
    assert trio.current_time() == started
    with pytest.raises(errors.MQError):
        link.notify(ask())
    if how != "reset":
        with pytest.raises(EOFError):
            await outlive(peer)


async def outlive(peer):
    while True:
        await peer.next()


async def test_limits(autojump_clock, link_pair, nursery):
    link, peer = link_pair
    for _ in range(4):
        nursery.start_soon(outcome, link, 10)
    await trio.testing.wait_all_tasks_blocked()
    assert not link.has_capacity
    started = trio.current_time()
    with pytest.raises(errors.Overloaded):
        await link.request(ask(), 1)
    assert trio.current_time() - started == pytest.approx(1)
    nursery.start_soon(outcome, link, 10)
    first = await peer.next()
    await peer.stream.send_all(first.answer(0).encode())
    requests = [await peer.next() for _ in range(4)]
    assert len(requests) == 4


async def test_a_request_that_is_cancelled_makes_room_for_the_next(autojump_clock, link_pair, nursery):
    link, _peer = link_pair
    scope = trio.CancelScope()

    async def cancelled():
        with scope:
            await link.request(ask(), 10)

    nursery.start_soon(cancelled)
    for _ in range(3):
        nursery.start_soon(outcome, link, 10)
    await trio.testing.wait_all_tasks_blocked()
    assert not link.has_capacity
    started = trio.current_time()
    async with trio.open_nursery() as waiters:
        waiters.start_soon(link.wait_capacity)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    assert trio.current_time() == started


async def test_unsent_bytes_are_bounded(autojump_clock, nursery):
    ours, _theirs = memory_stream_pair()
    gate = trio.Event()

    async def hold():
        await gate.wait()

    ours.send_stream.send_all_hook = hold
    link = Link("peer:1", ours, max_unsent_bytes=1000)
    await nursery.start(link.run)
    link.write(b"x" * 2000)
    await trio.testing.wait_all_tasks_blocked()
    link.write(b"y")
    assert not link.has_capacity
    gate.set()
    await link.wait_capacity()
    assert link.has_capacity


async def test_a_request_that_waits_for_a_link_that_is_lost(autojump_clock, nursery):
    ours, _theirs = memory_stream_pair()
    ours.send_stream.send_all_hook = trio.sleep_forever
    link = Link("peer:1", ours, max_unsent_bytes=1000)
    nursery.start_soon(link.run)
    link.write(b"x" * 2000)
    async with trio.open_nursery() as waiting:

        @waiting.start_soon
        async def asks():
            with pytest.raises(errors.LinkLost, match="it broke"):
                await link.request(ask(), 10)

        await trio.testing.wait_all_tasks_blocked()
        link.close(errors.LinkLost("it broke", address="peer:1"))


async def test_answers_to_a_peer_that_reads_none_are_bounded(autojump_clock, nursery, caplog):
    ours, theirs = memory_stream_pair()
    ours.send_stream.send_all_hook = trio.sleep_forever
    link = Link("peer:1", ours, max_unsent_bytes=1000)
    await nursery.start(link.run)
    for opaque in range(100):
        await theirs.send_all(Command.request(311, opaque=opaque).encode())
    await trio.testing.wait_all_tasks_blocked()
    assert 1000 <= link.unsent_bytes < 1200
    assert [each for each in caplog.messages if "dropped" in each] == [
        "peer:1 reads too little: the answer to its request is dropped"
    ]
    assert link.is_open


async def test_frames_of_one_tick_are_one_send(autojump_clock, nursery):
    sizes = []
    ours, _theirs = memory_stream_pair()
    real = ours.send_stream.send_all

    async def send_all(data):
        sizes.append(len(data))
        await real(data)

    ours.send_stream.send_all = send_all
    link = Link("peer:1", ours)
    await nursery.start(link.run)
    for _ in range(10):
        link.write(b"x" * 7)
    await trio.testing.wait_all_tasks_blocked()
    assert sizes == [70]


async def test_a_peer_that_dies_before_the_first_frame_is_a_lost_link(autojump_clock, nursery):
    ours, theirs = memory_stream_pair()
    link = Link("peer:1", ours)
    link.write(b"x")
    await theirs.aclose()
    await link.run()
    with pytest.raises(errors.LinkLost):
        await link.request(ask(), 3)


# --- requests of the peer --------------------------------------------------------------------------------------


async def asked_by_broker(cluster, command):
    """Let the broker ask the client over the link that carried its heartbeat."""
    answers = []
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        queue = triomq.MessageQueue("T", "broker-a", 1)
        consumer.seek(queue, 5)
        await consumer.fetch_queues("T")
        await trio.sleep(2)
        (stream,) = cluster.broker.streams
        cluster.broker.answers = answers
        await stream.send_all(command.encode())
        await trio.sleep(1)
        assert len(await consumer.fetch_queues("T")) == 2
    return [each for each in cluster.broker.seen if each.is_response]


async def test_unknown_requests_are_answered_with_code_3(autojump_clock, cluster):
    (answer,) = await asked_by_broker(cluster, Command.request(311, opaque=77))
    assert (answer.code, answer.opaque, answer.remark) == (3, 77, " request type 311 not supported")


async def test_notifications_are_not_answered(autojump_clock, cluster):
    header = NotifyConsumerIdsChangedRequest(consumer_group="G")
    assert not await asked_by_broker(cluster, Command.request(40, header, oneway=True))


async def test_consumer_status(autojump_clock, cluster):
    header = GetConsumerStatusRequest(topic="T", group="G")
    (answer,) = await asked_by_broker(cluster, Command.request(221, header))
    table = GetConsumerStatusBody.decode(answer.body).message_queue_table
    assert table == {triomq.MessageQueue("T", "broker-a", 1): 5}


@pytest.mark.parametrize(("group", "code"), [("G", 0), ("H", 1)])
async def test_running_info(autojump_clock, cluster, group, code):
    header = GetConsumerRunningInfoRequest(consumer_group=group, client_id="c")
    (answer,) = await asked_by_broker(cluster, Command.request(307, header))
    assert answer.code == code
    if not code:
        properties = ConsumerRunningInfo.decode(answer.body).properties
        assert properties["PROP_CLIENT_VERSION"] == "V4_9_7"
        assert properties["PROP_NAMESERVER_ADDR"] == "ns:9876;"
        assert properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"


async def test_an_unusable_request_is_answered_with_code_1(autojump_clock, cluster):
    (answer,) = await asked_by_broker(cluster, Command.request(307))
    assert answer.code == 1
    assert "consumerGroup" in (answer.remark or "")


# --- many links ------------------------------------------------------------------------------------------------


@pytest.fixture
def links(cluster, nursery):
    return Links(nursery, cluster.network.dial, chance=random.Random(3), backoff=Backoff(jitter=0.0))


async def test_callers_share_one_dial(autojump_clock, cluster, links, nursery):
    got = []

    async def get():
        got.append(await links.get(cluster.broker.address))

    async with trio.open_nursery() as callers:
        for _ in range(5):
            callers.start_soon(get)
    assert len({id(link) for link in got}) == 1
    assert len(cluster.network.dials) == 1
    links.close()


async def test_one_callers_cancel_does_not_end_the_others_dial(autojump_clock, cluster, links):
    got = []

    async def get():
        got.append(await links.get(cluster.broker.address))

    async with trio.open_nursery() as callers:
        callers.start_soon(get)
        with trio.CancelScope() as scope:
            scope.cancel()
            await links.get(cluster.broker.address)
    assert len(got) == 1
    links.close()


async def test_the_pauses_before_a_dead_address_is_tried_again_grow(autojump_clock, cluster, links):
    dials = []
    for _ in range(200):
        before = len(cluster.network.dials)
        with pytest.raises(errors.ConnectFailed, match="no listener"):
            await links.get("dead:1")
        if len(cluster.network.dials) > before:
            dials.append(trio.current_time())
        await trio.sleep(0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(dials)]
    assert gaps == [pytest.approx(gap, abs=0.06) for gap in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)][: len(gaps)]
    assert len(gaps) >= 5
    with pytest.raises(errors.ConnectFailed):
        await links.get("dead:1", patient=False)
    assert len(cluster.network.dials) == len(dials) + 1


async def test_an_address_that_answers_again_is_trusted_again(autojump_clock, cluster, links):
    cluster.broker.up = False
    for _ in range(4):
        with pytest.raises(errors.ConnectFailed):
            await links.get(cluster.broker.address, patient=False)
    assert links.is_down(cluster.broker.address)
    cluster.broker.up = True
    link = await links.get(cluster.broker.address, patient=False)
    assert not links.is_down(cluster.broker.address)
    await trio.testing.wait_all_tasks_blocked()
    await cluster.broker.cut()
    await trio.testing.wait_all_tasks_blocked()
    assert links.ready(cluster.broker.address) is None
    assert (await links.get(cluster.broker.address)) is not link
    links.close()


async def test_connecting_takes_three_seconds_at_most(autojump_clock, cluster, links):
    cluster.network.hanging.add("far:1")
    started = trio.current_time()
    with pytest.raises(errors.ConnectFailed, match="within 3 s"):
        await links.get("far:1")
    assert trio.current_time() - started == pytest.approx(3)


def test_backoff_is_bounded_and_jittered():
    backoff = Backoff(first_s=1, factor=2, max_s=10, jitter=0.5)
    assert [backoff.pause_s(n, 0.0) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 10, 10]
    assert backoff.pause_s(3, 0.5) == 3
    for factor in (1e20, 10**20, float("inf")):
        assert Backoff(factor=factor, max_s=7, jitter=0).pause_s(1000, 0.0) == 7


async def test_no_more_dead_addresses_are_kept_than_the_limit(autojump_clock, nursery):
    async def refuse(address):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(address)

    links = Links(nursery, refuse, backoff=Backoff(first_s=1000, max_s=1000, jitter=0))
    for number in range(DEAD_MAX + 1):
        with pytest.raises(errors.ConnectFailed):
            await links.get(f"b{number}:1")
    assert not links.is_down("b0:1")
    assert links.is_down("b1:1")
    assert links.is_down(f"b{DEAD_MAX}:1")


def raising(error):
    async def dial(_address):
        await trio.lowlevel.checkpoint()
        raise error

    return dial


def returning(what):
    async def dial(_address):
        await trio.lowlevel.checkpoint()
        return what

    return dial


def text_of_awaiting(value):
    """Python's own text, which differs from version to version."""

    async def wait():
        await value

    with pytest.raises(TypeError) as caught:
        wait().send(None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dial", "says"),
    [
        (raising(KeyError("proxy")), "KeyError: 'proxy'"),
        (raising(ExceptionGroup("both", [OSError("a"), RuntimeError("b")])), "ExceptionGroup: both"),
        (returning(None), "it returned NoneType, not a trio.abc.Stream"),
        (returning(5), "it returned int, not a trio.abc.Stream"),
        (lambda _address: None, f"TypeError: {text_of_awaiting(None)}"),
        (lambda: None, "TypeError"),
    ],
)
async def test_a_dialer_that_fails_ends_no_client(autojump_clock, cluster, caplog, dial, says):
    fails = True

    async def sometimes(address):
        return await (dial(address) if fails else cluster.network.dial(address))

    async with triomq.open_client(cluster.name_server.address, **cluster.options(dial=sometimes)) as client:
        producer = client.producer("G", send_timeout_s=1.0)
        with pytest.raises(errors.NoNameServer) as caught:
            await producer.send(triomq.Message("T", b"x"))
        assert says in str(caught.value)
        assert "the dialer test_a_dialer_that_fails_ends_no_client.<locals>.sometimes failed" in str(caught.value)
        lines = [each for each in caplog.records if each.name == "triomq.links" and each.levelname == "ERROR"]
        assert len(lines) == 1  # of several dials
        assert says in lines[0].message
        fails = False
        await trio.sleep(5)
        await producer.send(triomq.Message("T", b"x"))


async def test_a_dialer_whose_task_fails_at_its_deadline_ends_no_client(autojump_clock, cluster, caplog):
    fails = True

    async def ends_badly():
        try:
            await trio.sleep_forever()
        finally:
            raise RuntimeError("half open")

    async def sometimes(address):
        if fails:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ends_badly)
                await trio.sleep_forever()
        return await cluster.network.dial(address)

    async with triomq.open_client(cluster.name_server.address, **cluster.options(dial=sometimes)) as client:
        producer = client.producer("G", send_timeout_s=1.0)
        with pytest.raises(errors.MQError):
            await producer.send(triomq.Message("T", b"x"))
        fails = False
        await trio.sleep(5)
        assert "sometimes failed: ExceptionGroup" in caplog.text
        await producer.send(triomq.Message("T", b"x"))


class UsersStream(trio.abc.Stream):
    """A stream of a user's dialer: it fails as the test sets it."""

    def __init__(self, inner, failures):
        self.inner = inner
        self.failures = failures

    def act(self, method, data=None):
        if method not in self.failures:
            return data
        failure = self.failures[method]
        if isinstance(failure, Exception):
            raise failure
        return failure

    async def send_all(self, data):
        self.act("send")
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes=None):
        return self.act("receive", await self.inner.receive_some(max_bytes))

    async def aclose(self):
        try:
            await self.inner.aclose()
        finally:
            self.act("close")


class StreamWithTask(UsersStream):
    """One with a task that fails when the link ends by a failure."""

    async def receive_some(self, max_bytes=None):
        async def ends_badly():
            try:
                await trio.sleep_forever()
            finally:
                if self.failures:
                    raise RuntimeError("half open")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends_badly)
            data = await self.inner.receive_some(max_bytes)
            nursery.cancel_scope.cancel()
        return data


async def test_a_stream_whose_task_fails_at_the_end_of_its_link_ends_no_client(autojump_clock, cluster, caplog):
    failures = {}

    async def dial(address):
        return StreamWithTask(await cluster.network.dial(address), failures)

    async with cluster.client(dial=dial) as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        failures["send"] = ConnectionResetError(104, "reset")
        with pytest.raises(errors.MQError):
            await producer.send(triomq.Message("T", b"x"))
        failures.clear()
        await trio.sleep(10)
        await producer.send(triomq.Message("T", b"x"))
    assert "the StreamWithTask to" in caplog.text


@pytest.mark.parametrize("method", ["send", "receive", "close"])
@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError(104, "reset"),
        RuntimeError("boom"),
        ValueError("boom"),
        ExceptionGroup("g", [KeyError("k")]),
        "text",
    ],
    ids=repr,
)
async def test_a_stream_that_fails_ends_its_link_and_no_client(
    autojump_clock, cluster, make_callback, caplog, method, failure
):
    failures = {}

    async def dial(address):
        return UsersStream(await cluster.network.dial(address), failures)

    async with cluster.client(dial=dial) as client:
        producer = client.producer("G")
        await producer.send(triomq.Message("T", b"x"))
        failures[method], said = failure, []
        if method == "close":
            await cluster.broker.cut()
        for callback in (None, make_callback()):
            try:
                await producer.send(triomq.Message("T", b"x"), callback)
                await producer.flush()
            except errors.LinkLost as error:
                said.append(str(error))
        failures.clear()
        await trio.sleep(10)
        await producer.send(triomq.Message("T", b"x"))
    assert all(type(failure).__name__ in each or failure == "text" for each in said)
    unexpected = isinstance(failure, Exception) and (method == "close" or not isinstance(failure, OSError))
    assert ("the UsersStream to" in caplog.text) == (unexpected or (method, failure) == ("receive", "text"))
