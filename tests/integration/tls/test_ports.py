"""TLS on the port of a name server: modes, certificates that change, peers that misbehave."""

from __future__ import annotations

import datetime as dt
import logging
import ssl
from contextlib import suppress
from functools import partial

import pytest
import trio
import trustme
from tls_links import ASK, ask, ask_plainly, until

import triomq
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.config import ConfigError, NamesrvConfig, TlsConfig
from triomq_server.wire import (
    Handlers,
    Limits,
    Link,
    LinkClosedError,
    TlsSettings,
    dial_tcp,
    failure_reason,
    open_link,
    serve,
    tls_dial,
)
from triomq_server.wire.tls import certificates
from triomq_server.wire.tls.certificates import Certificates, server_context


async def secured(address: str, context: ssl.SSLContext) -> trio.SSLStream[trio.abc.Stream]:
    stream = trio.SSLStream(await dial_tcp(address), context, server_hostname="127.0.0.1", https_compatible=True)
    await stream.do_handshake()
    return stream


async def test_permissive_serves_both_on_one_port(start_namesrv, files) -> None:
    address = await start_namesrv(**files.server())
    assert await ask_plainly(address) == 0
    assert await ask(address, files.trusting()) == 0


async def test_enforcing_names_tls_to_a_plain_client(start_namesrv, files, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**files.server(), **{"tls.server.mode": "enforcing"})
    assert await ask(address, files.trusting()) == 0
    with pytest.raises(LinkClosedError, match="the peer speaks TLS"):
        await ask_plainly(address)
    await until(lambda: "it does not speak TLS, and tls.server.mode=enforcing" in caplog.text)


async def test_disabled_refuses_tls(start_namesrv, files, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**{"tls.server.mode": "disabled"})
    assert await ask_plainly(address) == 0
    with pytest.raises(OSError, match=r"^no TLS handshake, as with a port that speaks plain TCP") as caught:
        await ask(address, files.trusting())
    assert failure_reason(caught.value) == str(caught.value), "the log has the cure, too"
    await until(lambda: "it speaks TLS, and tls.server.mode is disabled" in caplog.text)


async def test_test_mode_makes_a_certificate(start_namesrv, files) -> None:
    """Nothing is set, as with a RocketMQ server."""
    address = await start_namesrv()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    assert await ask(address, context) == 0
    with pytest.raises(OSError, match=r"TLS: .*tls\.client\.trustCertPath"):
        await ask(address, files.trusting())


async def test_the_file_of_rocketmq(start_namesrv, files, tmp_path) -> None:
    file = tmp_path / "rocketmq-tls.properties"
    file.write_text(
        "".join(f"{key}={value}\n" for key, value in files.server().items()) + "tls.test.mode.enable=false\n"
    )
    address = await start_namesrv(**{"tls.config.file": str(file), "tls.server.mode": "enforcing"})
    assert await ask(address, files.trusting()) == 0


async def test_mutual(start_namesrv, files, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**files.mutual())
    context = files.trusting()
    with pytest.raises((OSError, LinkClosedError)):
        await ask(address, context)
    await until(lambda: "the client shows no certificate, and tls.server.need.client.auth=require" in caplog.text)
    context.load_cert_chain(*files.pair("client", "client.example"))
    assert await ask(address, context) == 0
    stranger = files.trusting()
    stranger.load_cert_chain(*files.pair("stranger", "stranger.example", authority=trustme.CA()))
    with pytest.raises((OSError, LinkClosedError)):
        await ask(address, stranger)
    await until(lambda: "its authority is not in tls.server.trustCertPath" in caplog.text)


