"""Request code -> answer of the name server (docs/protocol/namesrv.md §1.1; RocketMQ's ``DefaultRequestProcessor``).

Only requests that write a file wait. Unknown codes are answered with code 3, and not at all with `compat=4.9`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import NoReturn

import attrs
import trio

from triomq_protocol.codes import FAQ, RequestCode, ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.names import ORDER_TOPIC_CONFIG
from triomq_protocol.requests import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    DataVersion,
    DeleteKVConfigRequest,
    DeleteTopicFromNamesrvRequest,
    GetKVConfigRequest,
    GetKVConfigResponse,
    GetKVListByNamespaceRequest,
    GetRouteInfoRequest,
    GetTopicsByClusterRequest,
    KVTable,
    PutKVConfigRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    UnRegisterBrokerRequest,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
    registration_crc,
)
from triomq_protocol.requests.registration import MOST_UNUSUAL_BYTES
from triomq_protocol.wire.command import Command
from triomq_server.config import (
    MOST_SETTINGS_BYTES,
    ConfigError,
    NamesrvConfig,
    PropertiesError,
    dump_properties,
    load_properties,
    printed,
)
from triomq_server.config.memory import share_of_memory
from triomq_server.disk.config_files import ConfigFile
from triomq_server.namesrv.kv_config import KvConfig, KvConfigFullError
from triomq_server.namesrv.routes import BrokerIdentity, Names, RouteTable, TooManyBrokersError
from triomq_server.repeats import NAMES_SHOWN, PeerLog
from triomq_server.wire import Budget, Handlers, Link, ignored, in_turns

Slices = Generator[None, None, Command]

_log = logging.getLogger(__name__)

# 3.0.11: before it, a registration's body is the bare topic table.
_VERSION_OF_REGISTER_BODY = 37
_MOST_TOPICS_OF_OLD_BROKER = 10_000
# 4.9.4: since then clients read, and get, routes in standard JSON.
_VERSION_OF_STANDARD_JSON = 401
_CONTROLLER_CODES = range(1001, 1014)
"""RocketMQ 5's name servers may run a controller, which chooses masters."""
_MOST_NAMES_AT_ONCE = 128
"""Of brokers, addresses and filter servers in a route: encoding it takes a millisecond."""
MOST_BYTES_OF_REGISTRATIONS = 512 << 20
"""Memory of all registrations that are being read: a short one, compressed, may have 500,000 topics. Where a process may
use little memory it is a quarter of that, see `most_bytes_of_registrations`."""
_LEAST_BYTES_OF_REGISTRATIONS = 64 << 20
_BYTES_OF_TOPIC = 400
_BYTES_OF_CHARACTER = 4
"""At most, in memory."""
_CLOSED_AT_ONCE = 64
"""Connections of silent brokers."""
_FIXED_PATHS = ("kvConfigPath", "configStorePath")


def most_bytes_of_registrations() -> int:
    """A quarter of the memory that this process may use: a stranger's registrations must not get it killed."""
    return share_of_memory(4, least=_LEAST_BYTES_OF_REGISTRATIONS, most=MOST_BYTES_OF_REGISTRATIONS)


