"""Plug points of a producer that raise, or return invalid values: the error names them, and the client continues."""

from __future__ import annotations

import logging
import math

import pytest
import trio

import triomq
from triomq import errors, plugins
from triomq_protocol.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2
OTHERS = triomq.MessageQueue("T", "broker-x", 0)


def answering(answer):
    def call(*_, **__):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def policy(**answers):
    """A retry policy some of whose methods answer so."""
    return type("Wrong", (plugins.Retries,), {name: answering(answer) for name, answer in answers.items()})()


def refuse(command):
    return command.answer(1, "no")


async def send_each_way(producer, callback):
    """The outcomes of an awaited send and of one with a callback."""
    try:
        awaited = await producer.send(triomq.Message("T", b"x"))
    except triomq.MQError as error:
        awaited = error
    await producer.send(triomq.Message("T", b"x"), callback)
    await producer.flush()
    return awaited, (callback.results + callback.errors)[-1]


@pytest.mark.parametrize("answer", [None, "1", -1.0, math.nan, ValueError("boom")], ids=repr)
async def test_invalid_times_for_attempts_are_refused(cluster, answer):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="attempt_timeout_s of the retry policy Wrong"):
            client.producer("G", retry=policy(attempt_timeout_s=answer))
        await client.producer("G").send(triomq.Message("T", b"x"))


@pytest.mark.parametrize("attempts", [None, 0, 2.5, "3"], ids=repr)
async def test_invalid_numbers_of_attempts_are_refused(cluster, attempts):
    wrong = type("Wrong", (), {"attempts": attempts, "attempt_timeout_s": answering(1.0)})()
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="attempts of the retry policy Wrong"):
            client.producer("G", retry=wrong)


@pytest.mark.parametrize("retry", ["Retries", plugins.Retries, 3], ids=repr)
async def test_what_is_no_policy_is_refused(cluster, retry):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="of the retry policy"):
            client.producer("G", retry=retry)


@pytest.mark.parametrize(
    ("answers", "attempts"),
    [
        ({"retries": ValueError("boom")}, 1),
        ({"pause_s": ValueError("boom")}, 2),
        ({"pause_s": None}, 2),
        ({"pause_s": math.nan}, 2),
        ({"pause_s": -1.0}, 2),
    ],
    ids=repr,
)
async def test_a_failed_attempt_whose_policy_raises(autojump_clock, cluster, make_callback, caplog, answers, attempts):
    """Without an answer whether another attempt may be made, none is; without one how long to wait, the default's."""
    async with cluster.client() as client:
        producer = client.producer("G", retry=policy(**answers), linger_s=None)
        await producer.send(triomq.Message("T", b"warm"))
        for _ in range(2):
            cluster.broker.script(SEND, refuse)
            awaited, called_back = await send_each_way(producer, make_callback())
            # The second send is not refused, unless the first had only one attempt.
            assert isinstance(awaited, triomq.SendResult) == (attempts == 2)
            assert isinstance(called_back, triomq.SendResult)
        cluster.broker.script(SEND, refuse)
        callback = make_callback()
        await producer.send(triomq.Message("T", b"x"), callback)
        await producer.flush()
        assert len(callback.results) == attempts - 1
        assert len(callback) == 1
        await client.producer("other").send(triomq.Message("T", b"x"))
    name = next(iter(answers))
    lines = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert lines
    assert all(f"{name} of the retry policy Wrong" in each.message for each in lines)
    assert len(lines) < 5  # not one for each send


async def test_a_result_whose_policy_raises_is_a_result(autojump_clock, cluster, make_callback, caplog):
    async with cluster.client() as client:
        producer = client.producer("G", retry=policy(retries_result=ValueError("boom")))
        for outcome in await send_each_way(producer, make_callback()):
            assert isinstance(outcome, triomq.SendResult)
    assert "retries_result of the retry policy Wrong failed: ValueError: boom" in caplog.text


@pytest.mark.parametrize("chosen", [None, 5, OTHERS, ValueError("boom")], ids=repr)
async def test_a_fault_strategy_that_chooses_no_queue(autojump_clock, cluster, make_callback, caplog, chosen):
    wrong = type("Wrong", (), {"choose": answering(chosen), "update": answering(None)})()
    async with cluster.client() as client:
        producer = client.producer("G", faults=wrong)
        outcomes = await send_each_way(producer, make_callback())
        assert all(isinstance(outcome, triomq.SendResult) for outcome in outcomes)
        # Round robin goes on.
        queues = {(await producer.send(triomq.Message("T", b"x"))).queue.queue_id for _ in range(4)}
        assert queues == {0, 1}
    assert "choose of the fault strategy Wrong" in caplog.text


async def test_a_fault_strategy_whose_update_raises(autojump_clock, cluster, make_callback, caplog):
    def choose(queues, *_):
        return queues[0]

    wrong = type("Wrong", (), {"choose": staticmethod(choose), "update": answering(ValueError("boom"))})()
    async with cluster.client() as client:
        producer = client.producer("G", faults=wrong)
        cluster.broker.script(SEND, refuse)
        outcomes = await send_each_way(producer, make_callback())
        assert all(isinstance(outcome, triomq.SendResult) for outcome in outcomes)
    assert "update of the fault strategy Wrong failed: ValueError: boom" in caplog.text


@pytest.mark.parametrize("faults", [plugins.LatencyFaults, "LatencyFaults", 5], ids=repr)
async def test_what_is_no_fault_strategy(cluster, faults):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="faults is no object with the methods choose and update"):
            client.producer("G", faults=faults)


@pytest.mark.parametrize("size", [5000, 200_000])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "returned NoneType, not bytes"),
        ("text", "returned str, not bytes"),
        (b"", "returned no bytes for a body"),
        (ValueError("boom"), "failed: ValueError: boom"),
    ],
    ids=repr,
)
async def test_a_compressor_that_fails(cluster, make_callback, answer, says, size):
    wrong = type("Wrong", (), {"compress": answering(answer), "sys_flag": plugins.ZlibCompressor.sys_flag})()
    async with cluster.client() as client:
        producer = client.producer("G", compressor=wrong)
        message = triomq.Message("T", b"x" * size)
        for callback in (None, make_callback()):
            with pytest.raises(errors.InvalidCall, match=f"the compressor Wrong {says}"):
                await producer.send(message, callback)
        with trio.fail_after(5):
            await producer.flush()
        assert cluster.broker.stored == {}
        await producer.send(triomq.Message("T", b"small"))


async def test_a_compressor_may_return_other_kinds_of_bytes(cluster):
    packed = plugins.ZlibCompressor().compress(b"x" * 5000)
    async with cluster.client() as client:
        for number, answer in enumerate([bytearray(packed), memoryview(packed)]):
            made = type("Made", (), {"compress": answering(answer), "sys_flag": plugins.ZlibCompressor.sys_flag})()
            await client.producer(f"G{number}", compressor=made).send(triomq.Message("T", b"x" * 5000))
    assert cluster.broker.bodies("T") == [packed, packed]


@pytest.mark.parametrize("flag", [None, "zlib", -1, 0x300, 0x309, 1 << 40], ids=repr)
async def test_flags_by_which_no_reader_decompresses(cluster, flag):
    wrong = type("Wrong", (), {"compress": answering(b"x"), "sys_flag": flag})()
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="sys_flag of the compressor Wrong"):
            client.producer("G", compressor=wrong)
        for no_object in ("zlib", plugins.ZlibCompressor):
            with pytest.raises(errors.InvalidCall, match="compressor is no object with the method compress"):
                client.producer("G", compressor=no_object)
