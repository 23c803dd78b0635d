"""The poller's turns on real sockets: when it checks for further requests, and when it lets the loop continue."""

from __future__ import annotations

import socket

import pytest
import trio

from triomq_protocol.wire.command import Command
from triomq_server.wire import Handlers, Link, poller, serve
from triomq_server.wire.sockets import BULK_BYTES

pytestmark = pytest.mark.skipif(not poller.HAS_EPOLL, reason="this system has no epoll")

ASK = Command.request(1, opaque=1).encode()


class _Turns(trio.abc.Instrument):
    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize(("answer_bytes", "is_same_turn"), [(BULK_BYTES, True), (100, False)])
async def test_the_next_request_is_read_in_the_turn_of_a_large_answer(
    monkeypatch: pytest.MonkeyPatch, answer_bytes: int, is_same_turn: bool
) -> None:
    """While a large answer is written, the next request mostly comes: it needs no turn of the loop of its own."""
    monkeypatch.setattr(poller, "_TURN_S", 60.0)  # however slow the machine is
    turns = _Turns()
    trio.lowlevel.add_instrument(turns)
    turn_of_call: list[int] = []
    sockets: list[socket.socket] = []

    def handle(_link: Link, command: Command) -> Command:
        turn_of_call.append(turns.count)
        if len(turn_of_call) == 1:
            sockets[1].send(ASK)
        return command.answer(body=bytes(answer_bytes))

    handlers = Handlers()
    handlers.plain[1] = handle
    async with trio.open_nursery() as nursery:
        [address] = await nursery.start(lambda **status: serve(handlers, host="127.0.0.1", port=0, **status))
        host, _, port = address.rpartition(":")
        streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(2)]
        sockets += [socket.socket(fileno=stream.socket.fileno()) for stream in streams]
        await streams[0].send_all(ASK)
        for stream in streams:
            await stream.receive_some(1)
        for one in sockets:
            one.detach()
        for stream in streams:
            await stream.aclose()
        nursery.cancel_scope.cancel()
    assert (turn_of_call[0] == turn_of_call[1]) is is_same_turn
