"""Changes of access control files by requests 50, 51 and 53: from a file's parsed content to its new one.

Upstream: `PlainPermissionManager.updateAccessConfig`, `deleteAccessConfig`, `updateGlobalWhiteAddrsConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triomq_protocol.requests import CreateAccessConfigRequest, DataVersion
from triomq_server.acl.accounts import KEY_MORE_THAN, AclError, account_of, entries
from triomq_server.acl.permissions import names_permission

Content = dict[str, Any]


def entry_of(request: CreateAccessConfigRequest) -> Content:
    """The account in request 50, without the fields that it leaves out. Raises AclError for values no file may have."""
    key, secret = request.access_key or "", request.secret_key or ""
    if len(key) <= KEY_MORE_THAN or len(secret) <= KEY_MORE_THAN:
        raise AclError(
            f"The accessKey={request.access_key} and its secretKey cannot be null and length should longer than "
            f"{KEY_MORE_THAN}"
        )
    given: Content = {
        "accessKey": key,
        "secretKey": secret,
        "whiteRemoteAddress": request.white_remote_address,
        "admin": request.admin,
        "defaultTopicPerm": request.default_topic_perm or None,
        "defaultGroupPerm": request.default_group_perm or None,
        "topicPerms": _items(request.topic_perms),
        "groupPerms": _items(request.group_perms),
    }
    entry = {name: value for name, value in given.items() if value is not None}
    for name, value in entry.items():
        if not isinstance(value, bool):
            _check_printable(name, [value] if isinstance(value, str) else value)
    account_of("the account", entry)
    for item in (*entry.get("topicPerms", ()), *entry.get("groupPerms", ())):
        if not names_permission(item.rpartition("=")[2]):
            raise AclError(f"Parse resource permission error for {item}: it is not PUB, SUB, PUB|SUB or DENY")
    return entry


def _check_printable(name: str, texts: Iterable[str]) -> None:
    """Refuse line breaks and control characters, because YAML may read them back changed. Raises AclError, without the
    text, which may be a secret."""
    if not all(text.isprintable() for text in texts):
        raise AclError(f"{name} has a line break or another character that cannot be printed")


def _items(text: str | None) -> list[str] | None:
    return [item for item in text.split(",") if item] if text else None


def with_account(path: str, content: Mapping[str, Any], entry: Content) -> Content:
    """A file's content with an account added or changed: it keeps values that the entry leaves out, and moves last."""
    accounts = entries(path, content)
    old = [each for each in accounts if str(each.get("accessKey")) == entry["accessKey"]]
    others = [each for each in accounts if each not in old]
    return {**content, "accounts": [*others, {**(old[0] if old else {}), **entry}]}


def without_account(path: str, content: Mapping[str, Any], access_key: str) -> Content:
    """A file's content without an account."""
    accounts = [each for each in entries(path, content) if str(each.get("accessKey")) != access_key]
    return {**content, "accounts": accounts}


def with_white(content: Mapping[str, Any], addresses: Sequence[str]) -> Content:
    """A file's content with another global white list. Raises AclError."""
    _check_printable("globalWhiteRemoteAddresses", addresses)
    return {**content, "globalWhiteRemoteAddresses": list(addresses)}


def version_of(content: Mapping[str, Any]) -> DataVersion:
    """The number and time of a file's changes by requests; a version that cannot be read counts as none."""
    found = content.get("dataVersion")
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    counter, timestamp = first.get("counter"), first.get("timestamp")
    return DataVersion(
        counter=counter if isinstance(counter, int) else 0,
        timestamp=timestamp if isinstance(timestamp, int) else 0,
    )


def dumped(content: Mapping[str, Any], now_ms: int) -> bytes:
    """The text of a file with the next version."""
    from triomq_server.acl.plain_yaml import dump

    version = {"counter": version_of(content).counter + 1, "timestamp": now_ms}
    return dump({**content, "dataVersion": [version]})
