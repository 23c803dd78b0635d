"""Opens the links of `triomq admin`, and signs its requests with the given account."""

from __future__ import annotations

import click

from triomq_command.connection_options import account_given
from triomq_server.acl.accounts import AclError
from triomq_server.acl.signing import ToolAccount, read_tool_account, signing
from triomq_server.commands.tls import opener_given
from triomq_server.wire import OpenLink


def _account() -> ToolAccount | None:
    given = account_given()
    if given is None:
        return None
    if given.file is None:
        return ToolAccount(given.access_key, given.secret_key, given.security_token)
    try:
        return read_tool_account(given.file)
    except AclError as error:
        raise click.UsageError(str(error)) from None


def signed_opener_given() -> OpenLink:
    """The function that opens links of the running command: with its TLS options, and signed by its account, if any.

    Raises:
        click.UsageError: a file cannot be used, or options contradict each other.
    """
    account = _account()
    opener = opener_given()
    return opener if account is None else signing(opener, account)
