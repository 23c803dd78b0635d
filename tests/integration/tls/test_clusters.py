"""A whole cluster that accepts only TLS: registration, replication, a slave's metadata, clients."""

from __future__ import annotations

import logging
import ssl

import pytest
import trio
from tls_links import until

import triomq
from triomq_server.cluster import open_cluster


def enforcing(files) -> dict[str, str]:
    """TLS everywhere, each end verified."""
    certificate, key = files.pair("broker")
    return {
        **files.mutual(),
        "tls.server.mode": "enforcing",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(files.trust),
        "tls.client.certPath": str(certificate),
        "tls.client.keyPath": str(key),
        "haUseTLS": "true",
    }


def client_context(files) -> ssl.SSLContext:
    context = files.trusting()
    context.load_cert_chain(*files.pair("client", "client.example"))
    return context


async def test_everything_over_mutual_tls(files) -> None:
    dial = triomq.plugins.tls_dialer(client_context(files))
    async with (
        open_cluster(sync_replication=True, settings=enforcing(files)) as cluster,
        triomq.open_client(cluster.name_servers, dial=dial) as client,
    ):
        producer = client.producer("writers")
        bodies = [bytes([number]) * (1 if number % 10 else 500_000) for number in range(60)]
        for body in bodies:
            result = await producer.send(triomq.Message("Secret", body))
            assert result.status is triomq.SendStatus.SEND_OK  # the slave has it
        got = []
        async with client.push_consumer("readers", start_from="earliest") as consumer:
            await consumer.subscribe("Secret")
            async for delivery in consumer:
                async with delivery:
                    got.append(delivery.message.body)
                if len(got) == len(bodies):
                    break
        assert sorted(got) == sorted(bodies)
        # A client without a certificate is refused by every port.
        plain = triomq.plugins.tls_dialer(files.trusting())
        async with triomq.open_client(cluster.name_servers, dial=plain, route_wait_s=0) as stranger:
            with pytest.raises(triomq.MQError, match=r"TLS: the server asks for a client certificate"):
                await stranger.admin.topics()


async def test_a_slave_without_tls_is_reported(files, caplog) -> None:
    caplog.set_level(logging.INFO)
    async with open_cluster(settings={**files.server(), "haUseTLS": "true"}) as cluster:
        master = next(node for node in cluster.plan.nodes if node.role == "master")
        host, _, port = master.address.partition(":")
        stream = await trio.open_tcp_stream(host, int(port) + 1)
        async with stream:
            await stream.send_all(bytes(8))
            await until(lambda: "refusing slave" in caplog.text)
        assert "its bytes are not a TLS handshake" in caplog.text
