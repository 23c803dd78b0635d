"""A socket transport under a large load: nothing is lost, doubled or reordered, however little the kernel takes."""

from __future__ import annotations

import random

import pytest
import trio

from triomq_server.wire.transport import SocketTransport, address_of, dial_tcp, listen_tcp


@pytest.fixture
async def pair():
    (listener,) = await listen_tcp("127.0.0.1", 0)
    async with listener:
        theirs = await dial_tcp(address_of(listener))
        ours = await listener.accept()
    transport = SocketTransport(ours)
    yield transport, theirs
    await transport.aclose()
    await theirs.aclose()


async def read_all(stream: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += await stream.receive_some(1 << 20)
    return bytes(data)


@pytest.mark.parametrize("sizes", [[10], [100, 50_000, 70_000], [1 << 23], [1 << 20] * 8, [100] * 5000, [0, 5, 0]])
async def test_pieces_arrive_joined(pair, sizes) -> None:
    transport, theirs = pair
    chance = random.Random(1)
    data = [chance.randbytes(size) for size in sizes]
    pieces = [piece if n % 2 else memoryview(piece) for n, piece in enumerate(data)]
    got = []

    async def read() -> None:
        got.append(await read_all(theirs, sum(sizes)))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            left = memoryview(b"".join(transport.send_now(pieces)))
            while left:
                left = left[await transport.send_some(left) :]
    assert got == [b"".join(data)]


async def test_receive_takes_more_at_a_time_while_there_is_more(pair) -> None:
    transport, theirs = pair
    data = random.Random(2).randbytes(6_000_000)
    sizes = []
    received = bytearray()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.send_all, data)
            while len(received) < len(data):
                chunk = await transport.receive()
                sizes.append(len(chunk))
                received += chunk
    assert received == data
    assert max(sizes) > 65_536


async def test_the_end_of_a_stream_is_received_as_empty_bytes(pair) -> None:
    transport, theirs = pair
    await theirs.send_all(b"last")
    await theirs.send_eof()
    assert await transport.receive() == b"last"
    assert await transport.receive() == b""


async def test_closing_wakes_the_reader(pair) -> None:
    transport, _ = pair

    async def close() -> None:
        await trio.testing.wait_all_tasks_blocked()
        await transport.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        with trio.fail_after(60), pytest.raises(trio.ClosedResourceError):
            await transport.receive()


async def test_peer_is_named_and_packed(pair) -> None:
    transport, theirs = pair
    host, port = theirs.socket.getsockname()
    assert transport.peer == f"{host}:{port}"
    assert transport.peer_host == bytes([127, 0, 0, 1]) + port.to_bytes(4, "big")


async def test_ipv6_peer_and_ipv4_mapped_into_ipv6() -> None:
    try:
        (listener,) = await listen_tcp("::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    async with listener:
        address = address_of(listener)
        assert address.startswith("[::1]:")
        theirs = await dial_tcp(address)
        transport = SocketTransport(await listener.accept())
    assert transport.peer == f"[::1]:{theirs.socket.getsockname()[1]}"
    assert len(transport.peer_host) == 20
    await transport.aclose()
    await theirs.aclose()


@pytest.mark.parametrize("address", ["", "nowhere", ":1", "127.0.0.1:http"])
async def test_address_that_is_none(address) -> None:
    with pytest.raises(OSError, match="host:port"):
        await dial_tcp(address)
