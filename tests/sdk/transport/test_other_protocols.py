"""Peers that are no RocketMQ servers, or speak TLS where plain TCP is expected, and the other way round, are named."""

from __future__ import annotations

from functools import partial

import pytest
import trio

import triomq
from triomq import errors
from triomq._transport.link import Link, other_protocol
from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command

HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
TLS_ALERT = bytes.fromhex("15030300020246")


async def answer(data, stream):
    async with stream:
        if data is not None:
            await stream.receive_some()
            await stream.send_all(data)


async def listen(nursery, data):
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, partial(answer, data), [listener])
    return f"127.0.0.1:{listener.socket.getsockname()[1]}"


@pytest.mark.parametrize(
    ("data", "named"), [(HTTP, "speaks HTTP"), (TLS_ALERT, "speaks TLS"), (b"", "expects TLS"), (None, "expects TLS")]
)
async def test_a_name_server_that_is_none_is_named(nursery, data, named):
    address = await listen(nursery, data)
    async with triomq.open_client(address, route_wait_s=0) as client:
        with pytest.raises(errors.NoNameServer, match=named) as caught:
            await client.admin.topics()
        assert "duplicate" not in str(caught.value)
        with pytest.raises(errors.NoNameServer) as caught:
            await client.producer("G").send(triomq.Message("T", b"x"))
        assert "duplicate" not in str(caught.value)


async def test_tls_to_a_port_that_speaks_plain_tcp_is_named(nursery):
    address = await listen(nursery, b"plain")
    async with triomq.open_client(address, dial=triomq.plugins.tls_dialer(verify=False), route_wait_s=0) as client:
        with pytest.raises(errors.NoNameServer, match="no TLS handshake, as with a port that speaks plain TCP"):
            await client.admin.topics()


async def test_a_broker_asked_as_a_name_server_is_named(autojump_clock, cluster):
    options = cluster.options(route_wait_s=0)
    async with triomq.open_client(cluster.broker.address, **options) as client:
        for call in (client.admin.topics, partial(client.producer("G").send, triomq.Message("T", b"x"))):
            with pytest.raises(errors.NotANameServer, match="looks like a broker's port"):
                await call()


@pytest.mark.parametrize("first", [b"", b"\x00\x00\x00\x10\x00\x00\x00\x08", b"\x15", b"SSH-2.0-"])
def test_other_bytes_are_not_guessed_at(first):
    assert other_protocol(first) is None


async def test_only_sends_speak_of_duplicates(nursery):
    ours, theirs = trio.testing.memory_stream_pair()
    link = Link("b:1", ours)
    await nursery.start(link.run)
    await theirs.send_eof()
    with pytest.raises(errors.LinkLost) as caught:
        await link.request(Command.request(RequestCode.GET_MAX_OFFSET), 1)
    assert "duplicate" not in str(caught.value)


def test_what_is_wrong_with_a_call_is_all_that_is_said():
    assert str(errors.InvalidCall("the offset is -1")) == "the offset is -1"