async def test_a_client_takes_a_renewed_certificate_by_its_context(start_namesrv, files) -> None:
    """As docs/how-to/tls.md says: the context is used as it is, and new connections have what it has loaded then."""
    address = await start_namesrv(**files.mutual(), **{"tls.server.mode": "enforcing"})
    context = files.trusting()
    context.load_cert_chain(*files.pair("client", not_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)))
    async with triomq.open_client(address, tls=context, backoff=triomq.Backoff(max_s=0.1)) as client:
        with pytest.raises(triomq.errors.NoNameServer, match=r"certificate expired\): give .* or renew them"):
            await client.admin.topics()
        context.load_cert_chain(*files.pair("client"))
        with trio.fail_after(60):
            while True:
                try:
                    assert await client.admin.topics() == []
                    break
                except triomq.errors.NoNameServer:
                    await trio.sleep(0.1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda files: files.server(names=("broker.example",)), "TLS: .*mismatch.*checkHostName"),
        (lambda files: files.server(not_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), "TLS: .*expired"),
        (lambda files: files.server(authority=trustme.CA()), r"TLS: .*tls\.client\.trustCertPath"),
    ],
)  # fmt: skip
async def test_certificates_that_a_client_refuses(start_namesrv, files, change, text, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**change(files))
    with pytest.raises(OSError, match=text):
        await ask(address, files.trusting())
    await until(lambda: "it may not trust this server's certificate" in caplog.text or "refuses this" in caplog.text)


async def test_an_expired_certificate_is_a_warning_at_the_start(start_namesrv, files, caplog) -> None:
    await start_namesrv(**files.server(not_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)))
    assert "server.pem has expired" in caplog.text


async def test_a_certificate_whose_time_has_not_come_is_a_warning_at_the_start(start_namesrv, files, caplog) -> None:
    await start_namesrv(**files.server(not_before=dt.datetime(2199, 1, 1, tzinfo=dt.UTC)))
    assert "server.pem is not valid before 2199-01-01 00:00 UTC: clients" in caplog.text


def test_a_certificate_for_own_connections_that_has_expired_is_a_warning(files, caplog) -> None:
    certificate, key = files.pair("own", not_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    values = {**files.server(), "tls.client.certPath": str(certificate), "tls.client.keyPath": str(key)}
    own = NamesrvConfig.from_properties(values)[0].tls
    for dials in (False, True):
        Certificates(own).load(dials=dials)
        assert ("own.pem has expired: servers that verify it" in caplog.text) == dials


async def test_changed_certificates_are_for_new_links(start_namesrv, files, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**files.server())
    old = files.trusting()
    async with open_link(address, dial=tls_dial(dial_tcp, lambda: old)) as link:
        other = trustme.CA()
        files.pair("server", authority=other)
        await until(lambda: "certificates have changed: new links" in caplog.text)
        context = ssl.create_default_context()
        other.configure_trust(context)
        assert await ask(address, context) == 0
        with pytest.raises(OSError, match="TLS: "):
            await ask(address, old)
        assert (await link.request(ASK, 60)).code == 0


async def test_files_that_change_while_they_are_read_are_read_again(files, caplog) -> None:
    """A tool that renews a certificate and, at once, the authorities: the second change must not count as read."""
    caplog.set_level(logging.INFO)
    own = NamesrvConfig.from_properties(files.mutual())[0].tls
    made = Certificates(own)
    made.load(dials=False)
    late = trustme.CA()

    async def run(chore):
        before = made.settings.context
        done = await trio.to_thread.run_sync(chore)
        if (
            caplog.text.count("certificates have changed") == 0
            and made.settings.context is before
            and type(done) is tuple
        ):
            late.cert_pem.write_to_path(files.folder / "ca.pem")
        return done

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.watch, run)
        files.pair("server", authority=trustme.CA())
        await until(lambda: caplog.text.count("certificates have changed: new links") == 2)
        nursery.cancel_scope.cancel()
    assert made.settings.context.get_ca_certs(binary_form=True) == [
        ssl.PEM_cert_to_DER_cert(late.cert_pem.bytes().decode())
    ]


