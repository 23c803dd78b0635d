"""The options by which `triomq admin` signs requests, and how it then opens links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from triomq_server.acl.accounts import AclError
from triomq_server.acl.signing import ToolAccount, read_tool_account, signing
from triomq_server.commands.tls import opener_given
from triomq_server.wire import OpenLink

T = TypeVar("T", bound=Callable[..., Any])

_ACCOUNT = "triomq.account"


def _kept(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    # Beside the command's own arguments, since only `signed_opener_given` needs it.
    if value is not None and param.name is not None:
        given = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        ctx.meta.setdefault(_ACCOUNT, {})[param.name] = value, given


ACCOUNT_OPTIONS = (
    click.option(
        "--credentials-file", metavar="FILE", expose_value=False, callback=_kept,
        help="Sign requests by the account in FILE, like RocketMQ's tools.yml: accessKey: ... and secretKey: ....",
    ),
    click.option(
        "--access-key", envvar="ROCKETMQ_ACCESS_KEY", expose_value=False, callback=_kept,
        help="Sign requests by this account. Environment: ROCKETMQ_ACCESS_KEY.",
    ),
    click.option(
        "--secret-key", envvar="ROCKETMQ_SECRET_KEY", expose_value=False, callback=_kept,
        help="Its secret. Everybody on this machine can see arguments: better use the environment's ROCKETMQ_SECRET_KEY or "
        "--credentials-file.",
    ),
    click.option(
        "--security-token", envvar="ROCKETMQ_SECURITY_TOKEN", expose_value=False, callback=_kept,
        help="Token of a temporary account. Environment: ROCKETMQ_SECURITY_TOKEN.",
    ),
)  # fmt: skip


def with_account_options(command: T) -> T:
    """The options of every command whose requests brokers may refuse."""
    for option in reversed(ACCOUNT_OPTIONS):
        command = option(command)
    return command


def _account() -> ToolAccount | None:
    """The account that the running command was given; a file counts before the environment."""
    found: dict[str, tuple[str, bool]] = click.get_current_context().meta.get(_ACCOUNT, {})
    file = found.pop("credentials_file", None)
    if file is not None:
        if any(given for _, given in found.values()):
            raise click.UsageError("give either --credentials-file or keys, not both")
        try:
            return read_tool_account(file[0])
        except AclError as error:
            raise click.UsageError(str(error)) from None
    names = ("access_key", "secret_key", "security_token")
    access_key, secret_key, token = (found.get(name, ("", False))[0] for name in names)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = "--secret-key (ROCKETMQ_SECRET_KEY)" if access_key else "--access-key (ROCKETMQ_ACCESS_KEY)"
        raise click.UsageError(f"{missing} is missing: an account has both keys")
    return ToolAccount(access_key, secret_key, token or None)


def signed_opener_given() -> OpenLink:
    """What opens the links of the running command: by its TLS options, and signing requests by its account, if it has one.

    Raises:
        click.UsageError: a file cannot be used, or options contradict each other.
    """
    account = _account()
    opener = opener_given()
    return opener if account is None else signing(opener, account)
