"""Pipelined requests share the loop: handlers are called for some milliseconds, then other tasks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.wire.command import Command
from triomq_server.wire import Link
from triomq_server.wire.hub import TURN_S


class Slow:
    """Code 1 takes two fifths of a turn by the hub's clock."""

    def __init__(self, bench: Any) -> None:
        self.now_s = 0.0
        self.calls = 0
        bench.handlers.plain[1] = self.handle
        bench.handlers.plain[9] = lambda _link, command: command.answer()

    def handle(self, _link: Link, command: Command) -> Command:
        self.calls += 1
        self.now_s += 0.4 * TURN_S
        return command.answer()


async def test_others_are_answered_between_the_requests_of_one_receive(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    slow = Slow(bench)
    _, wire = await bench.connect()
    _, other = await bench.connect()
    bench.hub._now = lambda: slow.now_s
    wire.deliver(b"".join(ask(1, n) for n in range(100)))
    while not slow.calls:
        await trio.lowlevel.checkpoint()
    assert slow.calls <= 6, "three fit in a turn"
    other.deliver(ask(9))
    while not other.writes:
        await trio.lowlevel.checkpoint()
    assert slow.calls < 15
    await wait_all_tasks_blocked()
    assert [answer.opaque for answer in wire.commands()] == list(range(100))


async def test_quick_requests_of_one_receive_stay_one_batch(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    Slow(bench)
    _, wire = await bench.connect()
    bench.hub._now = lambda: 0.0
    wire.deliver(b"".join(ask(9, n) for n in range(100)))
    await wait_all_tasks_blocked()
    assert len(wire.writes) == 1


async def test_a_receive_of_very_many_frames_is_decoded_in_parts(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    Slow(bench)
    _, wire = await bench.connect()
    _, other = await bench.connect()
    bench.hub._now = lambda: 0.0
    wire.deliver(b"".join(ask(9, n) for n in range(10_000)))
    while not wire.writes:
        await trio.lowlevel.checkpoint()
    assert len(wire.commands()) <= 2 * 1024
    other.deliver(ask(9))
    while not other.writes:
        await trio.lowlevel.checkpoint()
    assert len(wire.commands()) < 8000
    await wait_all_tasks_blocked()
    assert [answer.opaque for answer in wire.commands()] == list(range(10_000))


async def test_requests_that_fail_are_logged_once_in_a_while(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_link: Link, _command: Command) -> Command:
        raise ZeroDivisionError

    bench.handlers.plain[1] = fail
    _, wire = await bench.connect()
    wire.deliver(b"".join(ask(1, n) for n in range(500)))
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == 500
    assert [record.getMessage() for record in caplog.records] == ["request code 1 of 10.0.0.9:4000 failed"]
    assert caplog.records[0].exc_info is not None
