"""Peers of the dashboard that hang, and what each may take."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from hypercorn.protocol.h11 import H11Protocol

from triomq_dashboard.serving import Limits, serve

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def endless(_scope: Any, receive: Any, send: Any) -> None:
    """An application whose answer ends when its peer is gone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})

    async def go_on() -> None:
        while True:
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        while (await receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()


async def short(_scope: Any, _receive: Any, send: Any) -> None:
    """An application that answers."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(app: Any, limits: Limits) -> AsyncIterator[int]:
    """The port of a server, which has ended when the block has."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    end = trio.Event()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            await nursery.start(partial(serve, app, listener, end.wait, limits=limits))
            try:
                yield port
            finally:
                end.set()


async def until_closed(stream: trio.abc.Stream) -> bytes:
    """What is received until the server closes the connection."""
    data = b""
    try:
        async for piece in stream:
            data += piece
    except trio.BrokenResourceError:
        pass
    return data


@asynccontextmanager
async def peer(port: int, said: bytes = GET) -> AsyncIterator[trio.SocketStream]:
    """A peer that has sent something."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(said)
        yield stream


@asynccontextmanager
async def stuck(port: int) -> AsyncIterator[None]:
    """A peer that asks for more than fits on the way, and reads its beginning alone."""
    async with peer(port) as stream:
        assert (await stream.receive_some(64)).startswith(b"HTTP/1.1 200")
        yield


async def test_a_peer_that_does_not_read_does_not_keep_it_from_ending() -> None:
    async with AsyncExitStack() as stack, served(endless, Limits(grace_s=0.1)) as port:
        await stack.enter_async_context(stuck(port))


async def test_a_peer_that_does_not_read_does_not_prevent_a_cancellation() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with AsyncExitStack() as stack:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(serve, endless, listener, trio.sleep_forever, limits=Limits()))
                await stack.enter_async_context(stuck(listener.socket.getsockname()[1]))
                nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_read_is_cut_off() -> None:
    gone = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await endless(scope, receive, send)
        gone.set()

    async with served(app, Limits(stalled_s=0.1)) as port, stuck(port):
        await gone.wait()


@pytest.mark.parametrize("said", [b"G", b"GET / HT", HTTP2])
async def test_a_silent_peer_is_cut_off(said: bytes) -> None:
    async with served(short, Limits(quiet_s=0.1)) as port, peer(port, said) as stream:
        await until_closed(stream)


async def test_connections_are_bounded() -> None:
    async with served(endless, Limits(connections=2)) as port, stuck(port):
        async with stuck(port):
            third = await trio.open_tcp_stream("127.0.0.1", port)
            async with third:
                assert await until_closed(third) == b""
        while True:  # a place is free as soon as the server has seen the end
            with suppress(trio.BrokenResourceError):
                async with peer(port) as stream:
                    if (await stream.receive_some(64)).startswith(b"HTTP/1.1 200"):
                        return


async def test_a_connection_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = H11Protocol.handle

    async def broken(self: Any, event: Any) -> None:
        if getattr(event, "data", b"") == b"break":
            raise ValueError("as an error of the library")
        await handle(self, event)

    monkeypatch.setattr(H11Protocol, "handle", broken)
    async with served(short, Limits()) as port:
        async with peer(port, b"break") as stream:
            assert await until_closed(stream) == b""
        async with peer(port) as stream:
            assert (await stream.receive_some(64)).startswith(b"HTTP/1.1 200")
