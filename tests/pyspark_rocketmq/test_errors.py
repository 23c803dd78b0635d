"""The parts of an error that reach Spark."""

from __future__ import annotations

import logging
import ssl
import traceback
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark_rocketmq.errors import DataLoss, ShortStack, SourceError, WriteFailed, in_options
from triomq import MQError, plugins
from triomq._cluster.name_servers import CLOSES_SILENTLY
from triomq._transport.dialing import tls_failure
from triomq._transport.link import other_protocol
from triomq.errors import (
    ACCESS_ADVICE,
    USER_ADVICE,
    AccessRefused,
    Attempt,
    BrokerNotFound,
    InvalidCall,
    LinkLost,
    NoNameServer,
    PermissionDenied,
    RequestTimeout,
)


def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


@pytest.mark.parametrize("error", [DataLoss("offsets are gone"), WriteFailed("not acknowledged"), MQError("pull")])
def test_an_error_with_a_reason_is_logged_without_the_stack(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(type(error)) as caught, ShortStack():
        fail(error, RequestTimeout("asked"))
    assert caught.value is error
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" not in shown
    assert "asked" not in shown
    assert str(error) in shown.splitlines()[-1]
    assert "in fail" in caplog.text, "the logger has all of it"
    assert "asked" in caplog.text


def test_an_unexpected_error_keeps_its_stack() -> None:
    with pytest.raises(KeyError) as caught, ShortStack():
        fail(KeyError("a defect"), SourceError("cause"))
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" in shown
    assert "cause" in shown


def test_a_block_that_succeeds() -> None:
    with ShortStack():
        pass


TLS_SPOKEN = other_protocol(b"\x15\x03\x01")


def tls_text(*, verify_code: int | None = None, reason: str = "") -> str:
    """The SDK's text for a failed handshake."""
    if verify_code is None:
        error = ssl.SSLError()
        error.reason = reason
        return tls_failure(error)
    refused = ssl.SSLCertVerificationError()
    refused.verify_code, refused.verify_message = verify_code, "it is not trusted"
    return tls_failure(refused)


UNTRUSTED = tls_text(verify_code=20)
WRONG_NAME = tls_text(verify_code=64)
NO_CLIENT_CERTIFICATE = tls_text(reason="TLSV13_ALERT_CERTIFICATE_REQUIRED")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            AccessRefused("pull", remark="AclException: No accessKey is configured"),
            "the request was not signed: give the options accessKey and secretKey, or credentialsFile",
        ),
        (
            PermissionDenied("pull", remark="username cannot be null"),
            "the request was not signed: give the options accessKey and secretKey, or credentialsFile",
        ),
        (AccessRefused("pull"), "and the options accessKey and secretKey, or credentialsFile"),
        (BrokerNotFound("pull"), "the option rocketmq.route_wait_s is how long calls wait for one"),
        (LinkLost(f"pull; {TLS_SPOKEN}"), "the peer speaks TLS: give the option tls=true"),
        (MQError("send", attempts=[Attempt("h:1", LinkLost(f"send; {TLS_SPOKEN}"), 0.1)]), "give the option tls=true"),
        (WriteFailed(f"LinkLost: {TLS_SPOKEN}; 0 rows"), "give the option tls=true; 0 rows"),
        (NoNameServer(UNTRUSTED), "no authority that is trusted here: give that in the option tlsCa ("),
        (NoNameServer(WRONG_NAME), "a name in its certificate, or set the option tlsCheckHostName=false ("),
        (LinkLost(NO_CLIENT_CERTIFICATE), "give the options tlsCertificate and tlsKey, or renew them"),
    ],
)
def test_advice_names_options_of_the_data_source(error: Exception, says: str) -> None:
    with pytest.raises(type(error)) as caught, ShortStack():
        raise error
    assert says in str(caught.value)


def _kinds(kind: type[MQError]) -> list[type[MQError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


def test_no_advice_of_the_sdk_names_arguments_of_its_own() -> None:
    texts = [kind.advice for kind in _kinds(MQError)] + [advice for _, advice in (*ACCESS_ADVICE, *USER_ADVICE)]
    texts += [CLOSES_SILENTLY, TLS_SPOKEN or "", UNTRUSTED, WRONG_NAME, NO_CLIENT_CERTIFICATE]
    shown = [in_options(text) for text in texts]
    assert shown != texts
    assert [text for text in shown if "open_client" in text or "--credentials" in text or "--tls" in text] == []


def test_a_tls_file_that_cannot_be_used_is_named_by_its_option(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(InvalidCall, match=r"^tlsCa='.*missing.pem' cannot be used"), ShortStack():
        plugins.tls_dialer(ca=missing)
    with (
        pytest.raises(InvalidCall, match=r"^tlsCertificate='.*missing.pem'.*need the option tlsKeyPassword"),
        ShortStack(),
    ):
        plugins.tls_dialer(certificate=missing)
