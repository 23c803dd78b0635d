"""TLS with the real software: Java's clients on our servers, our client and our broker on Java's."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import triomq
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.processes import DriverError
from triomq_benchmarks.clusters.servers import Kind, write_properties


class Files:
    """An authority, and PEM files as Java reads them: keys in PKCS#8."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.authority = trustme.CA()
        self.trust = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.trust)

    def pair(self, name: str, authority: trustme.CA | None = None) -> tuple[Path, Path]:
        made = (authority or self.authority).issue_cert("127.0.0.1", "localhost")
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        loaded = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
        plain = serialization.NoEncryption()
        key.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return certificate, key

    def side(self, side: str, name: str, authority: trustme.CA | None = None) -> dict[str, object]:
        certificate, key = self.pair(name, authority)
        return {
            f"tls.{side}.certPath": certificate,
            f"tls.{side}.keyPath": key,
            f"tls.{side}.trustCertPath": self.trust,
            f"tls.{side}.auth{'Client' if side == 'server' else 'Server'}": True,
        }

    def both(self) -> dict[str, object]:
        """A server that wants certificates of its clients, and shows one to the servers that it dials."""
        return {
            "tls.test.mode.enable": False,
            "tls.server.need.client.auth": "require",
            **self.side("server", "server"),
            **self.side("client", "broker"),
        }

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.trust)
        context.load_cert_chain(*self.pair("sdk"))
        return context


@pytest.fixture(scope="module")
def files(scratch: Path) -> Files:
    return Files(scratch / "tls")


def java_tls(files: Files, name: str, settings: Mapping[str, object]) -> dict[str, str]:
    """A Java client's system properties."""
    file = write_properties(files.folder / f"{name}.properties", {"tls.test.mode.enable": False, **settings})
    return {"tls.enable": "true", "tls.config.file": str(file)}


