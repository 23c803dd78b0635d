"""Signs our own requests to brokers with access control, with the account in RocketMQ's file `tools.yml`.

Upstream: `AclUtils.getAclRPCHook`, `AclClientRPCHook` (docs/protocol/remoting.md §11.1).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from triomq_protocol.acl import sign
from triomq_protocol.wire.command import Command
from triomq_server.acl.accounts import MOST_BYTES, AclError, parse
from triomq_server.plain_files import read_plain
from triomq_server.wire import Asking, OpenLink


@attrs.frozen
class ToolAccount:
    """An account that signs requests; its text form shows only the access key."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)


def read_tool_account(path: str) -> ToolAccount:
    """Read the account from a file with `accessKey` and `secretKey`. Raises AclError, without any value of the file."""
    try:
        content = parse(path, read_plain(path, MOST_BYTES + 1))
    except OSError as error:
        raise AclError(f"{path} cannot be read: {error.strerror}") from None
    keys = []
    for name in ("accessKey", "secretKey"):
        value = content.get(name)
        # Java's reader converts a number to text; true and false are a mistake.
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise AclError(f"{path}: {name} is missing, or neither text nor a whole number")
        keys.append(str(value))
    return ToolAccount(*keys)


def signed_command(command: Command, account: ToolAccount) -> Command:
    """The same command with signed ext fields."""
    command.extra = sign(
        {str(name): value for name, value in command.field_pairs() or ()},
        command.body,
        access_key=account.access_key,
        secret_key=account.secret_key,
        security_token=account.security_token,
    )
    return command


class _SignedLink:
    def __init__(self, link: Asking, account: ToolAccount) -> None:
        self._link = link
        self._account = account

    @property
    def closed(self) -> bool:
        """Whether the link can no longer send or receive."""
        return self._link.closed

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Sign and send a request, and wait for the answer."""
        return await self._link.request(signed_command(command, self._account), timeout_s)


def signing(open_link: OpenLink, account: ToolAccount) -> OpenLink:
    """Wrap `open_link` so that its links sign their requests."""

    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Asking]:
        async with open_link(address) as link:
            yield _SignedLink(link, account)

    return opened
