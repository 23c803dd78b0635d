"""Which servers a client trusts over TLS: only the given context decides, and by default certificates are verified."""

from __future__ import annotations

import re
import ssl
from contextlib import suppress

import pytest
import trio

import triomq
from triomq import errors
from triomq._transport.dialing import tls_failure
from triomq_protocol.wire.frame import FrameDecoder

trustme = pytest.importorskip("trustme")


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
async def name_server(authority, nursery):
    """Serves TLS with a certificate for localhost; returns its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")

    async def answer(stream):
        decoder = FrameDecoder()
        with suppress(trio.BrokenResourceError):  # clients end without TLS's goodbye, as Java's do
            async for data in stream:
                for command in decoder.feed(bytes(data)):
                    await stream.send_all(command.answer(0, body=b'{"topicList":["secret"]}').encode())

    nursery.start_soon(trio.serve_listeners, answer, listeners)
    return listeners[0].transport_listener.socket.getsockname()[1]


async def topics(address, **options):
    dial = triomq.plugins.tls_dialer(**options)
    async with triomq.open_client(address, dial=dial, route_wait_s=0) as client:
        return await client.admin.topics()


def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_a_trusted_certificate_with_the_right_name(authority, name_server):
    assert await topics(f"localhost:{name_server}", context=trusting(authority)) == ["secret"]


async def test_by_default_an_unknown_certificate_is_refused(name_server):
    with pytest.raises(errors.NoNameServer, match=r"TLS: .*certificate"):
        await topics(f"localhost:{name_server}")


async def test_the_callers_context_keeps_its_strictness(authority, name_server):
    """A certificate of a trusted authority for another host, and a context that checks names."""
    context = trusting(authority)
    with pytest.raises(errors.NoNameServer, match="TLS: IP address mismatch"):
        await topics(f"127.0.0.1:{name_server}", context=context)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


async def test_a_context_that_does_not_check_names(authority, name_server):
    context = trusting(authority)
    context.check_hostname = False
    assert await topics(f"127.0.0.1:{name_server}", context=context) == ["secret"]


async def test_not_verifying_has_to_be_asked_for(name_server):
    assert await topics(f"127.0.0.1:{name_server}", insecure=True) == ["secret"]


def test_a_context_decides_itself_what_it_verifies():
    with pytest.raises(errors.InvalidCall, match="a context or other arguments, not both"):
        triomq.plugins.tls_dialer(ssl.create_default_context(), insecure=True)


def rejected(code, message):
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("code", "message", "cure"),
    [
        (7, "certificate signature failure", "give that as ca"),
        (9, "certificate is not yet valid", "check the clocks"),
        (10, "certificate has expired", "the server needs a new certificate"),
        (18, "self-signed certificate", "give that as ca"),
        (26, "unsuitable certificate purpose", "the server, or its authority, needs another certificate"),
        (64, "IP address mismatch", "check_host_name=False"),
        (66, "EE certificate key too weak", "the server, or its authority, needs another certificate"),
        (79, "invalid CA certificate", "the server, or its authority, needs another certificate"),
        (85, "Missing Authority Key Identifier", "since Python 3.13 .* must follow RFC 5280: make a new one"),
        (
            92,
            "CA cert does not include key usage extension",
            "since Python 3.13 .* must follow RFC 5280: make a new one",
        ),
    ],
)
def test_each_certificate_that_is_rejected_has_its_cure(code, message, cure):
    assert re.search(rf"^TLS: {message}: .*{cure}", tls_failure(rejected(code, message)))


def failed(reason):
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1006)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLS: the server asks for a client certificate"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "TLS: client and server have no version or cipher in common"),
        ("TLSV1_UNRECOGNIZED_NAME", "TLS: the server refuses the connection (tlsv1 unrecognized name): its log may"),
        ("TLSV1_ALERT_INTERNAL_ERROR", "TLS: the server refuses the connection (tlsv1 alert internal error)"),
        ("SSLV3_ALERT_UNEXPECTED_MESSAGE", "TLS: the server refuses the connection"),
        ("WRONG_VERSION_NUMBER", "no TLS handshake, as with a port that speaks plain TCP: wrong version number"),
        ("UNEXPECTED_EOF_WHILE_READING", "no TLS handshake, as with a port that speaks plain TCP: unexpected eof"),
    ],
)
def test_a_server_that_sends_an_alert_is_not_called_plain(reason, text):
    assert tls_failure(failed(reason)).startswith(text)
