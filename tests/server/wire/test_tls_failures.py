"""The error for each cause of a failed TLS handshake."""

from __future__ import annotations

import ssl

import pytest

from triomq_server.wire.tls_failures import accepting_failure, dialling_failure


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1006)")
    error.reason = reason
    return error


def refused(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (failed("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "the client shows no certificate"),
        (failed("TLSV1_ALERT_UNKNOWN_CA"), "the client refuses this server's certificate (tlsv1 alert unknown ca)"),
        (failed("SSLV3_ALERT_BAD_CERTIFICATE"), "the client refuses this server's certificate"),
        (failed("SSLV3_ALERT_CERTIFICATE_UNKNOWN"), "the client refuses this server's certificate"),
        (failed("UNSUPPORTED_PROTOCOL"), "no version or cipher"),
        (failed("NO_SHARED_CIPHER"), "no version or cipher"),
        (failed("HTTP_REQUEST"), "its bytes are not a TLS handshake (http request)"),
        (failed("BAD_KEY_SHARE"), "its bytes are not a TLS handshake"),
        (refused(20, "unable to get local issuer certificate"), "its authority is not in tls.server.trustCertPath"),
        (refused(10, "certificate has expired"), "the client's certificate is refused (certificate has expired)"),
        (OSError("gone"), "gone"),
    ],
)
def test_a_clients_handshake(error: Exception, text: str) -> None:
    assert text in accepting_failure(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (refused(62, "Hostname mismatch"), "TLS: Hostname mismatch: dial it by a name in its certificate"),
        (refused(64, "IP address mismatch"), "tls.client.checkHostName=false"),
        (refused(10, "certificate has expired"), "renew the certificate of that server"),
        (refused(9, "certificate is not yet valid"), "check the clocks"),
        (refused(19, "self-signed certificate in certificate chain"), "tls.client.trustCertPath"),
        (refused(7, "certificate signature failure"), "tls.client.trustCertPath"),
        (refused(26, "unsuitable certificate purpose"), "that server, or its authority, needs another certificate"),
        (refused(66, "EE certificate key too weak"), "that server, or its authority, needs another certificate"),
        (failed("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "tls.client.certPath"),
        (failed("SSLV3_ALERT_HANDSHAKE_FAILURE"), "may ask for a certificate"),
        (failed("SSLV3_ALERT_CERTIFICATE_EXPIRED"), "refuses the certificate of this one, tls.client.certPath"),
        (failed("SSLV3_ALERT_BAD_CERTIFICATE"), "refuses the certificate of this one"),
        (failed("TLSV1_ALERT_UNKNOWN_CA"), "authority must be in that server's tls.server.trustCertPath"),
        (failed("WRONG_VERSION_NUMBER"), "as with a port that speaks plain TCP"),
        (OSError(""), "as with a port that speaks plain TCP"),
        (failed("TLSV1_ALERT_INTERNAL_ERROR"), "TLS: tlsv1 alert internal error"),
    ],
)
def test_a_link_that_is_dialled(error: Exception, text: str) -> None:
    assert text in dialling_failure(error)
