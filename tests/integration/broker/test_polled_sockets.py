"""Real sockets, read by one task for all links: rare events must still be handled per link."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.wire import Handlers, Limits, Link, dial_tcp, incomplete_budget, serve, unsent_budget


class Server:
    """A server whose request 1 is answered with a large body, 2 with an empty one, 3 closes, 4 is answered a turn
    later."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.all_closed = trio.Event()
        self.one_closed = trio.Event()
        self.batches = 0
        self.calls = 0
        self.failing = False
        self.address = ""
        self.incomplete = incomplete_budget(1_000_000)
        self.unsent = unsent_budget(1 << 40)
        self.handlers = Handlers(plain={1: self.large, 2: self.small, 3: self.close}, waiting={4: self.late})

    def large(self, _link: Link, command: Command) -> bytes:
        self.calls += 1
        return command.answer(body=bytes(500_000)).encode()

    def small(self, _link: Link, command: Command) -> bytes:
        self.calls += 1
        return command.answer().encode()

    def close(self, link: Link, _command: Command) -> None:
        link.close()

    async def late(self, _link: Link, command: Command) -> Command:
        await trio.lowlevel.checkpoint()
        return command.answer()

    def link_closed(self, link: Link) -> None:
        self.closed.append(link.peer)
        self.one_closed.set()
        if len(self.closed) == 150:
            self.all_closed.set()

    def batch_end(self) -> None:
        self.batches += 1
        if self.failing:
            raise ZeroDivisionError


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with trio.open_nursery() as nursery:
        (server.address,) = await nursery.start(
            partial(
                serve,
                server.handlers,
                host="127.0.0.1",
                port=0,
                on_closed=server.link_closed,
                on_batch_end=server.batch_end,
                limits=Limits(output_bytes=1_000_000, grace_s=0.5, incomplete=server.incomplete, unsent=server.unsent),
            )
        )
        with trio.fail_after(20):
            yield server
        nursery.cancel_scope.cancel()


def ask(code: int, opaque: int = 0) -> bytes:
    return Command.request(code, opaque=opaque).encode()


async def answers(stream: trio.abc.Stream, count: int) -> list[int]:
    """Opaques of the next answers; fewer at the end of the stream."""
    decoder, got = FrameDecoder(), []
    while len(got) < count and (data := await stream.receive_some(65_536)):
        got += [command.opaque for command in decoder.feed(bytes(data))]
    return got


async def test_a_peer_that_takes_no_answers_is_not_read_from_and_later_gets_them_all() -> None:
    async with serving() as server, await dial_tcp(server.address) as slow, await dial_tcp(server.address) as other:
        await slow.send_all(b"".join(ask(1, n) for n in range(60)))
        await slow.send_all(ask(2, 60))
        await other.send_all(ask(2, 7))
        assert await answers(other, 1) == [7]
        await trio.sleep(0.05)
        assert server.calls < 40
        assert await answers(slow, 61) == list(range(61))
        await slow.send_all(ask(2, 61))
        assert await answers(slow, 1) == [61]


async def test_what_links_hold_together_is_bounded() -> None:
    async with serving() as server, await dial_tcp(server.address) as honest:
        streams = [await dial_tcp(server.address) for _ in range(10)]
        await honest.send_all(ask(2, 1)[:20])
        ended = 0
        for stream in streams:
            await stream.send_all(struct.pack(">iI", 8_000_000, 100) + bytes(200_000))
        await server.one_closed.wait()
        for stream in streams:
            with trio.move_on_after(0.01):
                ended += await stream.receive_some(1) == b""
        assert ended > 0
        assert server.incomplete.held_bytes <= 1_000_000
        await honest.send_all(ask(2, 1)[20:])
        assert await answers(honest, 1) == [1]
        server.unsent.limit_bytes = 0
        server.one_closed = trio.Event()
        await honest.send_all(ask(1, 2) * 20)
        await server.one_closed.wait()
        assert server.unsent.held_bytes == 0
        for stream in streams:
            await stream.aclose()


async def test_many_links_at_once() -> None:
    async with serving() as server:
        streams = [await dial_tcp(server.address) for _ in range(150)]
        for number, stream in enumerate(streams):
            await stream.send_all(ask(2, number) + ask(4, number))
        for number, stream in enumerate(streams):
            assert await answers(stream, 2) == [number, number]
        assert server.batches < 150
        for stream in streams:
            await stream.aclose()
        await server.all_closed.wait()


@pytest.mark.parametrize("last", [b"\0\0\0\0\0\0\0\0", ask(3)])
async def test_good_requests_are_answered_before_a_link_is_closed(last: bytes) -> None:
    async with serving() as server, await dial_tcp(server.address) as stream, await dial_tcp(server.address) as other:
        await stream.send_all(ask(2, 1) + ask(2, 2) + last)
        assert await answers(stream, 3) == [1, 2]
        assert len(server.closed) == 1
        await other.send_all(ask(2, 3))
        assert await answers(other, 1) == [3]


async def test_a_fault_at_the_end_of_a_batch_costs_its_links_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, await dial_tcp(server.address) as stream, await dial_tcp(server.address) as other:
        server.failing = True
        await stream.send_all(ask(2, 1))
        assert await answers(stream, 2) == [1]
        server.failing = False
        await other.send_all(ask(2, 3))
        assert await answers(other, 1) == [3]
    assert "fault of our own" in caplog.text
