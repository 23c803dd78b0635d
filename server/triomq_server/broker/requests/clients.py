"""Requests about clients: heartbeats, unregistration, the members of a group, queue locks.

The state is in `tables.clients` and `tables.queue_locks`; codes 34, 35, 38, 41, 42 and 46 of
docs/protocol/broker-api.md §8 and §11 (upstream: ClientManageProcessor, ConsumerManageProcessor,
DefaultConsumerIdsChangeListener).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain
from typing import NoReturn

import trio

from triomq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.filters.sql92 import Sql92Error
from triomq_protocol.flags import TOPIC_UNIT_SUB
from triomq_protocol.names import MAX_NAME_CHARACTERS, RETRY_PREFIX
from triomq_protocol.requests import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerIdList,
    GetConsumerListByGroupRequest,
    GetConsumerListByGroupResponse,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    NotifyConsumerIdsChangedRequest,
    UnlockBatchRequestBody,
    UnregisterClientRequest,
    UnregisterClientResponse,
)
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.clients import EXPIRY_S, ClientChannel, kept_bytes
from triomq_server.broker.tables.consumer_filters import compiled, is_tag_type
from triomq_server.broker.tables.notifications import Notifications
from triomq_server.broker.tables.queue_locks import LockTable
from triomq_server.broker.tables.topics import topic_name_remark
from triomq_server.repeats import PeerLog
from triomq_server.wire import Handlers, Link, in_turns

MOST_GROUPS = 500
"""Of one heartbeat, and of all heartbeats of a connection: its end concerns all of them."""
MOST_SUBSCRIPTIONS = 2000
MOST_FILTER_CHARACTERS = 16_384
"""Limit for all property filters together; compiling this much takes up to 20 ms."""
CHARACTERS_PER_FILTER = 16
"""Added to the length of each property filter: a short one takes as long as this much more of a long one."""
MOST_TAGS = 10_000
"""Tags, and codes of tags, of all subscriptions: they are kept."""
MOST_SUBSCRIPTION_BYTES = 1 << 20
"""Of one subscription, see `kept_bytes`: 10,000 tags of 20 characters take about as much."""
MOST_LINK_BYTES = 4 << 20
"""Of the subscriptions of all heartbeats of a connection."""
MOST_KIND_CHARACTERS = 64
"""Of the name of a kind, such as `CONSUME_PASSIVELY`: unknown ones are kept, too."""
MOST_UNSENT_BYTES = 262_144
"""Unsent bytes of a member above which it is not notified of changes of its group."""

CLOSED_AT_ONCE = 64
"""Links of silent clients that are closed before other tasks have their turn."""

SCAN_INTERVAL_S = 10.0
"""How often silent clients are looked for."""

_log = logging.getLogger(__name__)
_crowding_log = PeerLog(_log)


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes, and let `broker.notifications` notify groups."""
    broker.notifications = Notifications(partial(_notify_members, broker))
    locks = LockTable(broker.config.rebalance_lock_max_live_time)
    handlers.plain[RequestCode.HEART_BEAT] = partial(heartbeat, broker)
    handlers.plain[RequestCode.UNREGISTER_CLIENT] = partial(unregister, broker)
    handlers.plain[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = partial(list_consumers, broker)
    handlers.plain[RequestCode.CHECK_CLIENT_CONFIG] = partial(check_client, broker)
    handlers.sliced[RequestCode.LOCK_BATCH_MQ] = partial(lock_queues, locks)
    handlers.plain[RequestCode.UNLOCK_BATCH_MQ] = partial(unlock_queues, locks)


# -- heartbeats


def heartbeat(broker: Broker, link: Link, command: Command) -> Command:
    """34: register a client's groups; a new consumer group gets its retry topic."""
    data = HeartbeatData.decode(command.body)
    _check_counts(data)
    _check_link(broker, link, data)
    channel = _channel(broker, link, command, data)
    with broker.groups.saved_once(), broker.topics.saved_once():
        for consumer in data.consumer_data_set:
            _register_consumer(broker, consumer, channel)
    for producer in data.producer_data_set:
        broker.clients.register_producer(_named(producer.group_name, "producerDataSet.groupName"), channel)
    for crowding in broker.clients.crowding():
        message = "closing %s: it has most of very many groups or long subscriptions"
        _crowding_log.write(logging.WARNING, crowding.peer, message, crowding.peer)
        crowding.close()
    return command.answer()


def _channel(broker: Broker, link: Link, command: Command, data: HeartbeatData) -> ClientChannel:
    language = command.language
    return ClientChannel(
        link=link,
        client_id=_named(data.client_id, "clientID"),
        language=language.name if isinstance(language, LanguageCode) else LanguageCode.OTHER.name,
        version=command.version,
        last_update_ms=broker.clock(),
        last_update_s=trio.current_time(),
    )


def _check_counts(data: HeartbeatData) -> None:
    """Refuse a heartbeat that would take long: a client has few groups, and a group few topics. Raises BodyError."""
    groups = len(data.consumer_data_set) + len(data.producer_data_set)
    if groups > MOST_GROUPS:
        raise BodyError("HeartbeatData", f"{groups} groups; at most {MOST_GROUPS} are possible")
    subscriptions = sum(len(consumer.subscription_data_set) for consumer in data.consumer_data_set)
    if subscriptions > MOST_SUBSCRIPTIONS:
        raise BodyError("HeartbeatData", f"{subscriptions} subscriptions; at most {MOST_SUBSCRIPTIONS} are possible")
    tags = sum(
        max(len(subscription.code_set), len(subscription.tags_set))
        for consumer in data.consumer_data_set
        for subscription in consumer.subscription_data_set
    )
    if tags > MOST_TAGS:
        raise BodyError("HeartbeatData", f"{tags} tags; at most {MOST_TAGS} are possible")
    characters = sum(
        len(subscription.sub_string or "") + CHARACTERS_PER_FILTER
        for consumer in data.consumer_data_set
        for subscription in consumer.subscription_data_set
        if not is_tag_type(subscription.expression_type)
    )
    if characters > MOST_FILTER_CHARACTERS:
        text = (
            f"property filters of {characters} characters, {CHARACTERS_PER_FILTER} more than it has for each filter; at "
            f"most {MOST_FILTER_CHARACTERS} are possible"
        )
        raise BodyError("HeartbeatData", text)


def _check_link(broker: Broker, link: Link, data: HeartbeatData) -> None:
    """Refuse more groups, or bytes of subscriptions, than one connection may have. Raises BodyError."""
    consumers = {consumer.group_name or "" for consumer in data.consumer_data_set}
    producers = {producer.group_name or "" for producer in data.producer_data_set}
    groups = broker.clients.groups_with(link, consumers, producers)
    if groups > MOST_GROUPS:
        raise BodyError("HeartbeatData", f"{groups} groups over one connection; at most {MOST_GROUPS} are possible")
    offered: dict[str, int] = {}
    for consumer in data.consumer_data_set:
        name = consumer.group_name or ""
        offered[name] = offered.get(name, 0) + _offered_bytes(consumer)
    kept = broker.clients.bytes_with(link, offered)
    if kept > MOST_LINK_BYTES:
        text = f"subscriptions of {kept} bytes over one connection; at most {MOST_LINK_BYTES} are possible"
        raise BodyError("HeartbeatData", text)


def _offered_bytes(consumer: ConsumerData) -> int:
    """The bytes of a group's subscriptions. Raises BodyError if one of them has too many."""
    total = 0
    for subscription in consumer.subscription_data_set:
        kept = kept_bytes(subscription)
        if kept > MOST_SUBSCRIPTION_BYTES:
            text = f"a subscription of {kept} bytes; at most {MOST_SUBSCRIPTION_BYTES} are possible"
            raise BodyError("HeartbeatData", text)
        total += kept
    return total


def _named(name: str | None, member: str) -> str:
    """A name that must not be empty, since it becomes a key of the tables."""
    if not name:
        raise BodyError("HeartbeatData", f"member {member!r} is missing")
    if len(name) > MAX_NAME_CHARACTERS:
        raise BodyError("HeartbeatData", f"member {member!r} has {len(name)} characters")
    return name


def _check_kind(kind: str | None, member: str) -> None:
    """Refuse a text that is no name of this kind, in RocketMQ 4.9 or a later version. Raises BodyError."""
    if kind is not None and len(kind) > MOST_KIND_CHARACTERS:
        raise BodyError("HeartbeatData", f"member {member!r} has {len(kind)} characters")


def _register_consumer(broker: Broker, consumer: ConsumerData, channel: ClientChannel) -> None:
    name = _named(consumer.group_name, "consumerDataSet.groupName")
    _check_kind(consumer.consume_type, "consumerDataSet.consumeType")
    _check_kind(consumer.message_model, "consumerDataSet.messageModel")
    _check_kind(consumer.consume_from_where, "consumerDataSet.consumeFromWhere")
    for subscription in consumer.subscription_data_set:
        _named(subscription.topic, "subscriptionDataSet.topic")
        _check_kind(subscription.expression_type, "subscriptionDataSet.expressionType")
    config, retry_topic = broker.groups.find(name), RETRY_PREFIX + name
    if config is not None and topic_name_remark(retry_topic) is None:
        sys_flag = TOPIC_UNIT_SUB if consumer.unit_mode else 0
        broker.topics.ensure_retry(name, config.retry_queue_nums, sys_flag)
    known = broker.clients.consumers.get(name)
    replaced = 0 if known is None else known.replaced
    changed = broker.clients.register_consumer(consumer, channel)
    group = broker.clients.consumers[name]
    broker.filters.update(name, group.subscriptions.values())
    if changed:
        _notify_if_enabled(broker, name)
    if group.replaced != replaced:
        broker.held_pulls.wake_link(channel.link)


def unregister(broker: Broker, link: Link, command: Command) -> Command:
    """35: this link leaves the named groups."""
    header = command.header(UnregisterClientRequest)
    if header.producer_group:
        broker.clients.unregister_producer(header.producer_group, link)
    if header.consumer_group and broker.clients.unregister_consumer(header.consumer_group, link):
        _notify_if_enabled(broker, header.consumer_group)
    return command.answer(header=UnregisterClientResponse())


def list_consumers(broker: Broker, _link: Link, command: Command) -> Command:
    """38: the client ids of a group's members."""
    name = command.header(GetConsumerListByGroupRequest).consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    body = ConsumerIdList(consumer_id_list=group.client_ids()).encode()
    return command.answer(header=GetConsumerListByGroupResponse(), body=body)


def check_client(broker: Broker, _link: Link, command: Command) -> Command:
    """46: whether the broker could serve a subscription: tags always, SQL92 if it may and the expression compiles."""
    if not command.body:
        return command.answer()
    subscription = CheckClientConfigBody.decode(command.body).subscription_data
    if subscription is None or is_tag_type(subscription.expression_type):
        return command.answer()
    if not broker.config.enable_property_filter:
        remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)
    try:
        compiled(subscription.expression_type, subscription.sub_string)
    except Sql92Error as error:
        return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    return command.answer()


