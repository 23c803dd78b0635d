"""A client's counters, and their export to metrics systems."""

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq._cluster.counters import CODES_MAX, NAMES_MAX, OTHERS, Counters, count_code
from triomq_protocol.codes import RequestCode, ResponseCode


def refusal(code):
    return lambda request: request.answer(code, "no")


def weakly(broker):
    def answer(request):
        answer = broker.serve(request)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return answer

    return answer


def metric(client, name):
    (found,) = [each for each in client.statistics().metrics() if each.name == f"triomq_client_{name}"]
    return {sample.labels: sample.value for sample in found.samples}


@pytest.mark.parametrize("callback", [None, lambda result, error: None])
async def test_sends_by_outcome(autojump_clock, cluster, callback):
    async with cluster.client() as client:
        # Each send is a request of its own, which has its own answer.
        producer = client.producer("G", retry=triomq.plugins.Retries(attempts=2), linger_s=None)
        await producer.send(triomq.Message("T", b"12345"), callback)
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, weakly(cluster.broker))
        await producer.send(triomq.Message("T", b"1"), callback)
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, refusal(ResponseCode.SERVICE_NOT_AVAILABLE))
        await producer.send(triomq.Message("T", b"1"), callback)
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, refusal(ResponseCode.MESSAGE_ILLEGAL))
        try:
            await producer.send(triomq.Message("T", b"1"), callback)
        except triomq.MQError:
            assert callback is None
        await producer.send_oneway(triomq.Message("T", b"123"))
        await producer.flush()
        (sends,) = client.statistics().sends
        codes = client.statistics().codes
    assert (sends.group, sends.topic, sends.stored, sends.oneway) == ("G", "T", 3, 1)
    assert sends.weakly == {"FLUSH_DISK_TIMEOUT": 1}
    assert sends.retries == 1
    assert sum(sends.errors.values()) == 1
    assert sends.body_bytes == 5 + 1 + 1 + 3
    assert sends.durations.count == 1
    assert codes == {
        ResponseCode.FLUSH_DISK_TIMEOUT: 1,
        ResponseCode.SERVICE_NOT_AVAILABLE: 1,
        ResponseCode.MESSAGE_ILLEGAL: 1,
    }


async def test_every_message_of_a_batch_counts(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        await producer.send_batch([triomq.Message("T", b"x")] * 7)
        (sends,) = client.statistics().sends
    assert (sends.stored, sends.durations.count) == (7, 1)


async def test_messages_that_share_requests_count_as_if_alone(autojump_clock, cluster):
    counts = []
    for linger_s in (None, 0):
        async with cluster.client() as client:
            producer = client.producer("G", linger_s=linger_s)
            cluster.broker.script(RequestCode.SEND_BATCH_MESSAGE, weakly(cluster.broker))
            for _ in range(70):
                await producer.send(triomq.Message("T", b"12"), lambda result, error: None)
            await producer.flush()
            (sends,) = client.statistics().sends
        counts.append((sends.stored, sends.body_bytes, sends.durations.count))
    assert counts == [(70, 140, 5)] * 2
    assert sum(sends.weakly.values()) > 10


async def test_one_in_sixteen_sends_is_timed(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("G")
        for _ in range(33):
            await producer.send(triomq.Message("T", b"x"))
        (sends,) = client.statistics().sends
    assert (sends.stored, sends.durations.count) == (33, 3)


async def test_how_long_sends_take(autojump_clock, cluster):
    async def slow(request):
        await trio.sleep(0.2)
        return cluster.broker.serve(request)

    cluster.broker.script(RequestCode.SEND_MESSAGE_V2, slow)
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        (sends,) = client.statistics().sends
    assert sends.durations.total_s == pytest.approx(0.2)
    assert sends.durations.counts[sends.durations.bounds_s.index(0.25)] == 1


@pytest.mark.parametrize("style", ["async", "plain", "loop"])
async def test_what_a_consumer_counts(autojump_clock, group_cluster, style):
    for number in range(3):
        group_cluster.broker.store("T", 0, b"m%d" % number)
    seen = []

    def plain(message):
        seen.append(message)
        if len(seen) == 2:
            raise ValueError("the handler fails")

    async def awaited(message):
        plain(message)

    async def loop(consumer):
        async for delivery in consumer:
            async with delivery:
                plain(delivery.message)

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async with trio.open_nursery() as nursery:
                if style == "loop":
                    nursery.start_soon(loop, consumer)
                else:
                    nursery.start_soon(consumer.run, awaited if style == "async" else plain)
                await until(lambda: len(seen) >= 3)
                consumer.drain()
            statistics = client.statistics()
        # What a consumer has counted stays when it has gone.
        assert client.statistics().calls == statistics.calls
        assert metric(client, "consumed_messages")["G", "T"] == 2
    (calls,) = [each for each in statistics.calls if each.topic == "T"]
    assert (calls.group, calls.consumed, calls.failed, calls.durations.count) == ("G", 2, 1, 3)
    (pulls,) = [each for each in statistics.pulls if each.topic == "T"]
    assert (pulls.messages, pulls.pulls["FOUND"]) == (3, 1)
    assert pulls.record_bytes > 6
    assert statistics.rebalances["G"] >= 1
    # Pulls that found nothing are counted with the pulls.
    assert not {19, 20, 21} & statistics.codes.keys()


async def test_a_sink_gets_what_is_counted(autojump_clock, cluster):
    taken = []

    class Sink:
        def take(self, statistics):
            taken.append(statistics)
            if len(taken) == 1:
                raise ValueError("the sink fails")

    async with cluster.client(statistics_sink=Sink(), statistics_every_s=5.0) as client:
        await client.producer("G").send(triomq.Message("T", b"x"))
        await trio.sleep(11)
        assert len(taken) == 3
    assert len(taken) == 4, "the last figures are given at the end"
    assert [len(each.sends) for each in taken] == [0, 1, 1, 1]


def test_what_is_kept_is_bounded():
    counters = Counters()
    for number in range(NAMES_MAX + 10):
        counters.of_sends("G", f"T{number}").stored += 1
        counters.of_pulls("G", f"T{number}").messages += 1
        counters.of_calls("G", f"T{number}").ok += 1
    assert len(counters.sends) == len(counters.pulls) == len(counters.calls) == NAMES_MAX + 1
    assert counters.of_sends("G", "another").stored == 10
    assert counters.of_sends("G", "another") is counters.sends[OTHERS, OTHERS]
    codes: dict[int, int] = {}
    for code in range(CODES_MAX + 10):
        count_code(codes, code)
    assert len(codes) == CODES_MAX + 1
    assert codes[-1] == 10
