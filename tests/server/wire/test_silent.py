"""Connections that have not sent a byte yet."""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq_server.wire import Handlers, Limits
from triomq_server.wire.hub import Hub
from triomq_server.wire.limits.places import Place, Places
from triomq_server.wire.poller import HAS_EPOLL
from triomq_server.wire.silent import SilentConnections

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the system has no epoll")


class Started(trio.abc.Instrument):
    """What has sent something, and how many places were taken at the end of each turn of the loop."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.spoken: list[trio.SocketStream] = []
        self.counts: list[tuple[int, int]] = []

    def start(self, stream: trio.SocketStream, place: Place) -> None:
        self.spoken.append(stream)

    def before_io_wait(self, timeout: float) -> None:
        self.counts.append((len(self.spoken), self.places.taken))

    def most_in_a_turn(self, which: int) -> int:
        return max(abs(after[which] - before[which]) for before, after in itertools.pairwise(self.counts))


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(300)]
        for pair in made:
            for end in pair:
                stack.callback(end.close)
        yield made


async def test_thousands_that_send_at_once_are_started_in_several_turns(nursery, pairs) -> None:
    places = Places(1000)
    started = Started(places)
    silent = SilentConnections(Hub(Handlers(), nursery, Limits()), started.start, places.give)
    for ours, _ in pairs:
        silent.add(stream_of(ours), places.take("host", lambda: None))
    nursery.start_soon(silent.run)
    await wait_all_tasks_blocked()
    assert len(silent) == 300
    for number, (_, theirs) in enumerate(pairs):
        if number % 2:
            theirs.send(b"\0")
        else:
            theirs.close()
    trio.lowlevel.add_instrument(started)
    with trio.fail_after(30):
        while len(silent):
            await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(started)
    assert len(set(started.spoken)) == 300
    assert started.most_in_a_turn(0) <= 64
    nursery.cancel_scope.cancel()


async def test_silent_connections_are_closed_in_several_turns(nursery, pairs, caplog) -> None:
    caplog.set_level(logging.INFO)
    places = Places(1000)
    started = Started(places)
    silent = SilentConnections(Hub(Handlers(), nursery, Limits(idle_s=0.2)), started.start, places.give)
    nursery.start_soon(silent.run)
    await wait_all_tasks_blocked()
    now = trio.current_time()
    for ours, _ in pairs:
        place = places.take("10.0.0.7", lambda: None)
        place.since = now
        silent.add(stream_of(ours), place)
    trio.lowlevel.add_instrument(started)
    with trio.fail_after(30):
        while len(silent):
            await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(started)
    assert places.taken == 0
    assert started.most_in_a_turn(1) <= 64
    for _, theirs in pairs:
        theirs.setblocking(False)
        assert theirs.recv(1) == b""
    assert caplog.text.count("a connection of 10.0.0.7 ended before its first frame: idle for 0.2 s") == 1
    nursery.cancel_scope.cancel()


async def test_the_oldest_ends_for_another_host_and_all_with_the_task(nursery, pairs) -> None:
    places = Places(2)
    silent = SilentConnections(Hub(Handlers(), nursery, Limits()), lambda *_: None, places.give)
    scope = trio.CancelScope()
    nursery.start_soon(run_in, silent, scope)
    await wait_all_tasks_blocked()
    for (ours, _), host in zip(pairs, ("a", "a", "b"), strict=False):
        place = places.take(host, lambda: None)
        assert place is not None
        silent.add(stream_of(ours), place)
        await trio.sleep(0.001)
    assert (len(silent), places.taken) == (2, 2)
    assert pairs[0][1].recv(1) == b""
    scope.cancel()
    await wait_all_tasks_blocked()
    assert pairs[1][1].recv(1) == pairs[2][1].recv(1) == b""
    late = places.take("c", lambda: None)
    assert late is not None
    silent.add(stream_of(pairs[3][0]), late)
    assert pairs[3][1].recv(1) == b""
    assert places.taken == 0
    nursery.cancel_scope.cancel()


def stream_of(sock: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


async def run_in(silent: SilentConnections, scope: trio.CancelScope) -> None:
    with scope:
        await silent.run()
