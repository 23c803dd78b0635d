"""The accounts of access control files: `plain_acl.yml` and those below `acl/` (docs/protocol/remoting.md §11.2).

A file with any content that cannot be understood is an error as a whole: ignoring a permission would be as wrong as
granting one too many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from triomq_protocol.names import RETRY_PREFIX
from triomq_server.acl.addresses import Matcher, PatternError, matcher
from triomq_server.acl.permissions import Need, Permission, names_permission, permission_of
from triomq_server.config import ConfigError

MOST_BYTES = 1 << 20
"""Maximum size of one file."""

KEY_MORE_THAN = 6
"""Access keys and secret keys must have more characters than this."""

MOST_HOSTS = 4096
"""Maximum number of addresses of which is remembered whether white lists admit them."""


class AclError(ConfigError):
    """An access control file, or a change of it, cannot be used; the text never shows a secret."""


@attrs.frozen
class Account:
    """One account.

    Attributes:
        access_key: the account's name.
        secret_key: the key of its signatures; not in the repr.
        covers: whether it may send from an address without a signature.
        admin: whether it may send administrators' requests.
        permissions: the account's permissions by topic, or by a group's retry topic.
        topic_default, group_default: the permissions for all other topics and groups.
    """

    access_key: str
    secret_key: str = attrs.field(repr=False)
    covers: Matcher = attrs.field(repr=False, eq=False)
    admin: bool
    permissions: Mapping[str, Permission]
    topic_default: Permission
    group_default: Permission

    def allows(self, need: Need) -> bool:
        """Whether the account has a permission. An administrator without permissions of its own has all of them."""
        if self.admin and not self.permissions:
            return True
        default = self.group_default if need.is_group else self.topic_default
        return bool(self.permissions.get(need.resource, default) & need.permission)


@attrs.frozen
class AccessRules:
    """The accounts and white addresses of all files.

    Attributes:
        accounts: by access key.
        white: addresses from which requests are not checked.
        repeated: access keys that occur again, in a later file or later in the same file; that entry does not count.
    """

    accounts: Mapping[str, Account] = attrs.Factory(dict)
    white: Sequence[Matcher] = ()
    repeated: Sequence[str] = ()
    _admitted: dict[str, bool] = attrs.field(factory=dict, init=False, repr=False, eq=False)

    def admits(self, host: str) -> bool:
        """Whether requests from an address, without port and brackets, are not checked.

        It is asked for every request, and a white list may have hundreds of patterns: answers are remembered.
        """
        admitted = self._admitted.get(host)
        if admitted is None:
            if len(self._admitted) >= MOST_HOSTS:
                self._admitted.clear()
            admitted = self._admitted[host] = any(covers(host) for covers in self.white)
        return admitted

    @property
    def admits_nobody(self) -> bool:
        """Whether the rules have neither an account nor a white address."""
        return not self.accounts and not self.white


def parse(path: str, data: bytes) -> dict[str, Any]:
    """Parse a file into its top-level map; empty for an empty file. Raises AclError."""
    if len(data) > MOST_BYTES:
        raise AclError(f"{path} has {len(data)} bytes; at most {MOST_BYTES} are possible")
    from triomq_server.acl.plain_yaml import YamlError, load

    try:
        content = load(data)
    except YamlError as error:
        raise AclError(f"{path}{error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise AclError(f"{path} is not a map of accounts and globalWhiteRemoteAddresses")
    return content


def rules_of(files: Sequence[tuple[str, Mapping[str, Any]]]) -> AccessRules:
    """Build rules from parsed files; the first occurrence of an access key counts. Raises AclError."""
    accounts: dict[str, Account] = {}
    white: list[Matcher] = []
    repeated: list[str] = []
    for path, content in files:
        where = f"{path}: globalWhiteRemoteAddresses"
        white += [_matcher(where, pattern) for pattern in white_addresses(path, content)]
        for number, entry in enumerate(entries(path, content), 1):
            account = account_of(f"{path}: account {number}", entry)
            if account.access_key in accounts:
                repeated.append(account.access_key)
                continue
            accounts[account.access_key] = account
    return AccessRules(accounts, tuple(white), tuple(repeated))


def white_addresses(path: str, content: Mapping[str, Any]) -> list[str]:
    """The global white list of a file, as strings. Raises AclError."""
    return _texts(path, content, "globalWhiteRemoteAddresses")


def entries(path: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The accounts of a file, as maps. Raises AclError."""
    found = content.get("accounts")
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise AclError(f"{path}: accounts is not a list of maps")
    return found


def account_of(where: str, entry: Mapping[str, Any]) -> Account:
    """Build one account from its map. Raises AclError."""
    access_key, secret_key = _text(where, entry, "accessKey"), _text(where, entry, "secretKey")
    for name, value in (("accessKey", access_key), ("secretKey", secret_key)):
        if value is None or len(value) <= KEY_MORE_THAN:
            raise AclError(f"{where}: {name} needs more than {KEY_MORE_THAN} characters")
    assert access_key is not None
    assert secret_key is not None
    where = f"{where} ({access_key})"
    admin = entry.get("admin")
    if not isinstance(admin, bool | None):  # 1 equals true
        raise AclError(f"{where}: admin is neither true nor false")
    permissions = {RETRY_PREFIX + name: value for name, value in permission_list(where, entry, "groupPerms")}
    permissions.update(permission_list(where, entry, "topicPerms"))
    return Account(
        access_key=access_key,
        secret_key=secret_key,
        covers=_matcher(f"{where}: whiteRemoteAddress", _text(where, entry, "whiteRemoteAddress")),
        admin=admin is True,
        permissions=permissions,
        topic_default=_default(where, entry, "defaultTopicPerm"),
        group_default=_default(where, entry, "defaultGroupPerm"),
    )


def permission_list(where: str, entry: Mapping[str, Any], key: str) -> list[tuple[str, Permission]]:
    """The `name=PERMISSION` items of a list; an unknown permission denies, as in RocketMQ. Raises AclError."""
    found = []
    for item in _texts(where, entry, key):
        parts = [part.strip() for part in item.split("=") if part]
        if len(parts) != 2:
            raise AclError(f"{where}: {key} has {item[:100]!r}, which is not name=PERMISSION")
        found.append((parts[0], permission_of(parts[1])))
    return found


def _default(where: str, entry: Mapping[str, Any], key: str) -> Permission:
    text = _text(where, entry, key)
    if text and not names_permission(text):
        raise AclError(f"{where}: {key} is {text[:100]!r}, not PUB, SUB, PUB|SUB or DENY")
    return permission_of(text)


def _matcher(where: str, pattern: str | None) -> Matcher:
    try:
        return matcher(pattern)
    except PatternError as error:
        raise AclError(f"{where}: {error}") from None


def _text(where: str, entry: Mapping[str, Any], key: str) -> str | None:
    """A value that is a text or a whole number, as text; None if it is missing or null."""
    value = entry.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise AclError(f"{where}: {key} is not text; put it in quotes")
    return value


def _texts(where: str, content: Mapping[str, Any], key: str) -> list[str]:
    found = content.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise AclError(f"{where}: {key} is not a list of texts")
    return found
