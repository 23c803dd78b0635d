"""Accounts of brokers with access control, and their global white lists (docs/protocol/broker-api.md §16).

Each broker keeps its own files: a change goes to all of them, slaves too. Upstream: the ACL calls of
``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import msgspec
import trio

from triomq._admin.long_bodies import body_of
from triomq._admin.servers import ServerAdmin
from triomq._admin.topics import ADMIN_TIMEOUT_S, Admin
from triomq._arguments.kinds import check_kind, check_mapping, check_text, check_texts
from triomq._constructors import NoPublicConstructor
from triomq._error_text import shown
from triomq._half_done import with_places
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._tasks.side_by_side import side_by_side
from triomq._transport.answers import checked
from triomq._transport.links import Links
from triomq.errors import BrokerNotFound, InvalidCall, MQError, ProtocolViolation, RequestTimeout
from triomq_protocol.codes import RequestCode
from triomq_protocol.errors import BodyError, HeaderError
from triomq_protocol.requests import (
    ClusterAclConfig,
    CreateAccessConfigRequest,
    DataVersion,
    DeleteAccessConfigRequest,
    GetBrokerAclConfigResponse,
    PlainAccessConfig,
    UpdateGlobalWhiteAddrsConfigRequest,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header

KEY_CHARS_MIN: Final = 7
"""Brokers refuse shorter access keys and secrets."""

PATIENCE_S: Final = 0.5
"""A broker that has not answered for this time is asked whether it has access control."""

PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")

ACL_OFF: Final = (
    "no answer in time; a broker without access control (aclEnable=false) never gives one: set aclEnable=true there and "
    "restart it"
)


@attrs.frozen(kw_only=True)
class Account:
    """An account in a broker's access control files; fields that are None are left as they are when it is changed.

    Args:
        access_key: its name, of 7 characters or more.
        secret_key: its secret, of 7 characters or more. Brokers need it for every change.
        admin: whether it may send operators' requests; False also revokes that from an existing account.
        white_address: pattern of addresses whose requests by this account need no signature.
        default_topic_perm: its permission for topics that are not in `topic_perms`: DENY, PUB, SUB or PUB|SUB.
        default_group_perm: the same for consumer groups.
        topic_perms: topic -> permission.
        group_perms: consumer group -> permission.
    """

    access_key: str
    secret_key: str | None = attrs.field(default=None, repr=False)
    admin: bool = False
    white_address: str | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: Mapping[str, str] | None = None
    group_perms: Mapping[str, str] | None = None


@attrs.frozen(kw_only=True)
class AccountList:
    """The accounts and white addresses in a broker's access control files, merged.

    Args:
        accounts: by access key.
        white_addresses: addresses whose requests need no signature at all.
    """

    accounts: Sequence[Account]
    white_addresses: Sequence[str]


@attrs.frozen(kw_only=True)
class AccountFile:
    """The version of one access control file.

    Args:
        broker: the broker's name.
        address: the broker's address.
        path: the file, on the broker's machine.
        changes: how often requests have changed it.
        changed_ms: when a request last changed it, in ms since 1970.
    """

    broker: str
    address: str
    path: str
    changes: int
    changed_ms: int


class AccountAdmin(metaclass=NoPublicConstructor):
    """Accounts of brokers with access control; ``client.accounts``.

    The client needs the credentials of an account with `admin`. Topics and groups are named as brokers know them. A
    broker is given as ``NAME`` (its set's master), ``NAME:ID`` or ``HOST:PORT``; without brokers all registered ones
    are asked, including slaves.
    """

    def __init__(self, admin: Admin, servers: ServerAdmin, links: Links) -> None:
        self._admin = admin
        self._servers = servers
        self._links = links

    async def list(self, broker: str) -> AccountList:
        """The accounts of one broker, with their secrets.

        Raises:
            RequestTimeout: the broker does not answer; it may be without access control.
            AccessRefused: the client's account is not an operator's.
        """
        address = await self._servers.address_of(broker)
        what = f"the accounts of broker {broker}"
        answer = await self._ask(address, Command.request(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG), what)
        config = await body_of(ClusterAclConfig, answer, address, what)
        accounts = sorted((_account_of(each) for each in config.plain_access_configs), key=lambda one: one.access_key)
        return AccountList(accounts=accounts, white_addresses=list(config.global_white_addrs))

    async def put(self, account: Account, *, brokers: Sequence[str] | None = None) -> Sequence[str]:
        """Add an account, or change it if it exists.

        Returns:
            The addresses of the brokers that have it now.

        Raises:
            InvalidCall: a key is too short, or a permission is invalid; nothing was sent.
            MQError: a broker refused or could not be reached; the others have it.
        """
        code, header = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, _header_of(account)
        return await self._at_all(code, header, f"account {account.access_key}", brokers)

    async def delete(self, access_key: str, *, brokers: Sequence[str] | None = None) -> Sequence[str]:
        """Delete an account.

        Returns:
            The addresses of the brokers that had it.

        Raises:
            MQError: a broker has no such account, has refused or could not be reached; the others have deleted it.
        """
        header = DeleteAccessConfigRequest(access_key=_access_key(access_key))
        return await self._at_all(RequestCode.DELETE_ACL_CONFIG, header, f"delete account {access_key}", brokers)

    async def set_white_list(
        self, addresses: Sequence[str], *, brokers: Sequence[str] | None = None, path: str | None = None
    ) -> Sequence[str]:
        """Replace the global white list: addresses whose requests need no signature at all.

        Args:
            addresses: patterns such as ``10.1.2.3``, ``10.1.*.*`` or ``10.1.2.{3,4}``; none for an empty list.
            brokers: the brokers to change; by default all.
            path: the file, on the brokers' machines; by default ``plain_acl.yml``.

        Returns:
            The addresses of the brokers that have it now.

        Raises:
            MQError: a broker refused or could not be reached; the others have it.
        """
        check_texts("addresses", addresses)
        if path is not None:
            check_text("path", path)
        header = UpdateGlobalWhiteAddrsConfigRequest(
            global_white_addrs=",".join(each for address in addresses for each in _without_braces(address)),
            acl_file_full_path=path or "",
        )
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        return await self._at_all(code, header, "the global white list", brokers)

    async def versions(self, *, brokers: Sequence[str] | None = None) -> Sequence[AccountFile]:
        """The versions of the access control files: brokers that differ have missed a change.

        Raises:
            RequestTimeout: a broker does not answer; it may be without access control.
        """
        found: dict[str, list[AccountFile]] = {}

        async def ask(address: str) -> None:
            what = "the versions of accounts"
            answer = await self._ask(address, Command.request(RequestCode.GET_BROKER_CLUSTER_ACL_INFO), what)
            try:
                found[address] = _files_of(answer.header(GetBrokerAclConfigResponse), address)
            except (HeaderError, BodyError, msgspec.DecodeError) as error:
                raise ProtocolViolation(what, address=address, remark=str(error)) from error

        addresses = await self._addresses(brokers)
        await side_by_side(*(partial(ask, address) for address in addresses))
        return [each for address in addresses for each in found[address]]

    async def _addresses(self, brokers: Sequence[str] | None) -> Sequence[str]:
        if brokers is not None:
            check_texts("brokers", brokers)
            return list(dict.fromkeys([await self._servers.address_of(broker) for broker in brokers]))
        sets = await self._admin.broker_sets()
        if not sets:
            raise BrokerNotFound("no broker is registered at the name server")
        return [address for _, addresses in sorted(sets.items()) for address in addresses.values()]

    async def _at_all(
        self, code: RequestCode, header: Header, what: str, brokers: Sequence[str] | None
    ) -> Sequence[str]:
        failures: dict[str, MQError] = {}

        async def ask(address: str) -> None:
            try:
                await self._ask(address, Command.request(code, header), what)
            except MQError as error:
                failures[address] = error

        # One that does not answer must not keep the change from the others.
        addresses = await self._addresses(brokers)
        await side_by_side(*(partial(ask, address) for address in addresses))
        done = [address for address in addresses if address not in failures]
        lacking = [address for address in addresses if address in failures]
        if lacking:
            raise with_places(failures[lacking[0]], done, lacking)
        return done

    async def _ask(self, address: str, request: Command, what: str) -> Command:
        link = await self._links.get(address, patient=False)
        answer: Command | None = None

        async def look() -> None:
            await trio.sleep(PATIENCE_S)
            with suppress(MQError):  # the answer may still come
                if (await self._servers.config(address)).get("aclEnable") == "false":
                    nursery.cancel_scope.cancel()

        async with open_plain_nursery() as nursery:
            nursery.start_soon(look)
            with suppress(RequestTimeout):  # raised below, as for a broker that will not answer
                answer = await link.request(request, ADMIN_TIMEOUT_S)
            nursery.cancel_scope.cancel()
        if answer is None:
            raise RequestTimeout(what, address=address, remark=ACL_OFF)
        return checked(answer, what, address)


def _access_key(access_key: str) -> str:
    check_text("the access key", access_key)
    if not access_key:
        raise InvalidCall("the access key is empty")
    return access_key


def _header_of(account: Account) -> CreateAccessConfigRequest:
    check_kind("the account", account, Account)
    secret = account.secret_key or ""
    for name, key in (("access_key", account.access_key), ("secret_key", secret)):
        check_text(name, key)
        if len(key) < KEY_CHARS_MIN:
            raise InvalidCall(f"{name} has {len(key)} characters; brokers require {KEY_CHARS_MIN} or more")
    for name, perm in (
        ("default_topic_perm", account.default_topic_perm),
        ("default_group_perm", account.default_group_perm),
    ):
        if perm is not None:
            _check_permission(name, perm)
    if account.white_address is not None:
        check_text("white_address", account.white_address)
    return CreateAccessConfigRequest(
        access_key=account.access_key,
        secret_key=secret,
        white_remote_address=account.white_address,
        admin=account.admin,
        default_topic_perm=account.default_topic_perm,
        default_group_perm=account.default_group_perm,
        topic_perms=_joined("topic", account.topic_perms),
        group_perms=_joined("group", account.group_perms),
    )


def _without_braces(address: str) -> Sequence[str]:
    """The addresses of ``10.1.2.{3,4}``, one by one: brokers divide the list at each comma, also in braces."""
    head, brace, tail = address.partition("{")
    if not brace or not tail.endswith("}"):
        return [address]
    return [head + value.strip() for value in tail[:-1].split(",")]


def _joined(kind: str, perms: Mapping[str, str] | None) -> str | None:
    if perms is None:
        return None
    check_mapping(f"{kind}_perms", perms)
    for name, perm in perms.items():
        check_text(f"the name of a {kind}", name)
        if not name or "," in name or "=" in name:
            raise InvalidCall(f"the {kind} {shown(name)} cannot have a permission: it is empty or has a comma or =")
        _check_permission(f"the permission of {kind} {name}", perm)
    return ",".join(f"{name}={perm}" for name, perm in perms.items())


def _check_permission(name: str, perm: str) -> None:
    if perm not in list(PERMISSIONS):
        raise InvalidCall(f"{name} is {shown(perm)}, none of {', '.join(PERMISSIONS)}")


def _account_of(config: PlainAccessConfig) -> Account:
    return Account(
        access_key=config.access_key or "",
        secret_key=config.secret_key,
        admin=config.admin,
        white_address=config.white_remote_address,
        default_topic_perm=config.default_topic_perm,
        default_group_perm=config.default_group_perm,
        topic_perms=_split(config.topic_perms),
        group_perms=_split(config.group_perms),
    )


def _split(items: Sequence[str] | None) -> Mapping[str, str]:
    pairs = (item.partition("=") for item in items or [])
    return {name.strip(): perm.strip() for name, _, perm in pairs}


def _files_of(header: GetBrokerAclConfigResponse, address: str) -> list[AccountFile]:
    return [
        AccountFile(
            broker=header.broker_name or "",
            address=address,
            path=path,
            changes=version.counter,
            changed_ms=version.timestamp,
        )
        for path, version in _versions_in(header).items()
    ]


def _versions_in(header: GetBrokerAclConfigResponse) -> Mapping[str, DataVersion]:
    if not header.all_acl_file_version:
        return {"": DataVersion.decode((header.version or "{}").encode())}
    raw = msgspec.json.decode(header.all_acl_file_version, type=dict[str, msgspec.Raw])
    return {path: DataVersion.decode(bytes(version)) for path, version in raw.items()}
