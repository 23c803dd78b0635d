"""The dialer for the TLS options of a command."""

from __future__ import annotations

from triomq.plugins import Dialer, tls_dialer
from triomq_command.connection_options import dialer_arguments_given


def dialer_given() -> Dialer | None:
    """The dialer that opens the connections of the running command; None: plain TCP.

    Raises:
        InvalidCall: a file cannot be used, or options contradict each other.
    """
    given = dialer_arguments_given()
    return None if given is None else tls_dialer(**given)