# -- notifying the group


def _notify_members(broker: Broker, name: str) -> Iterator[None]:
    """40: notify every member that the group has changed, so that it rebalances now; one in a step."""
    group = broker.clients.consumers.get(name)
    if group is None or not broker.config.notify_consumer_ids_changed_enable:
        return
    header = NotifyConsumerIdsChangedRequest(consumer_group=name)
    for link in list(group.channels):
        if link.closed or link.unsent_bytes > MOST_UNSENT_BYTES:
            continue  # it takes nothing; should it read again, it rebalances every 20 s all the same
        link.notify(
            Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True, language=LanguageCode.JAVA)
        )
        yield


def _notify_if_enabled(broker: Broker, name: str) -> None:
    """Notify the group's members unless its configuration disables that."""
    config = broker.groups.get(name)
    if name in broker.clients.consumers and (config is None or config.notify_consumer_ids_changed_enable):
        broker.notifications.add(name)


def link_closed(broker: Broker, link: Link) -> None:
    """Remove the clients of a closed link, and notify the other members of their groups."""
    for name in broker.clients.drop_link(link):
        broker.notifications.add(name)


async def watch_clients(broker: Broker) -> NoReturn:
    """Every ten seconds, remove clients without heartbeats and close their links."""
    peer_log = PeerLog(_log)
    while True:
        await trio.sleep(SCAN_INTERVAL_S)
        for number, link in enumerate(await in_turns(broker.clients.expire(trio.current_time())), 1):
            message = "closing %s: no heartbeat for %.0f s"
            peer_log.write(logging.WARNING, link.peer, message, link.peer, EXPIRY_S)
            link.close()
            if not number % CLOSED_AT_ONCE:
                await trio.lowlevel.checkpoint()


