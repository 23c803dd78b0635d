"""Brokers and name servers: state, settings, clean-up, write permission, key-value pairs (docs/protocol/admin.md §3, §7).

Upstream: the part of ``DefaultMQAdminExtImpl`` about servers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from triomq._admin.broker_sets import answer_of
from triomq._admin.long_bodies import body_of
from triomq._admin.topics import ADMIN_TIMEOUT_S, Admin
from triomq._arguments.kinds import check_mapping, check_text, check_texts
from triomq._arguments.numbers import finite_number, whole_number
from triomq._cluster.name_servers import NameServerGroup
from triomq._constructors import NoPublicConstructor
from triomq._error_text import one_line, shown
from triomq._half_done import with_places
from triomq._message.message import MessageQueue
from triomq._transport.answers import checked, header_of
from triomq._transport.links import Links
from triomq.errors import (
    REMARK_CHARS_MAX,
    BrokerNotFound,
    BrokerRefused,
    InvalidCall,
    MQError,
    NotFound,
)
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import MASTER_ID
from triomq_protocol.requests import (
    ConsumeStatsList,
    GetConsumeStatsInBrokerRequest,
    KVTable,
    OffsetWrapper,
    ProducerTableInfo,
)
from triomq_protocol.requests.route import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    DeleteKVConfigRequest,
    GetKVConfigRequest,
    GetKVConfigResponse,
    GetKVListByNamespaceRequest,
    PutKVConfigRequest,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
)
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.admin")

Cleaning = Literal["queues", "topics", "log"]
"""Consume queues of messages that have been deleted; topics that have no messages and no route; expired log files."""

_CLEANING: Final[Mapping[str, RequestCode]] = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
    "log": RequestCode.DELETE_EXPIRED_COMMITLOG,
}

CLEANING_TIMEOUT_S: Final = 15.0

CONSUME_STATS_TIMEOUT_S: Final = 50.0
"""How long a broker may take for all its groups (docs/protocol/admin.md §3.5)."""


class ServerAdmin(metaclass=NoPublicConstructor):
    """Administrative calls about brokers and name servers; ``client.servers``.

    A broker is given as ``NAME`` (its set's master), ``NAME:ID`` or ``HOST:PORT``.
    """

    def __init__(self, admin: Admin, name_servers: NameServerGroup, links: Links) -> None:
        self._admin = admin
        self._name_servers = name_servers
        self._links = links

    async def address_of(self, broker: str) -> str:
        """The address of a broker.

        Raises:
            BrokerNotFound: no such broker is registered.
        """
        check_text("the broker", broker)
        sets = await self._admin.broker_sets()
        if broker in sets:
            name, number = broker, str(MASTER_ID)
        else:
            name, _, number = broker.rpartition(":")
        broker_id = whole_number(number)
        if name in sets and broker_id is not None:
            address = sets[name].get(broker_id)
            if address is not None:
                return address
        elif name and broker_id is not None:
            return broker
        known = ", ".join(f"{each}:{one}" for each, ids in sorted(sets.items()) for one in ids)
        raise BrokerNotFound(f"broker {broker} is not registered; known: {known or 'none'}")

    async def status(self, broker: str) -> dict[str, str]:
        """A broker's version, traffic and disk use, as it reports them."""
        address = await self.address_of(broker)
        answer = await self._ask(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), "the status")
        return dict((await body_of(KVTable, answer, address, "the answer")).table)

    async def config(self, broker: str) -> dict[str, str]:
        """A broker's settings."""
        return await self._config_at(await self.address_of(broker))

    async def set_config(self, broker: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Change settings of a running broker; those that it reads only at its start take effect at the next one.

        What triomq's brokers remark about that is logged as a warning.

        Returns:
            The settings with other values than before.

        Raises:
            InvalidCall: the broker has no setting of a name; nothing was changed. RocketMQ ignores unknown names.
            BrokerRefused: the broker still has the old value of a setting, though it has reported success.
        """
        body = _lines_of(settings)
        address = await self.address_of(broker)
        before = await self._config_at(address)
        unknown = sorted(settings.keys() - before.keys())
        if unknown:
            raise InvalidCall(f"broker {broker} has no setting {', '.join(unknown)}; nothing was changed")
        command = Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        _log_remark(address, await self._ask(address, command, "the settings"))
        after = await self._config_at(address)
        _check_taken("broker", settings, before, after, address)
        return {name: after[name] for name in settings if name in after and after[name] != before[name]}

    async def clean(self, broker: str, what: Cleaning) -> None:
        """Have a broker delete expired or unused data now, instead of at its usual hour."""
        if what not in list(_CLEANING):
            raise InvalidCall(f"what is {shown(what)}, none of {', '.join(_CLEANING)}")
        address = await self.address_of(broker)
        await self._ask(address, Command.request(_CLEANING[what]), f"cleaning of {what}", CLEANING_TIMEOUT_S)

    async def producers(self, broker: str) -> ProducerTableInfo:
        """The producers that are connected to a broker, by group."""
        address = await self.address_of(broker)
        answer = await self._ask(address, Command.request(RequestCode.GET_ALL_PRODUCER_INFO), "the producers")
        return await body_of(ProducerTableInfo, answer, address, "the producers")

    async def set_write_permission(self, broker_name: str, *, allowed: bool) -> dict[str, int]:
        """Remove the write permission of a broker set's topics from the routes, or restore it.

        Name servers keep that in memory: a broker that changes a topic registers its own permissions again. Producers
        follow within 30 s.

        Returns:
            Name server -> how many topics it changed.
        """
        check_text("broker_name", broker_name)
        if broker_name not in await self._admin.broker_sets():
            raise BrokerNotFound(f"broker {broker_name} is not registered")
        found: dict[str, int] = {}
        addresses = self._name_servers.addresses
        for number, address in enumerate(addresses):
            try:
                found[address] = await self._set_write_permission_at(address, broker_name, allowed=allowed)
            except MQError as error:
                raise with_places(error, list(found), addresses[number:]) from None
        return found

    async def _set_write_permission_at(self, address: str, broker_name: str, *, allowed: bool) -> int:
        what = f"the write permission of {broker_name}"
        if allowed:
            header = AddWritePermOfBrokerRequest(broker_name=broker_name)
            answer = await self._ask(address, Command.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, header), what)
            return header_of(AddWritePermOfBrokerResponse, answer, what, address).add_topic_count
        wipe = WipeWritePermOfBrokerRequest(broker_name=broker_name)
        answer = await self._ask(address, Command.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe), what)
        return header_of(WipeWritePermOfBrokerResponse, answer, what, address).wipe_topic_count

    async def consume_stats(
        self, broker: str, *, ordered: bool = False
    ) -> dict[str, dict[MessageQueue, OffsetWrapper]]:
        """The progress of every group of a broker in the queues that it has an offset in.

        Args:
            broker: the broker.
            ordered: whether to return only topics with the setting `order`.

        Returns:
            Group -> queue -> offsets; groups and topics are named as brokers know them.
        """
        address = await self.address_of(broker)
        what = "the progress of groups"
        header = GetConsumeStatsInBrokerRequest(is_order=ordered)
        command = Command.request(RequestCode.GET_BROKER_CONSUME_STATS, header)
        answer = await self._ask(address, command, what, CONSUME_STATS_TIMEOUT_S)
        parts = (await body_of(ConsumeStatsList, answer, address, what)).consume_stats_list
        found: dict[str, dict[MessageQueue, OffsetWrapper]] = {}
        for part in parts:
            for group, stats in part.items():
                table = found.setdefault(group, {})
                for one in stats:
                    table.update(one.offset_table)
        return {group: dict(sorted(table.items())) for group, table in sorted(found.items())}

    # --- settings of name servers --------------------------------------------------------------------------------

    async def name_server_config(self, *, name_servers: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """The settings of name servers.

        Args:
            name_servers: their addresses, as HOST:PORT; by default all that the client was given.

        Returns:
            Name server -> its settings.
        """
        if name_servers is not None:
            check_texts("name_servers", name_servers)
        return {
            address: await self._config_at(address, RequestCode.GET_NAMESRV_CONFIG)
            for address in (self._name_servers.addresses if name_servers is None else name_servers)
        }

    async def set_name_server_config(
        self, settings: Mapping[str, str], *, name_servers: Sequence[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Change settings of running name servers; those that they read only at their start take effect at the next one.

        Args:
            settings: name of the setting -> value.
            name_servers: their addresses, as HOST:PORT; by default all that the client was given.

        Returns:
            Name server -> the settings with other values than before.

        Raises:
            InvalidCall: a name server has no setting of a name; nothing was changed. RocketMQ ignores unknown names.
            MQError: a name server refused or could not be reached; the ones before it have the settings.
        """
        body = _lines_of(settings)
        before = await self.name_server_config(name_servers=name_servers)
        for address, there in before.items():
            if unknown := sorted(settings.keys() - there.keys()):
                raise InvalidCall(f"name server {address} has no setting {', '.join(unknown)}; nothing was changed")
        changed: dict[str, dict[str, str]] = {}
        for address, there in before.items():
            try:
                command = Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
                _log_remark(address, await self._ask(address, command, "the settings"))
                after = await self._config_at(address, RequestCode.GET_NAMESRV_CONFIG)
                _check_taken("name server", settings, there, after, address)
            except MQError as error:
                raise with_places(error, changed, [each for each in before if each not in changed]) from None
            changed[address] = {name: after[name] for name in settings if after.get(name, there[name]) != there[name]}
        return changed

    # --- key-value pairs of name servers -------------------------------------------------------------------------

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """The key-value pairs of a namespace at the chosen name server; empty if there are none."""
        check_text("the namespace", namespace)
        header = GetKVListByNamespaceRequest(namespace=namespace)
        answer = await self._name_servers.ask(Command.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        address = self._name_servers.chosen or ""
        answer = checked(answer, f"pairs of namespace {namespace}", address)
        return dict((await body_of(KVTable, answer, address, "the answer")).table)

    async def kv_get(self, namespace: str, key: str) -> str:
        """The value of a key.

        Raises:
            NotFound: there is no such key.
        """
        check_text("the namespace", namespace)
        check_text("the key", key)
        what = f"key {key} of namespace {namespace}"
        header = GetKVConfigRequest(namespace=namespace, key=key)
        answer = await self._name_servers.ask(Command.request(RequestCode.GET_KV_CONFIG, header))
        address = self._name_servers.chosen or ""
        value = header_of(GetKVConfigResponse, checked(answer, what, address), what, address).value
        if value is None:
            raise NotFound(what, address=address)
        return value

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a key at every name server: each has its own pairs.

        Raises:
            InvalidCall: namespace or key is blank.
        """
        for name, text in (("namespace", namespace), ("key", key)):
            check_text(f"the {name}", text)
            if not text.strip():
                raise InvalidCall(f"the {name} is blank; give a name that readers can ask for")
        check_text("the value", value)
        header = PutKVConfigRequest(namespace=namespace, key=key, value=value)
        await self._at_all(RequestCode.PUT_KV_CONFIG, header, f"key {key} of namespace {namespace}")

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Delete a key at every name server."""
        check_text("the namespace", namespace)
        check_text("the key", key)
        header = DeleteKVConfigRequest(namespace=namespace, key=key)
        await self._at_all(RequestCode.DELETE_KV_CONFIG, header, f"key {key} of namespace {namespace}")

    async def _at_all(self, code: RequestCode, header: PutKVConfigRequest | DeleteKVConfigRequest, what: str) -> None:
        failures: dict[str, MQError] = {}
        addresses = self._name_servers.addresses
        for address in addresses:
            try:
                await self._ask(address, Command.request(code, header), what)
            except MQError as error:
                failures[address] = error
        if failures:
            done = [address for address in addresses if address not in failures]
            raise with_places(next(iter(failures.values())), done, list(failures))

    # --- asking --------------------------------------------------------------------------------------------------

    async def _config_at(self, address: str, code: RequestCode = RequestCode.GET_BROKER_CONFIG) -> dict[str, str]:
        answer = await self._ask(address, Command.request(code), "the settings")
        lines = answer.body.decode("utf-8", "replace").split("\n")  # a value may have other separators of lines
        pairs = (line.partition("=") for line in lines if not line.startswith("#"))
        return {key.strip(): value.strip() for key, equals, value in pairs if equals}

    async def _ask(self, address: str, command: Command, what: str, timeout_s: float = ADMIN_TIMEOUT_S) -> Command:
        return checked(await answer_of(self._links, address, command, timeout_s), what, address)


def _log_remark(address: str, answer: Command) -> None:
    """Log what a server remarks about settings that it has taken."""
    if answer.remark:
        log.warning("%s has the settings, and remarks: %s", address, one_line(answer.remark, REMARK_CHARS_MAX))


def _lines_of(settings: Mapping[str, str]) -> bytes:
    check_mapping("settings", settings)
    for name, value in settings.items():
        check_text("the name of a setting", name)
        check_text(f"the value of {name}", value)
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()).encode()


def _check_taken(
    kind: str, settings: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str], address: str
) -> None:
    """Raise BrokerRefused for a setting that still has its old value, though nothing was refused."""
    for name, value in settings.items():
        if not _is_same(value.strip(), after.get(name, "")) and after.get(name) == before[name]:
            raise BrokerRefused(
                f"the {kind} did not take {name}={value}; it has {after.get(name)!r} still", address=address
            )


def _is_same(value: str, other: str) -> bool:
    """Whether two texts are one value: servers write numbers in their own form."""
    if value.lower() == other.lower():
        return True
    whole, there = whole_number(value), whole_number(other)
    if whole is not None and there is not None:
        return whole == there
    number = finite_number(value)
    return number is not None and number == finite_number(other)


def _escaped(value: str) -> str:
    """Encode a value as in Java's properties files.

    Raises:
        InvalidCall: it contains a line end.
    """
    if "\n" in value or "\r" in value:
        raise InvalidCall(f"the value {shown(value)} has a line end")
    return value.replace("\\", "\\\\")
