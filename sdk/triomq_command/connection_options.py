"""The options with which commands sign requests and use TLS, and their values in the running command.

The commands of the SDK and of the servers have the same ones. The accounts and dialers created from them belong to the
package of the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

T = TypeVar("T", bound=Callable[..., Any])

_TLS: Final = "triomq.tls"
_ACCOUNT: Final = "triomq.account"
_KEYS: Final = ("access_key", "secret_key", "security_token")


class AccountGiven(NamedTuple):
    """The account given to a command: a file, or both keys."""

    file: str | None = None
    access_key: str = ""
    secret_key: str = ""
    security_token: str | None = None


def _keep_tls(ctx: click.Context, param: click.Parameter, value: str | bool | None) -> None:
    # Separate from the command's own arguments, since only `tls_given` needs it.
    if value and param.name is not None:
        ctx.meta.setdefault(_TLS, {})[param.name] = value


def _keep_account(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    # Separate from the command's own arguments, since only `account_given` needs it.
    if value is not None and param.name is not None:
        given = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        ctx.meta.setdefault(_ACCOUNT, {})[param.name] = value, given


def _tls_option(name: str, envvar: str, text: str, **more: Any) -> Callable[[T], T]:
    help_text = f"{text} Environment: {envvar}."
    return click.option(name, envvar=envvar, expose_value=False, callback=_keep_tls, help=help_text, **more)


def _account_option(name: str, **more: Any) -> Callable[[T], T]:
    return click.option(name, expose_value=False, callback=_keep_account, **more)


_ACCOUNT_OPTIONS: Final = (
    _account_option(
        "--credentials-file", metavar="FILE",
        help="Sign requests by the account in FILE, like RocketMQ's tools.yml: the lines accessKey: ... and secretKey: ....",
    ),
    _account_option(
        "--access-key", envvar="ROCKETMQ_ACCESS_KEY",
        help="Sign requests by this account. Environment: ROCKETMQ_ACCESS_KEY.",
    ),
    _account_option(
        "--secret-key", envvar="ROCKETMQ_SECRET_KEY",
        help="Its secret. Everybody on this machine can see arguments: better use the environment's ROCKETMQ_SECRET_KEY or "
        "--credentials-file.",
    ),
    _account_option(
        "--security-token", envvar="ROCKETMQ_SECURITY_TOKEN",
        help="Token of a temporary account. Environment: ROCKETMQ_SECURITY_TOKEN.",
    ),
)  # fmt: skip

_TLS_OPTIONS: Final = (
    _tls_option(
        "--tls", "ROCKETMQ_TLS", "Use TLS, and verify the servers. Each of the following does so, too.", is_flag=True
    ),
    _tls_option(
        "--tls-ca", "ROCKETMQ_TLS_CA", "PEM file: the authorities to trust, instead of the system's.", metavar="FILE"
    ),
    _tls_option(
        "--tls-cert", "ROCKETMQ_TLS_CERT", "PEM file: a certificate for servers that ask for one.", metavar="FILE"
    ),
    _tls_option("--tls-key", "ROCKETMQ_TLS_KEY", "PEM file: its private key, if it is in another file.", metavar="FILE"),
    _tls_option(
        "--tls-key-password", "ROCKETMQ_TLS_KEY_PASSWORD",
        "The key's password. Everybody on this machine can see arguments: better use the environment.", metavar="TEXT",
    ),
    _tls_option(
        "--tls-any-host-name", "ROCKETMQ_TLS_ANY_HOST_NAME",
        "Verify who signed a server's certificate, but not its names.", is_flag=True,
    ),
    _tls_option("--tls-insecure", "ROCKETMQ_TLS_INSECURE", "Encrypt, but verify no server.", is_flag=True),
)  # fmt: skip


def with_connection_options(command: T) -> T:
    """Add the options of every command that connects to servers: the account, and TLS."""
    for option in reversed((*_ACCOUNT_OPTIONS, *_TLS_OPTIONS)):
        command = option(command)
    return command


def tls_given() -> Mapping[str, Any]:
    """The TLS options given to the running command, such as ``tls_ca``; empty: plain TCP."""
    given: Mapping[str, Any] = click.get_current_context().meta.get(_TLS, {})
    return given


def dialer_arguments_given() -> dict[str, Any] | None:
    """The arguments of ``triomq.plugins.tls_dialer`` for the TLS options of the running command; None: plain TCP."""
    given = tls_given()
    if not given:
        return None
    return {
        "ca": given.get("tls_ca"),
        "certificate": given.get("tls_cert"),
        "key": given.get("tls_key"),
        "key_password": given.get("tls_key_password"),
        "check_host_name": not given.get("tls_any_host_name", False),
        "insecure": given.get("tls_insecure", False),
    }


def _connection_parameters() -> list[click.Parameter]:
    parameters = click.get_current_context().command.params
    return [each for each in parameters if each.callback in (_keep_tls, _keep_account)]


def connection_arguments_given() -> list[str]:
    """The options of this module among the running command's arguments; not those in the environment."""
    source_of = click.get_current_context().get_parameter_source
    return [
        each.opts[0] for each in _connection_parameters() if source_of(each.name or "") is ParameterSource.COMMANDLINE
    ]


def connection_variables() -> dict[str, str | None]:
    """The environment variables of this module's options, with the values given to the running command, or None.

    A process with these variables connects as the running command does, except for ``--credentials-file``, which has no
    variable: its account is not among them, and neither are keys that it replaces.
    """
    meta = click.get_current_context().meta
    account: Mapping[str, tuple[str, bool]] = meta.get(_ACCOUNT, {})
    values: dict[str, str | bool] = dict(tls_given())
    if "credentials_file" not in account:
        values |= {name: value for name, (value, _given) in account.items()}
    found: dict[str, str | None] = {}
    for each in _connection_parameters():
        if isinstance(each.envvar, str):
            value = values.get(each.name or "")
            found[each.envvar] = value if value is None or isinstance(value, str) else str(value).lower()
    return found


def account_given() -> AccountGiven | None:
    """The account given to the running command; a file takes precedence over the environment.

    Raises:
        click.UsageError: a key is missing, or keys and a file are given as arguments.
    """
    found: Mapping[str, tuple[str, bool]] = click.get_current_context().meta.get(_ACCOUNT, {})
    file = found.get("credentials_file")
    if file is not None:
        if any(found[name][1] for name in _KEYS if name in found):
            raise click.UsageError("give either --credentials-file or keys, not both")
        return AccountGiven(file[0])
    access_key, secret_key, token = (found.get(name, ("", False))[0] for name in _KEYS)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = "--secret-key (ROCKETMQ_SECRET_KEY)" if access_key else "--access-key (ROCKETMQ_ACCESS_KEY)"
        raise click.UsageError(f"{missing} is missing: an account has both keys")
    return AccountGiven(None, access_key, secret_key, token or None)
