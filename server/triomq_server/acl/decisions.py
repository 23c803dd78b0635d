"""Decides whether a request may be served (docs/protocol/remoting.md §11.2). Upstream: `PlainPermissionManager.validate`."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from triomq_protocol.acl import ACCESS_KEY, SIGNATURE, signature_of, values_to_sign
from triomq_protocol.errors import BodyError, HeaderError
from triomq_protocol.names import TRACE_TOPIC
from triomq_protocol.requests import UNIQUE_KEY_QUERY
from triomq_protocol.wire.command import Command
from triomq_server.acl.accounts import AccessRules, Account
from triomq_server.acl.addresses import host_of
from triomq_server.acl.permissions import Need, Permission, needs_admin, needs_of

MOST_REMEMBERED = 65_536
"""Maximum number of remembered decisions, each on an account, a request code, a topic and a group."""

_TRACES = Need(TRACE_TOPIC, Permission.PUB)


def refusal(rules: AccessRules, host: str, command: Command, *, compat_49: bool = False) -> str | None:
    """The reason why a request is refused; None if it is allowed.

    The signature is checked before any other costly step, and compared in constant time.

    Args:
        rules: the accounts and white lists.
        host: the peer's address, without port and brackets.
        command: the request.
        compat_49: leave unchecked what RocketMQ 4.9 does not check, see `permissions`.
    """
    if rules.admits(host):
        return None
    try:
        fields = {name: value for name, value in command.field_pairs() or () if name is not None}
    except HeaderError as error:
        return f"the fields of the request cannot be read: {error}"
    access_key = fields.get(ACCESS_KEY)
    if access_key is None:
        return "No accessKey is configured"
    account = rules.accounts.get(access_key)
    if account is None:
        return f"No acl config for {access_key[:255]}"
    if account.covers(host):
        return None
    if not _signed(fields, command.body, account):
        return f"Check signature failed for accessKey={access_key}"
    return _missing(account, command.code, fields, command.body, compat_49=compat_49)


class RequestAccess:
    """Decides like `refusal` on plain sends and pulls that compiled code has read.

    Requests that it does not allow are left to `refusal`, which gives the reason.

    Args:
        rules: the rules in force now.
        compat_49: as in `refusal`.
    """

    def __init__(self, rules: Callable[[], AccessRules], *, compat_49: bool) -> None:
        self._rules = rules
        self._compat_49 = compat_49
        self._known = rules()
        self._allowed: dict[tuple[str, int, str, str], bool] = {}

    def is_open_to(self, host: str) -> bool:
        """Whether requests from a host, an address without port and brackets, are not checked."""
        return self._rules().admits(host)

    def host_to_check(self, peer: str) -> str | None:
        """The address of a peer, ``ip:port``, for `allows`; None if requests from it are not checked."""
        host = host_of(peer)
        return None if self.is_open_to(host) else host

    def allows(
        self, host: str, access_key: str, given: bytes, signed: bytes, code: int, topic: str, group: str
    ) -> bool:
        """Whether a send may be stored, or a pull answered.

        Args:
            host: the peer's address, without port and brackets.
            access_key: the account.
            given: the signature.
            signed: the string to sign: all fields except the signature, and the body.
            code: the request's code.
            topic: the topic; never a retry topic.
            group: the consumer group of a pull; empty for a send, which needs none.
        """
        rules = self._rules()
        if rules is not self._known:
            self._known = rules
            self._allowed.clear()
        account = rules.accounts.get(access_key)
        if account is None:
            return False
        if account.covers(host):
            return True
        if not hmac.compare_digest(signature_of(signed, account.secret_key), given):
            return False
        key = access_key, code, topic, group
        allowed = self._allowed.get(key)
        if allowed is None:
            if len(self._allowed) >= MOST_REMEMBERED:
                self._allowed.clear()
            # A send's topic has one of two names, depending on its code; a field with the other name is ignored.
            fields = {"topic": topic, "b": topic, "consumerGroup": group}
            allowed = self._allowed[key] = _missing(account, code, fields, b"", compat_49=self._compat_49) is None
        return allowed


def _signed(fields: dict[str, str | None], body: bytes, account: Account) -> bool:
    given = (fields.get(SIGNATURE) or "").encode("utf-8", "surrogatepass")
    # 4.9 brokers leave this field out of the signed string, and 4.9 Java clients sign it: both are accepted.
    without = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    right = hmac.compare_digest(signature_of(values_to_sign(without), account.secret_key, body), given)
    # Queries have no body, so no peer can have the signature of a large body computed twice.
    if not right and not body and UNIQUE_KEY_QUERY in fields:
        right = hmac.compare_digest(signature_of(values_to_sign(fields), account.secret_key), given)
    return right


def _missing(
    account: Account, code: int, fields: Mapping[str, str | None], body: bytes, *, compat_49: bool
) -> str | None:
    """The first missing permission of the account; None if it has all that the request needs."""
    key = account.access_key
    try:
        needs = needs_of(code, fields, body, compat_49=compat_49)
    except BodyError as error:
        return f"the body of the request cannot be read: {error}"
    if _TRACES in needs:
        return None
    if needs_admin(code, compat_49=compat_49) and not account.admin:
        return f"Need admin permission for request code={code}, but accessKey={key} is not"
    for need in needs:
        if not account.allows(need):
            return f"No default permission for {need}, {need.permission.name} is missing for accessKey={key}"
    return None
