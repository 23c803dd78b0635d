"""Pipelined requests share the loop: handlers are called for some milliseconds, then other tasks run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.wire.command import Command
from triomq_server.wire import WRITE_BYTES, Burst, Limits, Link
from triomq_server.wire.limits.loop_turns import TURN_S, turns_of_loop
from triomq_server.wire.poller import LINKS_PER_BATCH, Poller, in_turn


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


class _CallsOfTurns(trio.abc.Instrument):
    def __init__(self, slow: Slow) -> None:
        self.slow = slow
        self.before = 0
        self.calls: list[int] = []

    def before_io_wait(self, timeout: float) -> None:
        self.calls.append(self.slow.calls - self.before)
        self.before = self.slow.calls


async def test_many_links_with_full_receives_share_a_turn(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    slow = Slow(bench)
    wires = [(await bench.connect())[1] for _ in range(20)]
    bench.hub._now = lambda: slow.now_s
    turns = _CallsOfTurns(slow)
    trio.lowlevel.add_instrument(turns)
    for wire in wires:
        wire.deliver(b"".join(ask(1, n) for n in range(20)))
    await wait_all_tasks_blocked()
    trio.lowlevel.remove_instrument(turns)
    assert max(turns.calls) <= 6
    for wire in wires:
        assert [answer.opaque for answer in wire.commands()] == list(range(20))


async def test_links_that_wait_for_a_turn_have_it_in_the_order_in_which_they_came(autojump_clock: object) -> None:
    turns = turns_of_loop()
    assert turns_of_loop() is turns
    done: list[int] = []

    async def work(number: int) -> None:
        for _ in range(3):
            await turns.wait_for_next()
            done.append(number)

    async with trio.open_nursery() as nursery, turns._next:
        for number in range(5):
            nursery.start_soon(work, number)
            await wait_all_tasks_blocked()
    assert done == [0, 1, 2, 3, 4] * 3


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


@pytest.mark.parametrize(
    ("ready", "first", "order"),
    [
        ([5, 6, 7], [], [5, 6, 7]),
        ([5, 6, 7], [6, 7], [6, 7, 5]),
        ([5, 6, 7, 8], [7, 4, 5], [7, 5, 6, 8]),
        ([5], [6], [5]),
    ],
)
def test_sockets_left_by_a_turn_come_first_in_the_next(ready: list[int], first: list[int], order: list[int]) -> None:
    assert in_turn(ready, first) == order


class OverTurns:
    """A poller of links that all have more to read than there is time for in a turn; `hosts` has the last byte of each
    link's host."""

    def __init__(self, hosts: Sequence[int], filenos: Sequence[int]) -> None:
        self.served: list[int] = []
        hub = SimpleNamespace(
            limits=SimpleNamespace(output_bytes=1),
            begin_batch=lambda: None,
            end_batch=lambda _links: None,
            turn_is_over=lambda: True,
            stopping=False,
            writer=SimpleNamespace(wrote_bulk=False),
        )
        self.poller = Poller(hub)  # type: ignore[arg-type]
        self.poller._receive = self.receive  # type: ignore[assignment, method-assign]
        for host, fileno in zip(hosts, filenos, strict=True):
            link = SimpleNamespace(closed=False, active_at=0.0)
            self.poller.resume(SimpleNamespace(fileno=fileno, link=link, host=bytes((10, 0, 0, host))))  # type: ignore[arg-type]

    def receive(self, polled: Any) -> bool:
        self.served.append(polled.fileno)
        return True


@pytest.fixture
def readable() -> Iterator[Callable[[int], list[int]]]:
    """Makes so many sockets that have a byte to read; returns their descriptors."""
    with ExitStack() as end:

        def make(count: int) -> list[int]:
            pairs = [socket.socketpair() for _ in range(count)]
            for pair in pairs:
                for one in pair:
                    end.enter_context(one)
                pair[1].send(b"x")
            return [pair[0].fileno() for pair in pairs]

        yield make


@pytest.mark.parametrize(
    ("hosts", "order"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]),
        ([1, 1, 1, 2], [0, 1, 3, 2, 3, 0, 3, 1]),
    ],
)
async def test_long_requests_of_some_links_do_not_keep_out_the_others(
    readable: Callable[[int], list[int]], hosts: list[int], order: list[int]
) -> None:
    """Epoll names them in the same order each time."""
    filenos = readable(len(hosts))
    turns = OverTurns(hosts, filenos)
    for _ in order:
        turns.poller._serve([(fileno, 1) for fileno in filenos])
    assert [filenos.index(fileno) for fileno in turns.served] == order


async def test_very_many_links_of_one_host_do_not_keep_out_that_of_another(
    readable: Callable[[int], list[int]],
) -> None:
    """There are more than are served in a batch."""
    filenos = readable(3 * LINKS_PER_BATCH + 1)
    turns = OverTurns([1] * (len(filenos) - 1) + [2], filenos)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.poller.run)
        while len(turns.served) < 3:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert filenos[-1] in turns.served[:3]


async def test_what_many_requests_have_in_common_is_left_to_another_turn(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    """And not done one by one, since the turn was over."""
    slow = Slow(bench)
    sizes: list[int] = []
    frame = ask(1, 7)

    def burst(link: Any, data: bytes) -> int:
        sizes.append(len(data) // len(frame))
        if len(sizes) % 4 == 0:
            return 0  # the one at the front is for its handler
        slow.now_s += 1
        link.send(ask(0, 7))
        return len(frame)

    bench.handlers.bursts.append(Burst(burst, frozenset()))
    _, wire = await bench.connect()
    bench.hub._now = lambda: slow.now_s
    wire.deliver(frame * 6 + frame[:-1])
    await wait_all_tasks_blocked()
    assert sizes == [6, 5, 4, 3]
    assert slow.calls == 3
    wire.deliver(frame[-1:])
    await wait_all_tasks_blocked()
    assert sizes == [6, 5, 4, 3, 1]
    assert len(wire.commands()) == 7


async def test_a_peer_that_takes_no_answers_gets_no_more_than_its_limit(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    """Of what many requests have in common, too; they are done when it has taken what there is."""
    answer = bytes(WRITE_BYTES // 2)
    done: list[int] = []

    def burst(link: Any, data: bytes) -> int:
        assert link.unsent_bytes <= 2 * WRITE_BYTES
        size = 4 + int.from_bytes(data[:4], "big")
        done.append(size)
        link.unsent.append(answer)
        link.unsent_bytes += len(answer)
        return size

    bench.handlers.bursts.append(Burst(burst, frozenset()))
    link, wire = await bench.connect(Limits(output_bytes=2 * WRITE_BYTES))
    wire.writable_bytes = 0
    wire.deliver(ask(1, 7) * 20)
    await wait_all_tasks_blocked()
    assert len(done) == 5
    assert link.unsent_bytes == 5 * len(answer)
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert len(done) == 20
    assert sum(map(len, wire.writes)) == 20 * len(answer)


async def test_answers_are_written_before_all_requests_of_a_receive_are_done(
    autojump_clock: object, bench: Any, ask: Callable[..., bytes]
) -> None:
    written: list[int] = []

    def burst(link: Any, data: bytes) -> int:
        written.append(len(wire.writes))
        link.unsent.append(bytes(WRITE_BYTES))
        link.unsent_bytes += WRITE_BYTES
        return 4 + int.from_bytes(data[:4], "big")

    bench.handlers.bursts.append(Burst(burst, frozenset()))
    _, wire = await bench.connect()
    wire.deliver(ask(1, 7) * 3)
    await wait_all_tasks_blocked()
    assert written == [0, 1, 2]
