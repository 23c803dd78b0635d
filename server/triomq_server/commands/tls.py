"""The options by which `triomq admin` speaks TLS, and how it then opens links."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import click

from triomq_server.config import ConfigError, TlsConfig
from triomq_server.wire import Link, dial_tcp, open_link, tls_dial
from triomq_server.wire.certificates import client_context

T = TypeVar("T", bound=Callable[..., Any])

_GIVEN = "triomq.tls"


def _kept(ctx: click.Context, param: click.Parameter, value: str | bool | None) -> None:
    # Beside the command's own arguments, since only `opener_given` needs it.
    if value and param.name is not None:
        ctx.meta.setdefault(_GIVEN, {})[param.name] = value


def _option(name: str, envvar: str, text: str, **more: Any) -> Callable[[T], T]:
    help_text = f"{text} Environment: {envvar}."
    return click.option(name, envvar=envvar, expose_value=False, callback=_kept, help=help_text, **more)


TLS_OPTIONS = (
    _option(
        "--tls", "ROCKETMQ_TLS", "Speak TLS, and verify the servers. Each of the following does so, too.", is_flag=True
    ),
    _option(
        "--tls-ca", "ROCKETMQ_TLS_CA", "PEM file: the authorities to trust, instead of the system's.", metavar="FILE"
    ),
    _option("--tls-cert", "ROCKETMQ_TLS_CERT", "PEM file: a certificate for servers that ask for one.", metavar="FILE"),
    _option("--tls-key", "ROCKETMQ_TLS_KEY", "PEM file: its private key, if it is in another file.", metavar="FILE"),
    _option(
        "--tls-key-password", "ROCKETMQ_TLS_KEY_PASSWORD",
        "The key's password. Everybody on this machine can see arguments: better use the environment.", metavar="TEXT",
    ),
    _option(
        "--tls-any-host-name", "ROCKETMQ_TLS_ANY_HOST_NAME",
        "Verify who signed a server's certificate, but not its names.", is_flag=True,
    ),
    _option("--tls-insecure", "ROCKETMQ_TLS_INSECURE", "Encrypt, but believe every server.", is_flag=True),
)  # fmt: skip

_OPTION_OF = {
    "tls.client.trustCertPath": "--tls-ca",
    "tls.client.certPath": "--tls-cert",
    "tls.client.keyPath": "--tls-key",
    "tls.client.keyPassword": "--tls-key-password",
}


def with_tls_options(command: T) -> T:
    """The options of every command that connects to servers."""
    for option in reversed(TLS_OPTIONS):
        command = option(command)
    return command


def opener_given() -> Callable[[str], AbstractAsyncContextManager[Link]]:
    """What opens the links of the running command.

    Raises:
        click.UsageError: a file cannot be used, or options contradict each other.
    """
    given: dict[str, Any] = click.get_current_context().meta.get(_GIVEN, {})
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
