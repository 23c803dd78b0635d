"""Retries: of which sends, on which brokers, and for how long (docs/protocol/client.md §6.9)."""

from __future__ import annotations

import math

import pytest
import trio

import triomq
from triomq import errors
from triomq._producer.strategies.faults import LatencyFaults
from triomq._producer.strategies.retry import (
    error_to_raise,
    is_last_attempt,
    pause_before_retry_s,
    wants_retry,
)
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.send import SendMessageRequestV2

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def refuse(code):
    return lambda command: command.answer(code, f"remark of {code}")


def headers(node):
    return [command.header(SendMessageRequestV2) for command in node.requests(SEND)]


@pytest.fixture
def brokers(cluster):
    """Two masters of topic T; both warm."""
    return cluster.broker, cluster.add_master("broker-b")


async def warm_up(client, group="G", **options):
    producer = client.producer(group, **options)
    for _ in range(4):
        await producer.send(triomq.Message("T", b"warm"))
    return producer


def first_of(brokers, result_broker):
    """(the broker that did not take the message, the one that did)"""
    one, two = brokers
    return (two, one) if one.name == result_broker else (one, two)


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
async def test_codes_that_are_tried_elsewhere(autojump_clock, cluster, brokers, properties_of, code):
    async with cluster.client() as client:
        producer = await warm_up(client)
        for broker in brokers:
            broker.seen.clear()
            broker.script(SEND, refuse(code))
        result = await producer.send(triomq.Message("T", b"x"))
    refused, took = first_of(brokers, result.queue.broker_name)
    requests = refused.requests(SEND) + took.requests(SEND)
    assert len(requests) == 3  # each refuses once
    assert {properties_of(request)["UNIQ_KEY"] for request in requests} == {result.message_id}
    assert {header.bname for header in headers(refused)} == {refused.name}
    assert {header.bname for header in headers(took)} == {took.name}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (2, errors.BrokerBusy),
        (3, errors.UnsupportedRequest),
        (13, errors.MessageIllegal),
        (215, errors.BrokerBusy),
        (999, errors.BrokerRefused),
    ],
)
async def test_codes_that_are_raised_at_once(autojump_clock, cluster, brokers, code, error):
    async with cluster.client() as client:
        producer = await warm_up(client)
        for broker in brokers:
            broker.seen.clear()
            broker.script(SEND, refuse(code))
        with pytest.raises(error) as caught:
            await producer.send(triomq.Message("T", b"x"))
    assert sum(len(broker.requests(SEND)) for broker in brokers) == 1
    assert (caught.value.code, caught.value.remark) == (code, f"remark of {code}")
    assert len(caught.value.attempts) == 1
    assert caught.value.address in {broker.address for broker in brokers}


@pytest.mark.parametrize(("several", "attempts"), [(False, 1), (True, 3)])
async def test_a_refused_account_is_tried_at_other_brokers_only(autojump_clock, cluster, several, attempts):
    brokers = [cluster.broker, cluster.add_master("broker-b")] if several else [cluster.broker]
    async with cluster.client() as client:
        producer = await warm_up(client)
        for broker in brokers:
            broker.script(SEND, *[lambda command: command.answer(1, "AclException: No accessKey is configured")] * 3)
        with pytest.raises(errors.AccessRefused) as caught:
            await producer.send(triomq.Message("T", b"x"))
    assert len(caught.value.attempts) == attempts


async def test_a_message_that_a_dledger_group_may_store_later_is_in_doubt(autojump_clock, cluster):
    """Its leader has stored it and waits for confirmations; a plain broker responds in the same words."""
    async with cluster.client() as client:
        producer = await warm_up(client)
        busy = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
        cluster.broker.script(SEND, *[lambda command: command.answer(1, busy)] * 3)
        with pytest.raises(errors.BrokerFault, match="outcome is unknown"):
            await producer.send(triomq.Message("T", b"x"))


