"""Opens the links of `triomq admin` with the given TLS options."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import click

from triomq_command.connection_options import tls_given
from triomq_server.config import ConfigError, TlsConfig
from triomq_server.wire import Link, dial_tcp, open_link, tls_dial
from triomq_server.wire.tls.certificates import client_context

_OPTION_OF = {
    "tls.client.trustCertPath": "--tls-ca",
    "tls.client.certPath": "--tls-cert",
    "tls.client.keyPath": "--tls-key",
    "tls.client.keyPassword": "--tls-key-password",
}


def opener_given() -> Callable[[str], AbstractAsyncContextManager[Link]]:
    """The function that opens links of the running command.

    Raises:
        click.UsageError: a file cannot be used, or options contradict each other.
    """
    given = tls_given()
    if not given:
        return open_link
    insecure = given.get("tls_insecure", False)
    certificate = given.get("tls_cert")
    if insecure and (given.get("tls_ca") or given.get("tls_any_host_name")):
        raise click.UsageError("--tls-insecure verifies nothing, so it takes neither --tls-ca nor --tls-any-host-name")
    if not certificate and (given.get("tls_key") or given.get("tls_key_password")):
        raise click.UsageError("a key belongs to a certificate: give --tls-cert, too")
    settings = TlsConfig(
        test_mode_enable="false",
        client_auth_server=not insecure,
        client_check_host_name=not given.get("tls_any_host_name", False),
        client_trust_cert_path=given.get("tls_ca"),
        client_cert_path=certificate,
        client_key_path=given.get("tls_key", certificate),
        client_key_password=given.get("tls_key_password"),
    )
    try:
        context = client_context(settings)
    except ConfigError as error:
        text = str(error)
        for key, option in _OPTION_OF.items():
            text = text.replace(f"{key}=", f"{option} ").replace(key, option)
        raise click.UsageError(text) from None
    return partial(open_link, dial=tls_dial(dial_tcp, lambda: context))