@attrs.define
class NameServer:
    """The name server's handlers and their state.

    Attributes:
        config: changed by code 318 while it is in use.
        routes: brokers and topics.
        kv: key-value configuration.
        config_file: where code 318 writes the configuration.
        clock: milliseconds from any fixed time; must not jump.
        peer_log: for lines that peers can cause.
    """

    config: NamesrvConfig
    routes: RouteTable
    kv: KvConfig
    config_file: ConfigFile
    clock: Callable[[], int]
    peer_log: PeerLog = attrs.field(init=False, factory=lambda: PeerLog(_log))
    _registrations: Budget = attrs.field(
        init=False,
        factory=lambda: Budget(
            "registrations being read", "a quarter of memory at most", most_bytes_of_registrations()
        ),
    )
    _gone: trio.Event = attrs.field(init=False, factory=trio.Event)

    def handlers(self) -> Handlers:
        """The table for ``serve``."""
        code = RequestCode
        return Handlers(
            plain={
                code.GET_KV_CONFIG: self.get_kv,
                code.UNREGISTER_BROKER: self.unregister_broker,
                code.GET_ROUTEINFO_BY_TOPIC: self.get_route,
                code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
                code.GET_NAMESRV_CONFIG: self.get_config,
                code.QUERY_DATA_VERSION: self.query_data_version,
            },
            waiting={
                code.PUT_KV_CONFIG: self.put_kv,
                code.DELETE_KV_CONFIG: self.delete_kv,
                code.UPDATE_NAMESRV_CONFIG: self.update_config,
            },
            sliced={
                code.REGISTER_BROKER: self.register_broker,
                code.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
                code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
                code.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
                code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
                code.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
                code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
                code.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
                code.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
                code.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_sub_topics,
                code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_unit_sub_ununit_topics,
            },
            default=ignored if self.config.compat_49 else refuse_unknown,
        )

    def link_closed(self, link: Link) -> None:
        """A connection has ended: drop the brokers registered over it until they register again."""
        if lost := self.routes.channel_closed(link, link.peer):
            message = "%d brokers are gone with a connection from %s: %s"
            self.peer_log.write(logging.INFO, link.peer, message, len(lost), link.peer, _some(lost))
        self._wake_removal()

    async def expire(self) -> None:
        """Drop brokers that have been silent too long."""
        silent = await in_turns(self.routes.expire(self.clock()))
        if silent:
            names = _some([address for address, _ in silent])
            _log.warning("%d brokers have not registered for 120 s and are dropped: %s", len(silent), names)
        for number, (_, channel) in enumerate(silent, 1):
            assert isinstance(channel, Link)
            channel.close()
            if not number % _CLOSED_AT_ONCE:
                await trio.lowlevel.checkpoint()
        self._wake_removal()

    async def remove_gone(self) -> NoReturn:
        """Task: remove the remains of dropped brokers and broker sets, in slices."""
        while True:
            self._gone = trio.Event()
            for _ in self.routes.remove_in_slices():
                await trio.lowlevel.checkpoint()
            await self._gone.wait()

    def _wake_removal(self) -> None:
        if self.routes.has_gone:
            self._gone.set()

    # Brokers

    def register_broker(self, link: Link, command: Command) -> Slices:
        """103."""
        try:
            return (yield from self._register_broker(link, command))
        finally:
            self._registrations.count(link, 0)

    def _register_body(
        self, link: Link, header: RegisterBrokerRequest, body: bytes
    ) -> Generator[None, None, RegisterBrokerBody]:
        def progress(topics: int, size: int) -> None:
            self._registrations.count(link, topics * _BYTES_OF_TOPIC + size * _BYTES_OF_CHARACTER)

        if not body:
            return RegisterBrokerBody()
        if header.compressed:
            return (yield from RegisterBrokerBody.decode_compressed_in_slices(body, progress))
        return (yield from RegisterBrokerBody.decode_in_slices(body, progress))

    def _register_broker(self, link: Link, command: Command) -> Slices:
        header = command.header(RegisterBrokerRequest)
        if header.body_crc32 and registration_crc(command.body) != header.body_crc32:
            return command.answer(ResponseCode.SYSTEM_ERROR, "crc32 not match", RegisterBrokerResponse())
        filter_servers: list[str] | None = None
        if command.version < _VERSION_OF_REGISTER_BODY:
            table = _table_of_old_broker(command.body)
        else:
            body = yield from self._register_body(link, header, command.body)
            table, filter_servers = body.topic_config_serialize_wrapper, body.filter_server_list
        recording = self.routes.register(
            BrokerIdentity(
                header.cluster_name, header.broker_name, header.broker_id, header.broker_addr, header.ha_server_addr
            ),
            table.topic_config_table,
            table.data_version,
            channel=link,
            now_ms=self.clock(),
            filter_servers=filter_servers,
        )
        try:
            master = yield from recording
        except (TooManyBrokersError, ValueError) as error:
            self.peer_log.write(logging.WARNING, link.peer, "refusing a registration of %s: %s", link.peer, error)
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error), RegisterBrokerResponse())
        answer = RegisterBrokerResponse()
        if master is not None:
            answer = RegisterBrokerResponse(ha_server_addr=master.ha_server_addr, master_addr=master.broker_addr)
        orders = yield from self.kv.namespace(ORDER_TOPIC_CONFIG)
        if orders is None:
            return command.answer(header=answer)
        return command.answer(header=answer, body=(yield from KVTable(table=orders).encode_in_slices()))

    def unregister_broker(self, _link: Link, command: Command) -> Command:
        """104."""
        header = command.header(UnRegisterBrokerRequest)
        self.routes.unregister(
            BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        )
        self._wake_removal()
        return command.answer()

    def query_data_version(self, _link: Link, command: Command) -> Command:
        """322."""
        header = command.header(QueryDataVersionRequest)
        asked = DataVersion.decode(command.body) if command.body else DataVersion()
        changed, known = self.routes.check_version(header.broker_addr, asked, self.clock())
        return command.answer(
            header=QueryDataVersionResponse(changed=changed), body=b"" if known is None else known.encode()
        )

    # Routes and lists

    def get_route(self, _link: Link, command: Command) -> Command | Slices:
        """105; in slices if a topic is on many brokers."""
        header = command.header(GetRouteInfoRequest)
        route = self.routes.route(header.topic)
        if route is None:
            topic = "null" if header.topic is None else header.topic
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}{FAQ}"
            )
        if self.config.order_message_enable:
            route.order_topic_conf = self.kv.get(ORDER_TOPIC_CONFIG, header.topic)
        standard = command.version >= _VERSION_OF_STANDARD_JSON or bool(header.accept_standard_json_only)
        if route.names > _MOST_NAMES_AT_ONCE:
            return _long_route(command, route, standard=standard)
        return command.answer(body=route.encode_standard() if standard else route.encode())

    def get_cluster_info(self, _link: Link, command: Command) -> Slices:
        """106."""
        info = yield from self.routes.cluster_info()
        return command.answer(body=(yield from info.encode_in_slices()))

    def get_all_topics(self, _link: Link, command: Command) -> Slices:
        """206."""
        return (yield from _topic_list(command, self.routes.all_topics()))

    def get_topics_by_cluster(self, _link: Link, command: Command) -> Slices:
        """224."""
        return (
            yield from _topic_list(
                command, self.routes.topics_of_cluster(command.header(GetTopicsByClusterRequest).cluster)
            )
        )

    def get_system_topics(self, _link: Link, command: Command) -> Slices:
        """304."""
        names, address = yield from self.routes.system_topics()
        topics = TopicList(topic_list=names, broker_addr=address)
        return command.answer(body=(yield from topics.encode_in_slices()))

    def get_unit_topics(self, _link: Link, command: Command) -> Slices:
        """311."""
        return (yield from _topic_list(command, self.routes.unit_topics()))

    def get_unit_sub_topics(self, _link: Link, command: Command) -> Slices:
        """312."""
        return (yield from _topic_list(command, self.routes.unit_sub_topics()))

    def get_unit_sub_ununit_topics(self, _link: Link, command: Command) -> Slices:
        """313."""
        return (yield from _topic_list(command, self.routes.unit_sub_ununit_topics()))

    # Operators

    def delete_topic(self, _link: Link, command: Command) -> Command:
        """216."""
        header = command.header(DeleteTopicFromNamesrvRequest)
        self.routes.delete_topic(header.topic, self.clock(), header.cluster_name)
        return command.answer()

    def wipe_write_permission(self, link: Link, command: Command) -> Slices:
        """205."""
        header = command.header(WipeWritePermOfBrokerRequest)
        count = yield from self.routes.wipe_write_permission(header.broker_name)
        message = "%s took the write permission of %s, %d topics"
        self.peer_log.write(logging.INFO, link.peer, message, link.peer, header.broker_name, count)
        return command.answer(header=WipeWritePermOfBrokerResponse(wipe_topic_count=count))

    def add_write_permission(self, link: Link, command: Command) -> Slices:
        """327."""
        header = command.header(AddWritePermOfBrokerRequest)
        count = yield from self.routes.add_write_permission(header.broker_name)
        message = "%s gave write permission to %s, %d topics"
        self.peer_log.write(logging.INFO, link.peer, message, link.peer, header.broker_name, count)
        return command.answer(header=AddWritePermOfBrokerResponse(add_topic_count=count))

    # Key-value configuration

    async def put_kv(self, _link: Link, command: Command) -> Command:
        """100."""
        header = command.header(PutKVConfigRequest)
        if header.namespace is None or header.key is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        if header.value is not None:
            try:
                await self.kv.put(header.namespace, header.key, header.value)
            except KvConfigFullError as error:
                return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
            except OSError as error:
                return _unwritten(command, "the value is", error)
        return command.answer()

    def get_kv(self, _link: Link, command: Command) -> Command:
        """101."""
        header = command.header(GetKVConfigRequest)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {_shown(header.namespace)} Key: {_shown(header.key)}"
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, GetKVConfigResponse())
        return command.answer(header=GetKVConfigResponse(value=value))

    async def delete_kv(self, _link: Link, command: Command) -> Command:
        """102."""
        header = command.header(DeleteKVConfigRequest)
        try:
            await self.kv.delete(header.namespace, header.key)
        except OSError as error:
            return _unwritten(command, "that the value is deleted is", error)
        return command.answer()

    def get_kv_list(self, _link: Link, command: Command) -> Slices:
        """219."""
        header = command.header(GetKVListByNamespaceRequest)
        pairs = yield from self.kv.namespace(header.namespace)
        if pairs is None:
            remark = f"No config item, Namespace: {_shown(header.namespace)}"
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark)
        return command.answer(body=(yield from KVTable(table=pairs).encode_in_slices()))

    # Own configuration

    async def update_config(self, link: Link, command: Command) -> Command:
        """318."""
        if not command.body:
            return command.answer()
        if len(command.body) > MOST_SETTINGS_BYTES:
            remark = f"{len(command.body)} bytes of settings; at most {MOST_SETTINGS_BYTES} are possible"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        try:
            values = load_properties(command.body)
        except PropertiesError:
            return command.answer(ResponseCode.SYSTEM_ERROR, "string2Properties error")
        if any(path in values for path in _FIXED_PATHS):
            return command.answer(ResponseCode.NO_PERMISSION, "Can not update config path")
        try:
            warnings = self.config.update(values)
        except ConfigError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        for warning in warnings:
            self.peer_log.write(logging.WARNING, link.peer, "configuration of %s: %s", link.peer, warning)
        try:
            await self.config_file.save_change(
                lambda: dump_properties(self.config.to_properties()).encode(),
                "changed settings are in force until this server stops; change one again once it can be written",
            )
        except OSError as error:
            return _unwritten(command, "the settings are", error)
        return command.answer(remark="; ".join(warnings) or None)

    def get_config(self, _link: Link, command: Command) -> Command:
        """319."""
        return command.answer(body=printed(self.config).encode())