async def test_the_final_error_lists_every_attempt(autojump_clock, cluster, brokers):
    async with cluster.client(route_wait_s=0) as client:
        producer = await warm_up(client)
        for broker in brokers:
            broker.script(SEND, refuse(14), refuse(14), refuse(14))
        with pytest.raises(errors.BrokerUnavailable) as caught:
            await producer.send(triomq.Message("T", b"x"))
    addresses = [attempt.address for attempt in caught.value.attempts]
    assert len(addresses) == 3
    assert addresses[0] != addresses[1] != addresses[2]
    text = str(caught.value)
    for part in (
        "attempt 1",
        "attempt 3",
        brokers[0].address,
        brokers[1].address,
        "SERVICE_NOT_AVAILABLE (14)",
        "remark of 14",
    ):
        assert part in text


async def test_without_a_name_server_nothing_counts_as_sent(autojump_clock, cluster, brokers):
    await cluster.name_server.stop()
    async with cluster.client(route_wait_s=0) as client, client.producer("P") as producer:
        with pytest.raises(errors.NoNameServer, match="nothing was sent") as caught:
            await producer.send(triomq.Message("T", b"x"))
    assert "attempt(s)" not in str(caught.value)


async def test_a_dead_broker_is_skipped(autojump_clock, cluster, brokers):
    async with cluster.client() as client:
        producer = await warm_up(client)
        await brokers[0].stop()
        brokers[1].seen.clear()
        for _ in range(10):
            result = await producer.send(triomq.Message("T", b"x"))
            assert result.queue.broker_name == "broker-b"
    assert len(brokers[1].requests(SEND)) == 10
    assert cluster.network.dials.count(brokers[0].address) <= 4  # not once per message


@pytest.mark.parametrize("form", ["awaited", "alone", "callback"])
@pytest.mark.parametrize("queues", [1, 2, 3])
async def test_a_broker_without_a_link_gets_its_turn(autojump_clock, cluster, brokers, make_callback, form, queues):
    """Whatever the number of queues: the turn of one that must be dialled does not go to the next queue."""
    cluster.name_server.add_route("T", *brokers, queues=queues)
    callback = make_callback()
    async with cluster.client() as client:
        producer = await warm_up(client, linger_s=None if form == "alone" else 0.0)
        await brokers[1].cut()
        await trio.sleep(0.1)
        brokers[1].seen.clear()
        for _ in range(3 * queues):
            await producer.send(triomq.Message("T", b"x"), *([callback] if form == "callback" else []))
            await producer.flush()
    assert brokers[1].requests(SEND)


async def test_a_lost_link_is_tried_elsewhere_at_once(autojump_clock, cluster, brokers):
    async def cut_now(command):
        await brokers[0].cut()

    async with cluster.client() as client:
        producer = await warm_up(client)
        brokers[0].script(SEND, cut_now)
        started = trio.current_time()
        results = [await producer.send(triomq.Message("T", b"x")) for _ in range(4)]
        assert trio.current_time() - started < 0.2
    assert all(result.status is triomq.SendStatus.SEND_OK for result in results)
    assert not brokers[0].scripts[SEND]


async def test_a_send_in_doubt_is_not_reported_as_unsent(autojump_clock, cluster):
    async def store_and_die(command):
        cluster.broker.serve(command)
        await cluster.broker.stop()

    async with cluster.client(route_wait_s=0) as client:
        producer = await warm_up(client)
        cluster.broker.script(SEND, store_and_die)
        with pytest.raises(errors.LinkLost, match="outcome is unknown") as caught:
            await producer.send(triomq.Message("T", b"x"))
        assert [type(each.error) for each in caught.value.attempts] == [errors.LinkLost, *[errors.ConnectFailed] * 2]
        with pytest.raises(errors.ConnectFailed, match="nothing was sent"):
            await producer.send(triomq.Message("T", b"y"))
    assert b"x" in cluster.broker.bodies("T")


async def test_a_send_in_doubt_without_a_master_is_an_error_in_doubt(autojump_clock, cluster):
    slave = cluster.add_slave()

    async def store_and_vanish(command):
        cluster.broker.serve(command)
        cluster.name_server.add_route("T", slave)
        await cluster.broker.stop()

    async with cluster.client() as client:
        producer = await warm_up(client)
        cluster.broker.script(SEND, store_and_vanish)
        with pytest.raises(errors.LinkLost, match="outcome is unknown"):
            await producer.send(triomq.Message("T", b"x"))


