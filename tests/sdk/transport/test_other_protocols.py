"""Peers that are not RocketMQ servers, or use TLS where plain TCP is expected or the reverse, are named."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio

import triomq
from triomq import errors
from triomq._transport.link import Link, http_2, other_protocol
from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command

HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
TLS_ALERT = bytes.fromhex("15030300020246")


async def answer(data, connections, stream):
    async with stream:
        connections.append(stream)
        if data is not None:
            await stream.receive_some()
            await stream.send_all(data)


async def listen(nursery, data, connections=None):
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    connections = [] if connections is None else connections
    nursery.start_soon(trio.serve_listeners, partial(answer, data, connections), [listener])
    return f"127.0.0.1:{listener.socket.getsockname()[1]}"


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("data", "named"),
    [(HTTP, "speaks HTTP"), (TLS_ALERT, "speaks TLS"), (b"SSH-2.0-OpenSSH\r\n", "the text 'SSH-2.0-'")],
)
async def test_an_address_that_is_no_name_server_is_named_at_once(nursery, caplog, data, named):
    """By default a call waits for a name server as long as it may take: not for this one."""
    connections = []
    address = await listen(nursery, data, connections)
    async with triomq.open_client(address) as client:
        for call in (client.admin.topics, partial(client.producer("G").send, triomq.Message("T", b"x"))):
            connections.clear()
            caplog.clear()
            with pytest.raises(errors.NotANameServer, match=named) as caught:
                await call()
            assert address in str(caught.value)
            assert "duplicate" not in str(caught.value)
            assert (len(connections), len(warnings(caplog))) == (1, 1)


async def test_a_grpc_port_is_named_when_it_closes_the_connection(nursery):
    """Its first frame might be the start of one of RocketMQ's; a proxy in LOCAL mode names this port in its routes."""
    address = await listen(nursery, bytes.fromhex("000012040000000000") + bytes(18))
    async with triomq.open_client(address) as client:
        with pytest.raises(errors.NotANameServer, match="speaks HTTP/2: this is a gRPC port"):
            await client.producer("G").send(triomq.Message("T", b"x"))
        link = await client._links.get(address)
        with pytest.raises(errors.OtherProtocol, match="LOCAL mode use the cluster's name servers"):
            await link.request(Command.request(RequestCode.GET_MAX_OFFSET), 1)


@pytest.mark.parametrize("data", [b"", None])
async def test_a_port_that_closes_silently_may_expect_tls(nursery, caplog, data):
    connections = []
    address = await listen(nursery, data, connections)
    async with triomq.open_client(address, route_wait_s=0) as client:
        with pytest.raises(errors.NoNameServer, match=r"may expect TLS \(give open_client\(tls=True\)") as caught:
            await client.admin.topics()
        assert address in str(caught.value)
        # One end says nothing, as when a server stops; another connection says more.
        assert len(connections) == 2
        with pytest.raises(errors.NoNameServer, match="may expect TLS") as caught:
            await client.producer("G").send(triomq.Message("T", b"x"))
        assert "duplicate" not in str(caught.value)
        (line,) = warnings(caplog)
        assert address in line


async def test_a_name_server_that_never_answers_is_named(autojump_clock, cluster):
    cluster.name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[None] * 20)
    async with cluster.client() as client:
        with pytest.raises(errors.NotReady, match="it takes the connection and never answers") as caught:
            await client.producer("G").send(triomq.Message("T", b"x"))
        assert f"asked {cluster.name_server.address}" in str(caught.value)
        with pytest.raises(errors.NoNameServer, match="it takes the connection and never answers"):
            await client.pull_consumer("G").fetch_queues("T")


async def test_the_cause_is_named_when_time_is_over_during_a_further_dial(autojump_clock):
    """As that of a handshake with a server far away: the next one has begun, and will not end in time."""

    async def dial(address):
        await trio.sleep(0.8)
        raise OSError("TLS: the server asks for a client certificate")

    async with triomq.open_client("ns:9876", dial=dial) as client:
        producer = client.producer("G", send_timeout_s=3.4)
        message = triomq.Message("T", b"x")
        for call in (producer.send, partial(producer.request, timeout_s=3.4)):
            with pytest.raises(errors.NotReady, match="ns:9876: TLS: the server asks for a client certificate"):
                await call(message)


@pytest.mark.parametrize("round_", range(6))
async def test_a_name_server_beside_others_is_asked_at_once(autojump_clock, cluster, round_):
    addresses = f"{cluster.broker.address};{cluster.name_server.address}"
    options = cluster.options(route_wait_s=0, chance=random.Random(round_))
    async with triomq.open_client(addresses, **options) as client:
        await client.admin.topics()
        await client.producer("G").send(triomq.Message("T", b"x"))
    await cluster.name_server.stop()
    async with triomq.open_client(addresses, **options) as client:
        with pytest.raises(errors.NoNameServer, match="looks like a broker's port") as caught:
            await client.admin.topics()
        assert type(caught.value) is errors.NoNameServer, "the other one may return"


async def test_tls_to_a_port_that_speaks_plain_tcp_is_named(nursery):
    address = await listen(nursery, b"plain")
    async with triomq.open_client(address, dial=triomq.plugins.tls_dialer(insecure=True), route_wait_s=0) as client:
        with pytest.raises(errors.NoNameServer, match="no TLS handshake, as with a port that speaks plain TCP"):
            await client.admin.topics()


async def test_a_broker_asked_as_a_name_server_is_named(autojump_clock, cluster):
    async with triomq.open_client(cluster.broker.address, **cluster.options()) as client:
        for call in (client.admin.topics, partial(client.producer("G").send, triomq.Message("T", b"x"))):
            with pytest.raises(errors.NotANameServer, match="looks like a broker's port"):
                await call()
        with pytest.raises(errors.NoNameServer, match="like that of a RocketMQ 5 proxy"):
            await client.doctor.look()


@pytest.mark.parametrize("first", [b"", b"\x00\x00\x00\x10\x00\x00\x00\x08", b"\x15", b"\x80\x00\x00\x03", b"SSH"])
def test_other_bytes_are_not_guessed_at(first):
    assert other_protocol(first) is None
    assert http_2(first) is None


async def test_only_errors_of_sends_mention_duplicates(nursery):
    ours, theirs = trio.testing.memory_stream_pair()
    link = Link("b:1", ours)
    await nursery.start(link.run)
    await theirs.send_eof()
    with pytest.raises(errors.LinkLost) as caught:
        await link.request(Command.request(RequestCode.GET_MAX_OFFSET), 1)
    assert "duplicate" not in str(caught.value)
    # A peer that was killed looks like one that expects TLS: both are named.
    assert "the peer has ended or is starting, or its port expects TLS" in str(caught.value)


def test_the_error_of_a_wrong_call_names_only_what_is_wrong():
    assert str(errors.InvalidCall("the offset is -1")) == "the offset is -1"
