"""The dialer for the TLS options of a command."""

from __future__ import annotations

from triomq.plugins import Dialer, tls_dialer
from triomq_command.connection_options import tls_given


def dialer_given() -> Dialer | None:
    """The dialer that opens the connections of the running command; None: plain TCP.

    Raises:
        InvalidCall: a file cannot be used, or options contradict each other.
    """
    given = tls_given()
    if not given:
        return None
    return tls_dialer(
        ca=given.get("tls_ca"),
        certificate=given.get("tls_cert"),
        key=given.get("tls_key"),
        key_password=given.get("tls_key_password"),
        check_host_name=not given.get("tls_any_host_name", False),
        insecure=given.get("tls_insecure", False),
    )
