"""Handlers that wait: tasks of their own, counted, answered like the others."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from triomq_server.wire import Limits, WaitingBytes


async def test_waiting_handlers_do_not_hold_up_the_link(autojump_clock, bench, ask) -> None:
    async def slow(link, command):
        await trio.sleep(5)
        return command.answer(remark="slow")

    bench.handlers.waiting[2] = slow
    bench.handlers.plain[1] = lambda link, command: command.answer(remark="quick")
    _, wire = await bench.connect()
    wire.deliver(ask(2, 2) + ask(2, 3) + ask(1, 1))
    await wait_all_tasks_blocked()
    assert [c.remark for c in wire.commands()] == ["quick"]
    await trio.sleep(6)
    assert sorted(c.opaque for c in wire.commands()) == [1, 2, 3]
    # Both ended in the same turn of the loop, so they left in one write.
    assert len(wire.writes) == 2


async def test_requests_beyond_the_limit_are_answered_busy(autojump_clock, bench, ask) -> None:
    async def slow(link, command):
        await trio.sleep(5)
        return command.answer()

    bench.handlers.waiting[2] = slow
    _, wire = await bench.connect(Limits(waiting_requests=2))
    wire.deliver(b"".join(ask(2, n) for n in range(4)) + ask(2, 9, oneway=True))
    await wait_all_tasks_blocked()
    assert [(c.opaque, c.code) for c in wire.commands()] == [(2, 2), (3, 2)]
    assert wire.commands()[0].remark.startswith("[OVERLOAD]")
    await trio.sleep(6)
    wire.deliver(ask(2, 5))
    await trio.sleep(6)
    assert [(c.opaque, c.code) for c in wire.commands()[-1:]] == [(5, 0)]


async def test_bytes_of_requests_that_wait_are_limited(autojump_clock, bench, ask) -> None:
    async def slow(link, command):
        await trio.sleep(5)
        return command.answer()

    bench.handlers.waiting[2] = slow
    waiting = WaitingBytes(100_000)
    limits = Limits(waiting=waiting)
    _, wire = await bench.connect(limits)
    wire.deliver(ask(2, 1, body=bytes(60_000)) + ask(2, 2, body=bytes(60_000)) + ask(2, 3, body=bytes(39_000)))
    wire.deliver(ask(2, 4, body=bytes(60_000), oneway=True) + ask(2, 5, body=bytes(4_000)) + ask(2, 6))
    await wait_all_tasks_blocked()
    assert [(c.opaque, c.code) for c in wire.commands()] == [(2, 2)], "small ones may always wait"
    assert wire.commands()[0].remark.startswith("[OVERLOAD]")
    assert 103_000 <= waiting.held_bytes < 104_000
    await trio.sleep(6)
    assert waiting.held_bytes == 0
    assert sorted((c.opaque, c.code) for c in wire.commands()[1:]) == [(1, 0), (3, 0), (5, 0), (6, 0)]
    wire.deliver(ask(2, 7, body=bytes(100_000)))
    await trio.sleep(6)
    assert wire.commands()[-1].code == 0


async def test_exceptions_and_one_way(autojump_clock, bench, ask, caplog) -> None:
    async def fail(link, command):
        await trio.sleep(1)
        raise RuntimeError("no luck")

    async def answer(link, command):
        return command.answer()

    bench.handlers.waiting.update({2: fail, 3: answer})
    link, wire = await bench.connect()
    wire.deliver(ask(2, 1) + ask(2, 2, oneway=True) + ask(3, 3, oneway=True))
    await trio.sleep(2)
    (failed,) = wire.commands()
    assert (failed.opaque, failed.code, failed.remark) == (1, 1, "RuntimeError: no luck")
    assert not link.closed


async def test_answer_to_a_link_that_ended_is_dropped(autojump_clock, bench, ask) -> None:
    finished = []

    async def slow(link, command):
        await trio.sleep(5)
        finished.append(command.opaque)
        return command.answer()

    bench.handlers.waiting[2] = slow
    link, wire = await bench.connect()
    wire.deliver(ask(2, 1))
    await wait_all_tasks_blocked()
    wire.end()
    await trio.sleep(6)
    assert link.closed
    assert finished == [1]
    assert wire.writes == []
