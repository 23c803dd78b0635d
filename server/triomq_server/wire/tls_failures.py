"""Explains a failed TLS handshake and its remedy in one line, for servers' logs and errors of the links they dial."""

from __future__ import annotations

import ssl
from typing import Final

_CERT_HAS_EXPIRED: Final = 10
_CERT_NOT_YET_VALID: Final = 9
_UNKNOWN_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})
"""Numbers of OpenSSL's `X509_V_ERR_*`."""

_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNEXPECTED_MESSAGE",
    "BAD_RECORD_TYPE",
)
_OWN_REFUSED: Final = ("ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE", "ALERT_UNKNOWN_CA", "ALERT_ACCESS_DENIED")
_VERSIONS: Final = ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_SHARED_CIPHER", "PROTOCOL_VERSION", "NO_PROTOCOLS")


def accepting_failure(error: BaseException) -> str:
    """Why a client's handshake with a server failed, as the server sees it.

    Args:
        error: of `ssl`, or what ended the connection.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        authority = ": its authority is not in tls.server.trustCertPath" if _unknown(error) else ""
        return f"the client's certificate is refused ({error.verify_message}){authority}"
    reason = getattr(error, "reason", None) or ""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client shows no certificate, and tls.server.need.client.auth=require asks for one"
    if "ALERT_UNKNOWN_CA" in reason or "ALERT_BAD_CERTIFICATE" in reason or "ALERT_CERTIFICATE" in reason:
        return (
            f"the client refuses this server's certificate ({_words(reason)}): give it the authority of that, and check "
            "the certificate's names and its date"
        )
    if any(word in reason for word in _VERSIONS):
        return f"the client offers no version or cipher of TLS 1.2 or 1.3 that this server has ({_words(reason)})"
    if any(word in reason for word in _NO_TLS) or reason.startswith("BAD_") or "LENGTH" in reason:
        return f"its bytes are not a TLS handshake ({_words(reason)})"
    return _words(reason) or str(error) or type(error).__name__


def dialling_failure(error: BaseException) -> str:
    """Why the handshake of a link that a server dials failed, and what to do.

    Args:
        error: of `ssl`, or what ended the connection.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        message = error.verify_message
        if error.verify_code in _OTHER_NAME:
            return f"TLS: {message}: dial it by a name in its certificate, or set tls.client.checkHostName=false (--tls-any-host-name)"
        if error.verify_code == _CERT_HAS_EXPIRED:
            return f"TLS: {message}: renew the certificate of that server"
        if error.verify_code == _CERT_NOT_YET_VALID:
            return f"TLS: {message}: check the clocks of both machines"
        if _unknown(error):
            return f"TLS: {message}: tls.client.trustCertPath (--tls-ca) must have the authority of that server's certificate"
        return f"TLS: {message}: that server, or its authority, needs another certificate"
    reason = getattr(error, "reason", None) or ""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return (
            f"TLS: {_words(reason)}: that server may ask for a certificate of this one, tls.client.certPath and "
            "tls.client.keyPath (--tls-cert, --tls-key)"
        )
    if any(alert in reason for alert in _OWN_REFUSED):
        return (
            f"TLS: {_words(reason)}: that server refuses the certificate of this one, tls.client.certPath (--tls-cert): renew "
            "it if its time is over; its authority must be in that server's tls.server.trustCertPath"
        )
    if any(word in reason for word in _NO_TLS) or not reason:
        return (
            "no TLS handshake, as with a port that speaks plain TCP (useTLS, --tls): "
            f"{_words(reason) or str(error) or 'the connection ended'}"
        )
    return f"TLS: {_words(reason)}"


def _unknown(error: ssl.SSLCertVerificationError) -> bool:
    return error.verify_code in _UNKNOWN_AUTHORITY


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