async def test_certificates_that_become_readable_are_taken(start_namesrv, files, caplog, monkeypatch) -> None:
    """As after `chmod`, or when there are descriptors again: the files are as they were."""
    caplog.set_level(logging.INFO)
    refusals = 0

    def make_context(config: TlsConfig) -> ssl.SSLContext:
        nonlocal refusals
        if not readable:
            refusals += 1
            raise ConfigError("tls.server.keyPath=server.key: Permission denied")
        return server_context(config)

    readable = True
    address = await start_namesrv(**files.server())
    monkeypatch.setattr(certificates, "server_context", make_context)
    readable = False
    other = trustme.CA()
    files.pair("server", authority=other)
    await until(lambda: refusals >= 2)
    assert caplog.text.count("those read before stay in force: tls.server.keyPath=server.key") == 1
    assert await ask(address, files.trusting()) == 0
    readable = True
    await until(lambda: "certificates have changed: new links" in caplog.text)
    context = ssl.create_default_context()
    other.configure_trust(context)
    assert await ask(address, context) == 0


async def test_broken_certificates_keep_those_read_before(start_namesrv, files, caplog) -> None:
    address = await start_namesrv(**files.server())
    key = files.folder / "server.key"
    kept = key.read_bytes()
    for content, why in (
        (b"no key at all", "cannot be used"),
        (files.pair("other")[1].read_bytes(), "is not the key of"),
        (None, "No such file"),
    ):
        caplog.clear()
        key.unlink() if content is None else key.write_bytes(content)
        await until(lambda why=why: "stay in force" in caplog.text and why in caplog.text)
        assert await ask(address, files.trusting()) == 0
    key.write_bytes(kept)
    caplog.clear()
    caplog.set_level(logging.INFO)
    await until(lambda: "certificates have changed: new links" in caplog.text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda files: {"tls.server.certPath": "/nowhere.pem", "tls.server.keyPath": "/nowhere.key"}, "No such file"),
        (lambda files: {**files.server(), "tls.server.keyPath": str(files.pair("x")[1])}, "is not the key of"),
        (lambda files: {**files.server(), "tls.server.certPath": str(files.pair("x")[1])}, "cannot be used: .*PEM"),
        (lambda files: {**files.server(), "tls.server.keyPath": str(files.pair("x")[0])}, "no private key in PEM form"),
        (lambda files: {**files.mutual(), "tls.server.trustCertPath": str(files.pair("x")[1])}, "no certificate in PEM"),
        (lambda files: {"tls.config.file": "/nowhere.properties"}, "there is no such file"),
    ],
)  # fmt: skip
async def test_files_that_cannot_be_used_prevent_the_start(start_namesrv, files, change, text) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=text), flatten_subgroups=True, allow_unwrapped=True):
        await start_namesrv(**change(files))


async def test_a_key_with_a_password(start_namesrv, files) -> None:
    from cryptography.hazmat.primitives import serialization

    settings = files.server()
    path = files.folder / "server.key"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    sealed = serialization.BestAvailableEncryption(b"open sesame")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed))
    address = await start_namesrv(**settings, **{"tls.server.keyPassword": "open sesame"})
    assert await ask(address, files.trusting()) == 0
    for given, why in (
        ({}, "server.key cannot be used: it is encrypted, and tls.server.keyPassword is not set"),
        ({"tls.server.keyPassword": "open rice"}, "tls.server.keyPassword is not its password"),
    ):
        refused = pytest.RaisesExc(ConfigError, match=why)
        with pytest.RaisesGroup(refused, flatten_subgroups=True, allow_unwrapped=True):
            await start_namesrv(**settings, **given)


