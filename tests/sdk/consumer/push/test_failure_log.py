"""Log lines about handlers that fail for one message after another."""

from __future__ import annotations

import itertools
import logging
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from consumer_broker import until

import triomq
from triomq._consumer.push.failure_log import FailureLog
from triomq._message.repeated_failures import KINDS_APART, LINES_MAX, PERIOD_S


def fail(text="no"):
    raise ValueError(text)


def error_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what it is does not matter
        return error
    raise AssertionError("nothing was raised")


def message(number):
    """As far as the log looks at it."""
    return SimpleNamespace(
        queue=triomq.MessageQueue("T", "broker-a", 0), topic="T", queue_offset=number, message_id="K"
    )


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info and record.levelno == logging.ERROR]


def errors(caplog):
    return [record for record in caplog.records if record.levelno == logging.ERROR]


def check_tracebacks(caplog):
    """There is one traceback at most for each period that has passed."""
    times = [record.created_s for record in tracebacks(caplog)]
    assert times
    assert all(later - earlier >= PERIOD_S for earlier, later in itertools.pairwise(times))


@pytest.fixture(autouse=True)
def _trio_times():
    """Each record has the time of trio's clock, which tests move."""
    log = logging.getLogger("triomq.consumer")

    def note(record):
        record.created_s = trio.current_time()
        return True

    log.addFilter(note)
    yield
    log.removeFilter(note)


async def test_many_failures_are_one_traceback_and_some_lines(autojump_clock, caplog):
    caplog.set_level(logging.DEBUG, "triomq.consumer")
    failures = FailureLog()
    for number in range(1000):
        failures.write("failed for", message(number), "", error_of(fail))
    assert len(errors(caplog)) == LINES_MAX
    assert [record.offset for record in tracebacks(caplog)] == [0]
    assert caplog.messages[1].endswith(", as others before: ValueError('no')")
    assert len(caplog.records) == 1000, "at DEBUG every message is named"

    caplog.clear()
    await trio.sleep(PERIOD_S)
    failures.write("failed for", message(1000), "", error_of(fail))
    left_out = 1000 - LINES_MAX
    (record,) = tracebacks(caplog)
    assert record.message.endswith(f" (and {left_out} more failures like it since the last such line)")


async def test_failures_of_other_places_have_tracebacks_of_their_own(autojump_clock, caplog):
    failures = FailureLog()
    for call in (fail, fail, lambda: 1 / 0, lambda: [][1], partial(fail, "another text")):
        failures.write("failed for", message(0), "", error_of(call))
    assert [record.exc_info[0] for record in tracebacks(caplog)] == [ValueError, ZeroDivisionError, IndexError]


async def test_any_number_of_kinds_takes_bounded_memory(autojump_clock, caplog):
    failures = FailureLog()
    for number in range(KINDS_APART + 50):
        failures.write("failed for", message(0), "", type(f"Error{number}", (Exception,), {})())
    assert len(tracebacks(caplog)) == KINDS_APART + 1
    assert len(failures._periods) == KINDS_APART + 1


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_that_always_fails(autojump_clock, group_cluster, open_consumer, caplog, plain):
    for number in range(50):
        group_cluster.broker.store("T", 0, b"body", b"UNIQ_KEY\x01K%d" % number)
    seen = []

    async def handle(message):
        seen.append(message)
        fail()

    def handle_in_thread(message):
        seen.append(message)
        fail()

    async with open_consumer() as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, handle_in_thread if plain else handle)
        await until(lambda: len(seen) >= 50)
        consumer.drain()
    check_tracebacks(caplog)


async def test_a_loop_whose_blocks_always_fail(autojump_clock, group_cluster, open_consumer, caplog):
    for number in range(50):
        group_cluster.broker.store("T", 0, b"body", b"UNIQ_KEY\x01K%d" % number)
    seen = 0
    async with open_consumer() as consumer:
        async for delivery in consumer:
            async with delivery:
                seen += 1
                fail()
            if seen == 50:
                break
    check_tracebacks(caplog)