def change_masters(cluster, *, registered_s=0.0):
    """The first master and its slave change roles, as in RocketMQ 5's controller mode; returns the new master.

    The slave rejects sends as one of RocketMQ 5 does, before it looks at them. The name server learns of the change
    after so many seconds.
    """
    new = cluster.add_slave()

    def reject(command):
        return command.answer(2, "[REJECTREQUEST]system busy, start flow control for a while")

    async def change():
        cluster.broker.script(SEND, *[reject] * 1000)
        await trio.sleep(registered_s)
        cluster.broker.broker_id, new.broker_id = 1, 0
        cluster.name_server.add_route("T", new, cluster.broker)

    return new, change


@pytest.mark.parametrize("registered_s", [0, 0.5, 2])
async def test_sends_follow_a_planned_change_of_the_master(autojump_clock, cluster, make_callback, registered_s):
    new, change = change_masters(cluster, registered_s=registered_s)
    callback = make_callback()
    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = await warm_up(client)
        started = trio.current_time()
        nursery.start_soon(change)
        await trio.testing.wait_all_tasks_blocked()
        await producer.send(triomq.Message("T", b"callback"), callback)
        result = await producer.send(triomq.Message("T", b"x"))
        assert trio.current_time() - started <= registered_s + 1.1
        await producer.flush()
    assert result.status is triomq.SendStatus.SEND_OK
    assert len(callback.results) == 1
    assert sorted(body for body in new.bodies("T") if body != b"warm") == [b"callback", b"x"]


async def test_a_master_that_rejects_what_it_has_no_room_for_is_not_asked_without_pauses(autojump_clock, cluster):
    _, change = change_masters(cluster, registered_s=math.inf)
    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = await warm_up(client)
        nursery.start_soon(change)
        await trio.testing.wait_all_tasks_blocked()
        cluster.broker.seen.clear()
        with pytest.raises(errors.RequestRejected, match="nothing was done") as caught:
            await producer.send(triomq.Message("T", b"x"))
        assert isinstance(caught.value, errors.BrokerBusy)
        assert len(cluster.broker.requests(SEND)) == len(caught.value.attempts) <= 9
        nursery.cancel_scope.cancel()


async def test_sends_to_a_given_queue_follow_a_change_of_the_master_too(autojump_clock, cluster):
    """Each has one attempt, to keep their order: none of them would ask for the route."""
    new, change = change_masters(cluster)
    queue = triomq.MessageQueue("T", "broker-a", 0)
    async with cluster.client() as client:
        producer = await warm_up(client)
        await change()
        with pytest.raises(errors.RequestRejected):
            await producer.send(triomq.Message("T", b"x"), queue=queue)
        await trio.sleep(0.1)
        assert (await producer.send(triomq.Message("T", b"y"), queue=queue)).queue == queue
    assert [body for body in new.bodies("T") if body != b"warm"] == [b"y"]


async def test_a_silent_broker_leaves_time_for_the_other(autojump_clock, cluster, brokers):
    async with cluster.client() as client:
        producer = await warm_up(client)
        for broker in brokers:
            broker.seen.clear()
        silent = []

        def silence(broker):
            def nothing(command):
                silent.append(broker)

            return nothing

        for broker in brokers:
            broker.script(SEND, silence(broker))
        started = trio.current_time()
        with pytest.raises(errors.RequestTimeout):
            # Both swallow one: 1.5 s, then 1.125 s; the third try is answered.
            await producer.send(triomq.Message("T", b"x"), queue=triomq.MessageQueue("T", "broker-a", 0))
        assert trio.current_time() - started == pytest.approx(3.0)
        assert silent == [brokers[0]]
        started = trio.current_time()
        brokers[0].script(SEND, silence(brokers[0]))
        result = await producer.send(triomq.Message("T", b"x"))
        assert result.status is triomq.SendStatus.SEND_OK
        assert trio.current_time() - started == pytest.approx(1.5 + 1.125)


async def test_the_first_send_of_all_gives_a_single_broker_the_whole_deadline(autojump_clock, cluster):
    """A synchronous master waits up to 3 s for its slave; asked again meanwhile, it would store the message twice."""
    async with cluster.client() as client:
        producer = client.producer("G")
        cluster.broker.script(SEND, None, None, None)
        started = trio.current_time()
        with pytest.raises(errors.RequestTimeout):
            await producer.send(triomq.Message("T", b"x"))
        assert trio.current_time() - started == pytest.approx(3, abs=0.1)
    assert len(cluster.broker.requests(SEND)) == 1