def refuse_unknown(_link: Link, command: Command) -> Command:
    """Answer a code without a handler as RocketMQ 5 does: callers learn it at once, instead of after their timeout."""
    remark = f" request type {command.code} not supported"
    if command.code in _CONTROLLER_CODES:
        remark += ": there is no controller; `triomq admin role` changes the role of a broker"
    return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def _unwritten(command: Command, what: str, error: OSError) -> Command:
    """The answer to a change that is made, and that a restart forgets."""
    remark = f"{what} in force until the name server stops, but its file cannot be written: {error}"
    return command.answer(ResponseCode.SYSTEM_ERROR, remark)


def _table_of_old_broker(body: bytes) -> TopicConfigTable:
    if not body:
        return TopicConfigTable()
    if len(body) > MOST_UNUSUAL_BYTES or body.count(b"{") > _MOST_TOPICS_OF_OLD_BROKER:
        raise BodyError("TopicConfigTable", f"{len(body)} bytes are too many from a broker older than 3.0.11")
    return TopicConfigTable.decode(body)


def _topic_list(command: Command, names: Names) -> Slices:
    topics = yield from names
    return command.answer(body=(yield from TopicList(topic_list=topics).encode_in_slices()))


def _long_route(command: Command, route: TopicRouteData, *, standard: bool) -> Slices:
    slices = route.encode_standard_in_slices() if standard else route.encode_in_slices()
    return command.answer(body=(yield from slices))


def _some(names: list[str]) -> str:
    """The first few, for a log line."""
    return ", ".join(names[:NAMES_SHOWN]) + (" and others" if len(names) > NAMES_SHOWN else "")


def _shown(text: str | None) -> str:
    """Java's text of a string that may be null."""
    return "null" if text is None else text
