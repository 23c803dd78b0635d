"""TLS over any stream: records without data, records in any pieces, and a turn of the loop between."""

from __future__ import annotations

import gc
import ssl

import pytest
import trio
from trio.testing import memory_stream_pair

from triomq_server.wire.tls.certificates import self_signed_context
from triomq_server.wire.tls.handshakes import TlsSettings, accept_tls
from triomq_server.wire.tls.stream import _RECORDS_AT_ONCE, TlsStream, _WholeRecords

SILENT = b"\x17\x03\x03\x00\x16" + bytes(22)
"""As long as an update of keys with TLS 1.3."""


def trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def test_records_without_data_end_the_link_soon() -> None:
    """An update of keys costs a tenth of a millisecond: the loop must not wait for a thousand of them."""
    peer, own = memory_stream_pair()
    await peer.send_all(SILENT * 2000)
    records = _WholeRecords(own)
    given = [len(await records.receive_some()) // len(SILENT) for _ in range(5)]
    assert max(given) == _RECORDS_AT_ONCE
    assert sum(given) <= 100
    with pytest.raises(trio.BrokenResourceError, match="records without data"):
        await records.receive_some()


async def test_a_few_records_without_data_are_no_fault() -> None:
    peer, own = memory_stream_pair()
    await peer.send_all((SILENT * 30 + b"\x17\x03\x03\x00\x01x" * 2000) * 2)
    await peer.send_eof()
    records = _WholeRecords(own)
    data = b""
    while part := await records.receive_some():
        data += part
        records.pieces_read = part.count(b"x")
    assert data.count(b"x") == 4000


@pytest.mark.parametrize("step", [1, 7, 4096])
async def test_both_ends_in_any_pieces(step: int) -> None:
    client_end, server_end = memory_stream_pair()
    own_send = client_end.send_stream.send_all

    async def in_pieces(data: bytes | bytearray | memoryview) -> None:
        for at in range(0, len(data), step):
            await own_send(data[at : at + step])

    client_end.send_stream.send_all = in_pieces  # type: ignore[method-assign]
    client = TlsStream(client_end, trusting_all())
    wanted = b"".join([bytes([65 + size % 26]) * size for size in (1, 5, 300, 2, 20_000, 1)])
    received = b""

    async def speak() -> None:
        await client.do_handshake()
        for size in (1, 5, 300, 2, 20_000, 1):
            await client.send_all(bytes([65 + size % 26]) * size)
        assert await client.receive_some() == b"answer"
        await client.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        server = await accept_tls(server_end, TlsSettings(self_signed_context()))
        assert isinstance(server, TlsStream)
        assert server.transport_stream is server_end
        while len(received) < len(wanted):
            received += await server.receive_some()
        await server.send_all(b"answer")
    assert received == wanted


async def test_what_is_no_tls_is_refused() -> None:
    client_end, server_end = memory_stream_pair()
    await client_end.send_all(b"GET / HTTP/1.1\r\n" * 3)
    await client_end.send_eof()
    with pytest.raises(OSError, match="no TLS handshake"):
        await accept_tls(server_end, TlsSettings(self_signed_context()))


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_stream_that_has_ended_is_freed_without_a_collection(is_closed: bool) -> None:
    """A server freezes what outlives a collection in great number: cycles of such streams would stay forever."""
    client_end, server_end = memory_stream_pair()
    settings, alive = TlsSettings(self_signed_context()), streams_alive()
    gc.disable()
    try:
        if is_closed:
            client = TlsStream(client_end, trusting_all())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.do_handshake)
                server = await accept_tls(server_end, settings)
            for stream in (client, server):
                await stream.aclose()
                with pytest.raises(trio.ClosedResourceError):
                    await stream.send_all(b"x")
                with pytest.raises(trio.ClosedResourceError):
                    await stream.receive_some()
            del client, server, stream
        else:
            with trio.move_on_after(0):
                await accept_tls(server_end, settings)
        assert streams_alive() == alive
    finally:
        gc.enable()


def streams_alive() -> int:
    return sum(isinstance(found, trio.SSLStream) for found in gc.get_objects())