@contextmanager
def enforcing_cluster(files: Files) -> Iterator[str]:
    """Our name server and brokers, which accept only TLS; its name servers."""
    settings = {"tls.server.mode": "enforcing", "haUseTLS": True, **files.both()}
    assigned = [
        f"--set={key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]
    argv = [sys.executable, "-m", "triomq_server", "cluster", "--json", "--sync-replication", *assigned]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "ready":
                    break
            yield str(event["name_servers"])
        finally:
            process.terminate()


def bodies(seen: Any) -> list[bytes]:
    return sorted(one.body for one in seen)


async def sent_and_pulled(
    servers: str,
    topic: str,
    context: ssl.SSLContext,
    messages: list[bytes],
    account: triomq.Credentials | None = None,
) -> list[bytes]:
    """Send with our client over TLS, and pull until as many have come."""
    got: list[bytes] = []
    async with triomq.open_client(servers, tls=context, credentials=account) as client:
        producer = client.producer("tls-writers", send_timeout_s=60)
        for body in messages:
            await producer.send(triomq.Message(topic, body))
        async with client.push_consumer("tls-readers", start_from="earliest") as consumer:
            await consumer.subscribe(topic)
            async for delivery in consumer:
                async with delivery:
                    got.append(delivery.message.body)
                if len(got) == len(messages):
                    break
    return sorted(got)


def test_a_java_client_with_nothing_but_tls_enable(
    ours: SingleBroker, fresh_java_client: Any, make_samples: Any
) -> None:
    """Both are in RocketMQ's default, the test mode."""
    servers = ours.namesrv.address
    messages = make_samples(20, largest_bytes=200_000)
    with fresh_java_client("tls-default", {"tls.enable": "true"}) as client:
        client.send(servers, "TlsDefault", messages)
        assert bodies(client.pull_all(servers, "TlsDefault", 20)) == bodies(messages)


async def test_java_clients_on_servers_that_speak_tls_only(
    files: Files, java_client: Any, fresh_java_client: Any, make_samples: Any
) -> None:
    messages = make_samples(20, largest_bytes=100_000)
    trusted = java_tls(files, "trusted", files.side("client", "java"))
    no_certificate = java_tls(files, "bare", {"tls.client.authServer": True, "tls.client.trustCertPath": files.trust})
    stranger = java_tls(files, "stranger", files.side("client", "stranger", trustme.CA()))
    with enforcing_cluster(files) as servers:
        with fresh_java_client("tls-trusted", trusted) as client:
            client.send(servers, "TlsOnly", messages)
            assert bodies(client.pull_all(servers, "TlsOnly", 20)) == bodies(messages)
            assert "broker-a" in client.admin(servers, "clusterList")
        for name, properties in (("tls-bare", no_certificate), ("tls-stranger", stranger)):
            with fresh_java_client(name, properties) as client, pytest.raises(DriverError):
                client.send(servers, "TlsOnly", messages[:1])
        with pytest.raises(DriverError):
            java_client.send(servers, "TlsOnly", messages[:1])
        ours = [one.body for one in messages]
        assert await sent_and_pulled(servers, "TlsOurs", files.context(), ours) == sorted(ours)


async def test_our_client_and_our_broker_on_javas(servers: Any, files: Files) -> None:
    """Java's name server and broker, and a broker of ours at the same name server; each asks for certificates."""
    file = write_properties(files.folder / "java-server.properties", files.both())
    properties = {"tls.enable": "true", "tls.server.mode": "permissive", "tls.config.file": str(file)}
    own = {**files.both(), "useTLS": True, "brokerName": "broker-b"}
    with (
        servers.namesrv(Kind.JAVA, "tls-java-namesrv", None, properties) as names,
        servers.broker(Kind.JAVA, "tls-java-broker", names.address, {}, None, properties),
        servers.broker(Kind.OURS, "tls-our-broker", names.address, own),
    ):
        sent = [b"%d" % number * (1 + number * 1000) for number in range(20)]
        assert await sent_and_pulled(names.address, "TlsJava", files.context(), sent) == sorted(sent)
        async with triomq.open_client(names.address, tls=files.context()) as client:
            info = await client.admin.cluster_info()
            assert "broker-b" in str(info)
        bare = ssl.create_default_context(cafile=files.trust)
        for context, why in ((bare, "TLS"), (True, "TLS: .*authority")):
            async with triomq.open_client(names.address, tls=context, route_wait_s=0) as client:
                with pytest.raises(triomq.MQError, match=why):
                    await client.admin.topics()


ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
"""


@pytest.mark.parametrize("kind", [Kind.OURS, Kind.JAVA])
async def test_signed_requests_over_tls(
    kind: Kind, servers: Any, files: Files, scratch: Path, fresh_java_client: Any
) -> None:
    """Access control and TLS at the same time: our client on both brokers, the real tool and its client on ours."""
    home = scratch / f"tls-acl-{kind}-broker"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings: dict[str, object] = {"aclEnable": True}
    own: dict[str, object] = {}
    properties = None
    if kind is Kind.OURS:
        own = files.both()
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1", "useTLS": True, **own}
    else:
        file = write_properties(files.folder / "java-acl.properties", files.both())
        properties = {"tls.enable": "true", "tls.server.mode": "permissive", "tls.config.file": str(file)}
    account = triomq.Credentials("operator", "operator-secret")
    with (
        servers.namesrv(kind, f"tls-acl-{kind}-namesrv", own, properties) as names,
        servers.broker(kind, home.name, names.address, settings, None, properties) as broker,
    ):
        context = files.context()
        async with triomq.open_client(names.address, tls=context, credentials=account) as client:
            await client.admin.create_topic("Guarded", queues=2)
        sent = [b"one", b"z" * 100_000]
        assert await sent_and_pulled(names.address, "Guarded", context, sent, account) == sorted(sent)
        wrong = triomq.Credentials("operator", "wrong-secret")
        for credentials, why in ((None, "No accessKey is configured"), (wrong, "Check signature failed")):
            async with triomq.open_client(names.address, tls=context, credentials=credentials) as client:
                with pytest.raises(triomq.errors.AccessRefused, match=why):
                    await client.producer("refused", send_timeout_s=60).send(triomq.Message("Guarded", b"refused"))
        if kind is Kind.JAVA:
            return
        tools = scratch / "tls-acl-java" / "conf" / "tools.yml"
        tools.parent.mkdir(parents=True)
        tools.write_text("accessKey: operator\nsecretKey: operator-secret\n")
        own_tls = java_tls(files, "acl", files.side("client", "java-acl"))
        with fresh_java_client("tls-acl-java", own_tls) as java, fresh_java_client("tls-acl-bare", own_tls) as bare:
            create = ("updateTopic", "-b", broker.address, "-t", "FromJava", "-r", "1", "-w", "1")
            assert "success" in java.admin(names.address, *create)
            assert "No accessKey is configured" in bare.admin(names.address, *create)
            assert "SEND_OK" in java.admin(names.address, "sendMessage", "-t", "FromJava", "-p", "signed-over-tls")
            read = ("consumeMessage", "-t", "FromJava", "-c", "1", "-b", "broker-a", "-i", "0")
            java.eventually(lambda: java.admin(names.address, *read), lambda printed: "signed-over-tls" in printed)
