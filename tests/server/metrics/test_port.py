"""The port of metrics: bounded in connections, bytes and time."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from memory_network import MemoryNetwork

from triomq_server.config import ConfigError
from triomq_server.metrics.port import ANSWER_WITHIN_S, MOST_CONNECTIONS, REQUEST_WITHIN_S, MetricsPort
from triomq_server.metrics.text import Family, TextWriter

GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


class Server:
    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.made = 0

    def collect(self, writer: TextWriter) -> Iterator[None]:
        self.made += 1
        yield
        writer.value(Family("made", "gauge", "Texts."), self.made)

    async def ask(self, request: bytes = GET) -> bytes:
        stream = await self.network.dial("127.0.0.1:9000")
        await stream.send_all(request)
        return await read(stream)


async def read(stream: trio.abc.Stream) -> bytes:
    data = b""
    try:
        while more := await stream.receive_some():
            data += more
    except trio.BrokenResourceError:
        pass
    return data


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda **status: MetricsPort(server.collect).serve(
            "127.0.0.1", 9000, listen=server.network.listen, **status
        ))  # fmt: skip
        yield server
        nursery.cancel_scope.cancel()


async def test_the_text_and_its_length(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as server:
        head, _, body = (await server.ask()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: %d" % len(body) in head
        assert body.endswith(b"made 1\n")
        assert (await server.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x00\x01\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 4000, b"431"),
    ],
)
async def test_other_requests(autojump_clock: trio.testing.MockClock, request_bytes: bytes, code: bytes) -> None:
    async with serving() as server:
        assert (await server.ask(request_bytes)).split()[1] == code
        assert server.made == 0


async def test_a_hundred_scrapers_get_one_text(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as server:
        answers: list[bytes] = []

        async def scrape() -> None:
            answers.append(await server.ask())

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(scrape)
        assert len(answers) == 100
        assert set(map(len, answers)) == {len(answers[0])}
        assert server.made == 1
        await trio.sleep(2)
        await server.ask()
        assert server.made == 2


async def test_silent_peers_are_dropped_and_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as server:
        silent = [await server.network.dial("127.0.0.1:9000") for _ in range(MOST_CONNECTIONS)]
        await trio.testing.wait_all_tasks_blocked()
        assert await read(await server.network.dial("127.0.0.1:9000")) == b""  # one too many
        before = trio.current_time()
        for stream in silent:
            assert await read(stream) == b""
        assert trio.current_time() == pytest.approx(before + REQUEST_WITHIN_S)
        assert b"made 1" in await server.ask()


async def test_a_scraper_that_never_reads_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    async def full() -> None:
        await trio.sleep_forever()

    near, far = trio.testing.memory_stream_pair()
    far.send_stream.send_all_hook = full
    await near.send_all(GET)
    arrived = [far]

    class Listener(trio.abc.Listener[trio.abc.Stream]):
        async def accept(self) -> trio.abc.Stream:
            if not arrived:
                await trio.sleep_forever()
            return arrived.pop()

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    async def listen(_host: str, _port: int) -> list[Listener]:
        return [Listener()]

    before = trio.current_time()
    async with trio.open_nursery() as nursery:
        port = MetricsPort(lambda _writer: iter(()))
        await nursery.start(lambda **status: port.serve("127.0.0.1", 9000, listen=listen, **status))
        await read(near)
        assert trio.current_time() == pytest.approx(before + ANSWER_WITHIN_S)
        nursery.cancel_scope.cancel()


async def test_a_port_in_use_is_named() -> None:
    async def taken(_host: str, _port: int) -> list[trio.SocketListener]:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    with pytest.raises(
        ConfigError, match=r"metricsPort=9000 cannot be used at 127.0.0.1: Address already in use; stop"
    ):
        await MetricsPort(lambda _writer: iter(())).serve("127.0.0.1", 9000, listen=taken)