async def test_a_single_silent_broker_gets_the_whole_deadline_once(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G", send_timeout_s=2.0)
        await producer.send(triomq.Message("T", b"warm"))
        cluster.broker.seen.clear()
        cluster.broker.script(SEND, None, None, None)
        started = trio.current_time()
        with pytest.raises(errors.RequestTimeout) as caught:
            await producer.send(triomq.Message("T", b"x"))
        assert trio.current_time() - started == pytest.approx(2.0)
    assert len(cluster.broker.requests(SEND)) == 1
    assert len(caught.value.attempts) == 1


@pytest.mark.parametrize("form", ["awaited", "callback", "pinned", "batch"])
async def test_after_a_timeout_the_route_is_asked_for(autojump_clock, cluster, make_callback, form):
    """There may be a new broker: without the request it would not be used for up to 30 s."""
    callback, message = make_callback(), triomq.Message("T", b"x")
    async with cluster.client() as client:
        producer = await warm_up(client)
        other = cluster.add_master("broker-b")
        cluster.broker.scripts[SEND].extend([None] * 20)
        cluster.broker.script(RequestCode.SEND_BATCH_MESSAGE, None)
        if form == "callback":
            for _ in range(10):
                await producer.send(message, callback)
            await producer.flush()
            assert {type(error) for error in callback.errors} == {errors.RequestTimeout}
        else:
            options = {"queue": triomq.MessageQueue("T", "broker-a", 0)} if form == "pinned" else {}
            with pytest.raises(errors.RequestTimeout):
                await (
                    producer.send_batch([message, message]) if form == "batch" else producer.send(message, **options)
                )
        await trio.sleep(0.1)
        assert len(await producer.queues("T")) == 4
        for _ in range(2):
            await producer.send(message)
    assert other.requests(SEND)


async def test_a_send_whose_connection_does_not_open_asks_for_the_route_once(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await warm_up(client, send_timeout_s=1)
        cluster.name_server.seen.clear()
        await cluster.broker.cut()
        cluster.network.hanging.add(cluster.broker.address)
        with pytest.raises(errors.NotReady):
            await producer.send(triomq.Message("T", b"x"))
        await trio.sleep(0.4)
    assert len(cluster.name_server.requests(ROUTE)) == 1


def move(cluster, *others):
    """Let the master come back at another address; nothing answers at its old one."""
    old = cluster.broker
    new = type(old)(cluster.network, old.name)
    new.address = "new:10911"
    cluster.network.nodes = {**cluster.network.nodes, old.address: old, new.address: new}
    cluster.network.hanging.add(old.address)
    cluster.name_server.add_route("T", new, *others)
    return new


@pytest.mark.parametrize("kind", ["awaited", "callback", "one way", "given queue"])
@pytest.mark.parametrize("timeout_s", [1, 3])
async def test_a_master_at_another_address_is_found_by_the_first_send(autojump_clock, cluster, kind, timeout_s):
    queue = triomq.MessageQueue("T", "broker-a", 1)
    ends = []
    async with cluster.client() as client:
        producer = await warm_up(client, send_timeout_s=timeout_s)
        new = move(cluster)
        await cluster.broker.cut()
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        message = triomq.Message("T", b"x")
        if kind == "one way":
            await producer.send_oneway(message)
        elif kind == "callback":
            await producer.send(message, lambda result, error: ends.append(error))
            await producer.flush()
            assert ends == [None]
        else:
            await producer.send(message, queue=queue if kind == "given queue" else None)
        assert trio.current_time() - started < 0.8
    assert new.bodies("T") == [b"x"]


async def test_a_master_at_another_address_beside_one_that_answers(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    async with cluster.client() as client:
        producer = await warm_up(client, send_timeout_s=1)
        for _ in range(4):
            await producer.send(triomq.Message("T", b"x"))
        new = move(cluster, other)
        await cluster.broker.cut()
        await trio.testing.wait_all_tasks_blocked()
        slow = 0
        for _ in range(12):
            started = trio.current_time()
            await producer.send(triomq.Message("T", b"x"))
            slow += trio.current_time() - started > 0.4
            await trio.sleep(0.1)
        assert slow == 1
    assert new.bodies("T")


async def test_a_pinned_send_gets_one_attempt(autojump_clock, cluster, brokers):
    queue = triomq.MessageQueue("T", "broker-a", 0)
    async with cluster.client() as client:
        producer = await warm_up(client)
        for broker in brokers:
            broker.seen.clear()
        brokers[0].script(SEND, refuse(14), refuse(14))
        with pytest.raises(errors.BrokerUnavailable):
            await producer.send(triomq.Message("T", b"x"), queue=queue)
        with pytest.raises(errors.BrokerUnavailable):
            await producer.send(triomq.Message("T", b"x"), selector=lambda queues, message, arg: queue)
    assert len(brokers[0].requests(SEND)) == 2
    assert not brokers[1].requests(SEND)


async def test_the_deadline_covers_route_and_connection(autojump_clock, cluster):
    cluster.network.hanging.add(cluster.broker.address)
    async with cluster.client() as client:
        started = trio.current_time()
        with pytest.raises(errors.TransientError):
            await client.producer("G", send_timeout_s=1.0).send(triomq.Message("T", b"x"))
        assert trio.current_time() - started == pytest.approx(1.0)


async def test_code_17_asks_for_the_route_again(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = await warm_up(client)
        cluster.name_server.seen.clear()
        cluster.broker.script(SEND, refuse(17))
        await producer.send(triomq.Message("T", b"x"))
    assert len(cluster.name_server.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1


async def test_weak_statuses_are_tried_elsewhere_on_request(autojump_clock, cluster, brokers):
    def weakly(broker):
        def answer(command):
            stored = broker.send(command)
            stored.code = 12
            return stored

        return answer

    async with cluster.client() as client:
        producer = await warm_up(client, retry=triomq.plugins.Retries(retry_not_stored_ok=True))
        for broker in brokers:
            broker.script(SEND, weakly(broker))
        assert (await producer.send(triomq.Message("T", b"x"))).status is triomq.SendStatus.SEND_OK
        for broker in brokers:
            broker.scripts[SEND].clear()
            broker.script(SEND, *[weakly(broker)] * 3)
        assert (await producer.send(triomq.Message("T", b"x"))).status is triomq.SendStatus.FLUSH_SLAVE_TIMEOUT


async def test_faults_keep_sends_away_from_a_slow_broker(autojump_clock, cluster, brokers):
    async def slowly(command):
        await trio.sleep(0.7)
        return brokers[0].send(command)

    async with cluster.client() as client:
        producer = await warm_up(client, faults=LatencyFaults())
        brokers[0].script(SEND, slowly)
        for _ in range(4):
            await producer.send(triomq.Message("T", b"x"))
        brokers[0].seen.clear()
        for _ in range(8):
            await producer.send(triomq.Message("T", b"x"))
        assert not brokers[0].requests(SEND)
        await trio.sleep(31)
        for _ in range(4):
            await producer.send(triomq.Message("T", b"x"))
        assert brokers[0].requests(SEND)


async def test_every_attempt_counts_whatever_came_of_it(autojump_clock, cluster, brokers):
    def weakly(broker):
        def answer(command):
            stored = broker.send(command)
            stored.code = 12
            return stored

        return answer

    async with cluster.client() as client:
        producer = await warm_up(client, retry=triomq.plugins.Retries(retry_not_stored_ok=True))
        for broker in brokers:
            broker.seen.clear()
            broker.script(SEND, weakly(broker), refuse(14), refuse(14))
        result = await producer.send(triomq.Message("T", b"x"))
    # It is stored, though the later attempts failed.
    assert result.status is triomq.SendStatus.FLUSH_SLAVE_TIMEOUT
    assert sum(len(broker.requests(SEND)) for broker in brokers) == 3


@pytest.mark.parametrize("form", ["awaited", "callback"])
async def test_the_same_broker_gets_a_pause_before_each_further_attempt(autojump_clock, cluster, make_callback, form):
    times = []

    def refuse_and_note(command):
        times.append(trio.current_time())
        return command.answer(14, "not now")

    callback = make_callback()
    async with cluster.client(route_wait_s=0) as client:
        producer = await warm_up(client, retry=triomq.plugins.Retries(first_pause_s=0.1))
        cluster.broker.script(SEND, refuse_and_note, refuse_and_note, refuse_and_note)
        if form == "callback":
            await producer.send(triomq.Message("T", b"x"), callback)
            await producer.flush()
            (error,) = callback.errors
        else:
            with pytest.raises(errors.BrokerUnavailable) as caught:
                await producer.send(triomq.Message("T", b"x"))
            error = caught.value
    assert len(error.attempts) == len(times) == 3
    # Up to half of it is taken away by chance, and it doubles.
    assert 0.05 <= times[1] - times[0] <= 0.1
    assert 0.1 <= times[2] - times[1] <= 0.2


async def test_an_address_that_cannot_be_dialled_is_tried_again_after_its_pause(autojump_clock, cluster):
    async with cluster.client(backoff=triomq.Backoff(first_s=0.5, factor=1, jitter=0), route_wait_s=0) as client:
        producer = await warm_up(client)
        await cluster.broker.stop()
        started = trio.current_time()
        with pytest.raises(errors.ConnectFailed) as caught:
            await producer.send(triomq.Message("T", b"x"))
    assert len(caught.value.attempts) == 3
    assert trio.current_time() - started == pytest.approx(1.0)


# --- the pure decisions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "attempts_left", "elsewhere", "expected"),
    [(3, 3, True, 1.5), (1.5, 2, True, 1.125), (0.375, 1, True, 0.375), (3, 3, False, 3), (4, 10, True, 0.4)],
)
def test_slices(left, attempts_left, elsewhere, expected):
    assert triomq.plugins.Retries().attempt_timeout_s(left, attempts_left, elsewhere=elsewhere) == pytest.approx(
        expected
    )


def result_with(status):
    return triomq.SendResult(status, "id", "", triomq.MessageQueue("T", "a", 0), 0)


@pytest.mark.parametrize(
    ("options", "outcome", "expected"),
    [
        ({}, errors.LinkLost("x"), True),
        ({}, errors.ConnectFailed("x"), True),
        ({}, errors.RequestTimeout("x"), True),
        ({}, errors.RouteNotFound("x"), False),
        ({}, errors.Overloaded("x"), False),
        ({}, errors.ClientClosed("x"), False),
        ({}, errors.InvalidCall("x"), False),
        ({}, errors.BrokerUnavailable("x", code=14), True),
        ({}, errors.BrokerBusy("x", code=2), False),
        # It has stored nothing, and may be a slave by now: the policy has no part in this.
        ({}, errors.RequestRejected("x", code=2), True),
        ({"retry_codes": set()}, errors.RequestRejected("x", code=2), True),
        # A code decides alone, whatever its class says.
        ({"retry_codes": {2}}, errors.BrokerBusy("x", code=2), True),
        ({"retry_codes": {2}}, errors.BrokerUnavailable("x", code=14), False),
        ({}, result_with(triomq.SendStatus.SEND_OK), False),
        ({}, result_with(triomq.SendStatus.FLUSH_SLAVE_TIMEOUT), False),
        ({"retry_not_stored_ok": True}, result_with(triomq.SendStatus.FLUSH_SLAVE_TIMEOUT), True),
        ({"retry_not_stored_ok": True}, result_with(triomq.SendStatus.SEND_OK), False),
    ],
)
def test_which_outcomes_are_retried(options, outcome, expected):
    assert wants_retry(triomq.plugins.Retries(**options), outcome) is expected


@pytest.mark.parametrize(
    ("attempt", "max_attempts", "left_s", "expected"),
    [
        (1, 3, 3, False),
        (2, 3, 0.1, False),
        (3, 3, 2, True),
        (4, 3, 2, True),
        (1, 1, 3, True),
        (1, 3, 0, True),
        (1, 3, -1, True),
    ],
)
def test_which_attempt_is_the_last(attempt, max_attempts, left_s, expected):
    assert is_last_attempt(attempt, max_attempts, left_s) is expected


@pytest.mark.parametrize(
    ("attempt", "chance", "elsewhere", "redial_in_s", "left_s", "expected"),
    [
        (1, 0.0, False, 0, 3, 0.05),
        (2, 0.0, False, 0, 3, 0.1),
        (3, 0.0, False, 0, 3, 0.2),
        (9, 0.0, False, 0, 3, 1.0),  # bounded
        (1, 0.5, False, 0, 3, 0.0375),
        (1, 0.0, True, 2, 3, 0.0),  # another broker at once
        (1, 0.0, False, 2, 3, 2.0),
        (1, 0.0, False, 2, 1, 1.0),  # never past the deadline
        (1, 0.0, False, 0, -1, 0.0),
    ],
)
def test_pauses(attempt, chance, elsewhere, redial_in_s, left_s, expected):
    pause_s = pause_before_retry_s(
        triomq.plugins.Retries(), attempt, chance, elsewhere=elsewhere, redial_in_s=redial_in_s, left_s=left_s
    )
    assert pause_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([errors.ConnectFailed], 0),
        ([errors.LinkLost, errors.ConnectFailed], 0),
        ([errors.RequestTimeout, errors.LinkLost, errors.ConnectFailed], 1),
        ([errors.NotReady, errors.ConnectFailed], 1),  # it had sent nothing either
        ([errors.LinkLost, errors.BrokerUnavailable], 1),
    ],
)
def test_which_error_is_raised(kinds, expected):
    attempts = [errors.Attempt("b:1", kind("x"), 0.1) for kind in kinds]
    assert error_to_raise(attempts[-1].error, attempts) is attempts[expected].error


async def test_a_silent_name_server_is_named_and_nothing_was_sent(autojump_clock, cluster, make_callback):
    cluster.name_server.script(ROUTE, *[None] * 6)
    async with cluster.client() as client:
        producer = client.producer("G")
        with pytest.raises(errors.NotReady) as caught:
            await producer.send(triomq.Message("T", b"x"))
        callback = make_callback()
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
        of_callback = str(callback.errors[0])
    for text in (str(caught.value), of_callback):
        assert "asked ns:9876" in text
        assert "the last attempt sent nothing" in text
        assert "duplicate" not in text
        assert "no address" not in text


async def test_waiting_for_a_route_fails_when_the_client_closes(autojump_clock, cluster):
    async def never(address):
        await trio.sleep_forever()

    caught = []

    async def send(producer):
        try:
            await producer.send(triomq.Message("T", b"x"))
        except errors.MQError as error:
            caught.append(error)

    async with trio.open_nursery() as nursery, cluster.client(dial=never) as client:
        nursery.start_soon(send, client.producer("G"))
        await trio.testing.wait_all_tasks_blocked()
    assert "the client was closed" in str(caught[0])


@pytest.mark.parametrize("left", ["client", "producer"])
async def test_a_send_that_pauses_before_another_attempt_ends_when_it_closes(autojump_clock, cluster, left):
    """A short pause: the send would otherwise hold up the end of its task for as long."""
    ended = []

    async def send(producer):
        with pytest.raises(errors.ClientClosed) as caught:
            await producer.send(triomq.Message("T", b"x"))
        ended.append((trio.current_time(), caught.value))

    async with cluster.client() as client, trio.open_nursery() as nursery:
        retry = triomq.plugins.Retries(first_pause_s=1.0)
        producer = client.producer("G", retry=retry, linger_s=None)
        await producer.send(triomq.Message("T", b"warm"))
        cluster.broker.script(SEND, refuse(14))
        cluster.broker.seen.clear()
        nursery.start_soon(send, producer)
        await trio.sleep(0.1)  # of the pause of at least 0.5 s
        closed_at = trio.current_time()
        assert len(cluster.broker.requests(SEND)) == 1
        await (client if left == "client" else producer).aclose()
    ((ended_at, error),) = ended
    assert ended_at == closed_at
    assert [type(attempt.error) for attempt in error.attempts] == [errors.BrokerUnavailable, errors.ClientClosed]
    assert len(cluster.broker.requests(SEND)) == 1


@pytest.mark.parametrize("pauses", [{"first_pause_s": 0}, {"max_pause_s": 0}])
async def test_a_policy_without_pauses_tries_again_at_once(autojump_clock, cluster, caplog, pauses):
    async with cluster.client() as client:
        producer = await warm_up(client, retry=triomq.plugins.Retries(**pauses))
        started = trio.current_time()
        cluster.broker.script(SEND, refuse(14), refuse(14))
        await producer.send(triomq.Message("T", b"x"))
    assert trio.current_time() == started
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
