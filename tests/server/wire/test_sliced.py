"""Requests that are worked on in slices: other links have their turns, and one link has one at a time."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.wire.command import Command
from triomq_server.wire import Limits, Link, WaitingBytes

SLICES = 20


class Work:
    """Code 1 takes so many slices, 2 none, 3 fails in its second one; 9 answers at once."""

    def __init__(self, bench) -> None:
        self.steps: list[str] = []
        self.open = 0
        bench.handlers.sliced[1] = self.long
        bench.handlers.sliced[2] = self.short
        bench.handlers.sliced[3] = self.failing
        bench.handlers.plain[9] = self.plain

    def long(self, link: Link, command: Command) -> Generator[None, None, Command]:
        self.open += 1
        try:
            for _ in range(SLICES):
                self.steps.append(link.peer)
                yield
        finally:
            self.open -= 1
        return command.answer(body=bytes(1000))

    def short(self, _link: Link, command: Command) -> Generator[None, None, Command]:
        return command.answer()
        yield

    def failing(self, _link: Link, _command: Command) -> Generator[None, None, Command]:
        yield
        raise ZeroDivisionError

    def plain(self, link: Link, command: Command) -> Command:
        self.steps.append(f"plain {link.peer}")
        return command.answer()


async def test_others_are_answered_between_the_slices_of_pipelined_requests(autojump_clock, bench, ask) -> None:
    work = Work(bench)
    busy, wire = await bench.connect()
    _, other = await bench.connect()
    busy.peer = "busy"
    wire.deliver(b"".join(ask(1, n) for n in range(50)))
    while not work.steps:
        await trio.lowlevel.checkpoint()
    other.deliver(ask(9))
    while not other.writes:
        await trio.lowlevel.checkpoint()
    assert len(work.steps) < 10
    await wait_all_tasks_blocked()
    assert [c.opaque for c in wire.commands()] == list(range(50))
    assert len(work.steps) == 50 * SLICES + 1


async def test_one_slice_is_done_in_a_turn_whatever_number_of_links_asks(autojump_clock, bench, ask) -> None:
    work = Work(bench)
    wires = []
    for number in range(10):
        link, wire = await bench.connect()
        link.peer = str(number)
        wire.deliver(ask(1) * 3)
        wires.append(wire)
    done = []
    while sum(len(wire.writes) for wire in wires) < 30:
        before = len(work.steps)
        await trio.lowlevel.checkpoint()
        done.append(len(work.steps) - before)
    assert max(done) <= 2, "one, and the first one of the next request when a request ends"
    middle = work.steps[100:200]
    assert {middle.count(str(number)) for number in range(10)} <= set(range(6, 15)), "links take turns"


async def test_requests_of_another_code_do_not_wait_for_many_of_one_code(autojump_clock, bench, ask) -> None:
    work = Work(bench)
    bench.handlers.sliced[4] = work.long
    for _ in range(100):
        link, wire = await bench.connect()
        link.peer = "crowd"
        wire.deliver(ask(1))
    other, asked = await bench.connect()
    other.peer = "other"
    asked.deliver(ask(4))
    while not asked.writes:
        await trio.lowlevel.checkpoint()
    assert work.steps.count("other") == SLICES
    assert len(work.steps) < 100 + 4 * SLICES, "the first slices of the crowd, then codes take turns"


async def test_what_a_link_sends_behind_a_long_request_waits_for_it(autojump_clock, bench, ask) -> None:
    work = Work(bench)
    link, wire = await bench.connect()
    link.peer = "x"
    wire.deliver(ask(2, 1) + ask(1, 2) + ask(9, 3))
    wire.deliver(ask(9, 4))
    await wait_all_tasks_blocked()
    assert [c.opaque for c in wire.commands()] == [1, 2, 3, 4]
    assert work.steps == SLICES * ["x"] + 2 * ["plain x"]


async def test_work_for_a_closed_link_is_dropped(autojump_clock, bench, ask) -> None:
    work = Work(bench)
    link, wire = await bench.connect()
    wire.deliver(ask(1) * 5)
    while len(work.steps) < 3:
        await trio.lowlevel.checkpoint()
    link.close()
    await wait_all_tasks_blocked()
    assert len(work.steps) <= 4
    assert work.open == 0
    assert bench.hub.waiting_requests == 0


@pytest.mark.parametrize("plain", [False, True])
async def test_bytes_of_requests_in_slices_are_limited(autojump_clock, bench, ask, plain: bool) -> None:
    work = Work(bench)
    if plain:  # a handler that needs slices for large requests only
        bench.handlers.plain[1] = work.long
    waiting = WaitingBytes(100_000)
    wires = []
    for _ in range(3):
        _, wire = await bench.connect(Limits(waiting=waiting))
        wires.append(wire)
    for wire in wires[:2]:
        wire.deliver(ask(1, 1, body=bytes(45_000)))
    while waiting.held_bytes < 90_000:
        await trio.lowlevel.checkpoint()
    assert waiting.held_bytes < 91_000
    wires[2].deliver(ask(1, 1, body=bytes(45_000)) + ask(1, 2, body=bytes(4_000)))
    await wait_all_tasks_blocked()
    assert [[(c.opaque, c.code) for c in wire.commands()] for wire in wires] == [[(1, 0)], [(1, 0)], [(1, 2), (2, 0)]]
    assert wires[2].commands()[0].remark.startswith("[OVERLOAD]")
    assert (waiting.held_bytes, work.open) == (0, 0)


async def test_a_slice_that_fails_is_an_answer(autojump_clock, bench, ask, caplog) -> None:
    Work(bench)
    _, wire = await bench.connect()
    wire.deliver(ask(3, 1) + ask(9, 2))
    await wait_all_tasks_blocked()
    assert [(c.opaque, c.code) for c in wire.commands()] == [(1, 1), (2, 0)]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("requests", [50])
async def test_the_limit_of_unsent_bytes_holds_for_long_requests(autojump_clock, bench, ask, requests) -> None:
    work = Work(bench)
    link, wire = await bench.connect(Limits(output_bytes=3000))
    wire.writable_bytes = 0
    wire.deliver(ask(1) * requests)
    await wait_all_tasks_blocked()
    assert link.unsent_bytes < 5000
    assert len(work.steps) < 6 * SLICES
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == requests
