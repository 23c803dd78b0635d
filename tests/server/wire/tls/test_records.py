"""TLS records on an accepted socket: in any pieces, and those that bring no data."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from triomq_server.wire.tls.certificates import self_signed_context
from triomq_server.wire.tls.transport import TlsTransport

SILENT = b"\x17\x03\x03\x00\x16" + bytes(22)
"""As long as an update of keys with TLS 1.3."""


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the second one is the server's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            yield client, accepted


class Reader:
    """In place of OpenSSL's end: reads the contents of the records."""

    def __init__(self, came: ssl.MemoryBIO) -> None:
        self._came = came
        self.records = 0

    def read(self, _most: int) -> bytes:
        while self._came.pending >= 5:
            length = int.from_bytes(self._came.read(5)[3:], "big")
            self.records += 1
            data = self._came.read(length).strip(b"\0")
            if data:
                return data
        raise ssl.SSLWantReadError


def transport_on(accepted: socket.socket) -> TlsTransport:
    return TlsTransport(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)), self_signed_context())


async def received(transport: TlsTransport, size: int) -> bytes:
    data = b""
    with trio.fail_after(60):
        while len(data) < size:
            await transport.wait_readable()
            data += transport.receive_now() or b""
    return data


async def test_records_without_data_end_the_link_soon() -> None:
    """An update of keys costs a tenth of a millisecond: the loop must not wait for a thousand of them."""
    with connected() as (client, accepted):
        transport = transport_on(accepted)
        reader: Any = Reader(transport._came)
        transport._tls = reader
        client.sendall(SILENT * 2000)
        with pytest.raises(trio.BrokenResourceError, match="records without data"):
            await received(transport, 1)
        assert reader.records <= 200
        transport.release()


async def test_a_few_records_without_data_are_no_fault() -> None:
    with connected() as (client, accepted):
        transport = transport_on(accepted)
        reader: Any = Reader(transport._came)
        transport._tls = reader
        client.sendall((SILENT * 30 + b"\x17\x03\x03\x00\x01x" * 2000) * 2)
        assert await received(transport, 4000) == b"x" * 4000
        transport.release()


@pytest.mark.parametrize("step", [1, 7, 4096])
async def test_records_in_any_split(step: int) -> None:
    server_context = self_signed_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_tls = context.wrap_bio(came, goes)
    wanted = b"".join([bytes([65 + size % 26]) * size for size in (1, 5, 300, 2, 900, 1)])
    with connected() as (client, accepted):
        transport = TlsTransport(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)), server_context)

        async def speak() -> None:
            client.setblocking(False)
            end = trio.socket.from_stdlib_socket(client)
            while True:
                try:
                    client_tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await end.send(goes.read())
                    came.write(await end.recv(65_536))
            for size in (1, 5, 300, 2, 900, 1):
                client_tls.write(bytes([65 + size % 26]) * size)
            data = goes.read()  # the end of the handshake comes with the first record
            for at in range(0, len(data), step):
                await trio.SocketStream(end).send_all(data[at : at + step])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(speak)
                await transport.handshake(trio.Lock())
                early = transport.early()
                assert early + await received(transport, len(wanted) - len(early)) == wanted
        transport.release()