async def test_a_fault_of_a_file_is_not_called_a_wrong_password(start_namesrv, files) -> None:
    """The key is encrypted, and its password is given."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    settings = {**files.server(), "tls.server.keyPassword": "open sesame"}
    certificate, path = files.folder / "server.pem", files.folder / "server.key"
    sound = certificate.read_bytes()

    def seal(key) -> bytes:
        sealed = serialization.BestAvailableEncryption(b"open sesame")
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)

    def cut(pem: bytes) -> bytes:
        return pem[:60] + pem[180:]

    async def assert_refused(why: str) -> None:
        refused = pytest.RaisesExc(ConfigError, match=why)
        with pytest.RaisesGroup(refused, flatten_subgroups=True, allow_unwrapped=True):
            await start_namesrv(**settings)

    sealed_key = seal(serialization.load_pem_private_key(path.read_bytes(), None))
    path.write_bytes(sealed_key)
    certificate.write_bytes(cut(sound))
    await assert_refused("tls.server.certPath=.* cannot be used: its certificate is damaged")
    certificate.write_bytes("für Tests\n".encode() + sound)
    path.write_bytes(cut(sealed_key))
    await assert_refused("keyPassword is not its password, or the file is damaged")
    small = rsa.generate_private_key(65537, 1024)
    path.write_bytes(seal(small))  # trustme's are of elliptic curves
    await assert_refused("is not the key of")
    name, now = x509.Name([]), dt.datetime.now(dt.UTC)
    own = x509.CertificateBuilder(name, name, small.public_key(), 1, now, now + dt.timedelta(days=9))
    certificate.write_bytes(own.sign(small, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    await assert_refused("ee key too small")


# What peers may do


@pytest.mark.parametrize(
    "data",
    [
        b"\x16",
        b"\x16\x03\x01\x00\x05hello",
        b"\x16" + bytes(100),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(520),
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + (b"\x16\x03\x01\x40\x00" + bytes(16_384)) * 12,
    ],
    ids=["one byte", "short", "zeros", "half a hello", "too long a record", "an endless hello"],
)
async def test_garbage_affects_no_other_link(start_namesrv, files, data) -> None:
    address = await start_namesrv(**files.server(), tlsHandshakeTimeoutMillis="300")
    stream = await dial_tcp(address)
    async with stream:
        await stream.send_all(data)
        assert await ask(address, files.trusting()) == 0
        with trio.fail_after(30):
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass


async def test_plain_bytes_in_the_middle_end_the_link(start_namesrv, files) -> None:
    address = await start_namesrv(**files.server())
    stream = await secured(address, files.trusting())
    await stream.send_all(ASK.encode())
    assert await stream.receive_some()
    raw = stream.transport_stream
    await raw.send_all(ASK.encode())
    with trio.fail_after(30), suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    await trio.aclose_forcefully(stream)
    assert await ask_plainly(address) == 0


async def test_a_thousand_unfinished_handshakes(start_namesrv, files, caplog) -> None:
    """The oldest make room for new ones; who finishes is served all the time."""
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**files.server(), maxTlsHandshakes="100")
    context = files.trusting()
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1").do_handshake()
    first = hello.read()
    streams = []
    for number in range(1000):
        stream = await dial_tcp(address)
        streams.append(stream)
        await stream.send_all(first[:-1] if number % 2 else first)
        if number % 100 == 99:
            assert await ask(address, context) == 0
    await until(lambda: "it was the oldest of 100" in caplog.text)
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def test_a_handshake_without_an_end_is_ended(start_namesrv, files, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**files.server(), tlsHandshakeTimeoutMillis="100")
    async with await dial_tcp(address) as stream:
        await stream.send_all(b"\x16\x03")
        with trio.fail_after(30):
            with suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
    assert "not within 0.1 s (tlsHandshakeTimeoutMillis)" in caplog.text


async def test_the_first_request_may_come_with_the_handshake(start_namesrv, files) -> None:
    """Then no socket becomes readable for it."""
    address = await start_namesrv(**files.server())
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = files.trusting().wrap_bio(came, goes, server_hostname="127.0.0.1")
    async with await dial_tcp(address) as stream:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await stream.send_all(goes.read())
                came.write(await stream.receive_some())
        tls.write(ASK.encode() * 3)
        await stream.send_all(goes.read())
        decoder, answers = FrameDecoder(), []
        with trio.fail_after(30):
            while len(answers) < 3:
                try:
                    answers += decoder.feed(tls.read(65_536))
                except ssl.SSLWantReadError:
                    came.write(await stream.receive_some())
        assert [answer.code for answer in answers] == [0, 0, 0]


async def test_the_end_of_tls_ends_the_link(start_namesrv, files) -> None:
    """A client may end TLS and keep the connection."""
    address = await start_namesrv(**files.server())
    stream = await secured(address, files.trusting())
    await stream.send_all(ASK.encode())
    assert await stream.receive_some()
    with trio.fail_after(30):
        plain, _ = await stream.unwrap()
        assert await plain.receive_some() == b""
    await trio.aclose_forcefully(plain)


async def test_an_old_version_is_refused(start_namesrv, files, caplog) -> None:
    caplog.set_level(logging.INFO)
    address = await start_namesrv(**files.server())
    context = files.trusting()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await ask(address, context) == 0
    stream = await dial_tcp(address)
    async with stream:
        # A hello of TLS 1.0 with one cipher.
        body = b"\x03\x01" + bytes(32) + b"\x00\x00\x02\x00\x2f\x01\x00"
        hello = b"\x01" + len(body).to_bytes(3, "big") + body
        await stream.send_all(b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello)
        assert (await stream.receive_some())[:1] == b"\x15"
    await until(lambda: "no version or cipher" in caplog.text)


async def test_a_client_that_reads_late_gets_every_answer_and_is_not_read_from_meanwhile(nursery, files) -> None:
    """The link's limit of unsent bytes holds for TLS; answers of all sizes come in order."""
    answered: list[int] = []
    links: set[Link] = set()

    def answer(link: Link, command: Command) -> bytes:
        links.add(link)
        answered.append(command.opaque)
        size = (1, 300, 20_000, 100_000, 700_000)[command.opaque % 5]
        return command.answer(0, body=bytes([command.opaque % 256]) * size).encode()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.pair("server"))
    limits = Limits(output_bytes=1 << 20)
    addresses = await nursery.start(
        partial(serve, Handlers(plain={1: answer}), host="127.0.0.1", port=0, limits=limits, tls=TlsSettings(context))
    )
    stream = await secured(addresses[0], files.trusting())
    asked = [Command.request(1) for _ in range(400)]
    for number, command in enumerate(asked):
        command.opaque = number
    async with trio.open_nursery() as sending:
        sending.start_soon(stream.send_all, b"".join(command.encode() for command in asked))
        await until(lambda: any(link.unsent_bytes > 1 << 20 for link in links))
        assert len(answered) < 400
        decoder, number = FrameDecoder(), 0
        with trio.fail_after(60):
            while number < 400:
                for got in decoder.feed(bytes(await stream.receive_some(50_000))):
                    assert got.opaque == number
                    assert set(got.body) == {number % 256}
                    assert len(got.body) == (1, 300, 20_000, 100_000, 700_000)[number % 5]
                    number += 1
    assert max(link.unsent_bytes for link in links) == 0
    await trio.aclose_forcefully(stream)
    nursery.cancel_scope.cancel()


async def test_requests_of_many_sizes(start_namesrv, files) -> None:
    """Records of all sizes, cut and joined: what is answered is what was asked."""
    address = await start_namesrv(**files.server())
    context = files.trusting()
    async with open_link(address, dial=tls_dial(dial_tcp, lambda: context)) as link:
        for size in (0, 1, 100, 16_384, 65_536, 1_000_000):
            put = Command.request(100, fields={"namespace": "n", "key": f"k{size}", "value": "v" * min(size, 200_000)})
            assert (await link.request(put, 60)).code == 0
            get = await link.request(Command.request(101, fields={"namespace": "n", "key": f"k{size}"}), 60)
            assert len((get.fields or {})["value"]) == min(size, 200_000)