# -- queue locks


def lock_queues(locks: LockTable, _link: Link, command: Command) -> Generator[None, None, Command]:
    """41: lock queues for one client of an orderly consumer group."""
    body = LockBatchRequestBody.decode(command.body)
    _check_lock_names(body)
    now_ms = round(trio.current_time() * 1000)  # a wall clock that is set must not free locks
    locks.drop_expired(now_ms)
    granted = locks.lock(body.consumer_group or "", body.client_id or "", body.mq_set, now_ms)
    return command.answer(body=(yield from LockBatchResponseBody(lock_ok_mq_set=granted).encode_in_slices()))


def _check_lock_names(body: LockBatchRequestBody) -> None:
    """Refuse names that no client, group, topic or broker has: locks keep them. Raises BodyError."""
    queues = ((queue.topic, queue.broker_name) for queue in body.mq_set)
    for name in chain((body.client_id or "", body.consumer_group or ""), chain.from_iterable(queues)):
        if len(name) > MAX_NAME_CHARACTERS:
            raise BodyError("LockBatchRequestBody", f"a name of {len(name)} characters")


def unlock_queues(locks: LockTable, _link: Link, command: Command) -> Command:
    """42: release the queues which this client holds."""
    body = UnlockBatchRequestBody.decode(command.body)
    locks.unlock(body.consumer_group or "", body.client_id or "", body.mq_set)
    return command.answer()
