"""The options by which commands speak TLS, and the dialer that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from triomq.plugins import Dialer, tls_dialer

T = TypeVar("T", bound=Callable[..., Any])

_GIVEN = "triomq.tls"


def _kept(ctx: click.Context, param: click.Parameter, value: str | bool | None) -> None:
    # Beside the command's own arguments, since only `dialer_given` needs it.
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


def dialer_given() -> Dialer | None:
    """What opens the connections of the running command; None: plain TCP.

    Raises:
        InvalidCall: a file cannot be used, or options contradict each other.
    """
    given: dict[str, Any] = click.get_current_context().meta.get(_GIVEN, {})
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
