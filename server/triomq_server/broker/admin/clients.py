"""Operators' requests about who is connected: 203, 204, 300, 328 (docs/protocol/broker-api.md §14; upstream:
AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    ClientConnection,
    ConsumerConnection,
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QueryTopicConsumeByWhoRequest,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import java_map_order
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.clients import ClientChannel
from triomq_server.wire import Handlers, Link


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.plain[RequestCode.GET_CONSUMER_CONNECTION_LIST] = partial(list_consumer_connections, broker)
    handlers.plain[RequestCode.GET_PRODUCER_CONNECTION_LIST] = partial(list_producer_connections, broker)
    handlers.plain[RequestCode.GET_ALL_PRODUCER_INFO] = partial(list_producers, broker)
    handlers.plain[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = partial(list_groups_of_topic, broker)


def list_consumer_connections(broker: Broker, _link: Link, command: Command) -> Command:
    """203: members, kind and subscriptions of an online group."""
    name = command.header(GetConsumerConnectionListRequest).consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnection(
        connection_set=_connections(group.channels.values()),
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_table={topic: group.subscriptions[topic] for topic in java_map_order(group.subscriptions)},
    )
    return command.answer(body=body.encode())


def list_producer_connections(broker: Broker, _link: Link, command: Command) -> Command:
    """204: members of a producer group."""
    name = command.header(GetProducerConnectionListRequest).producer_group
    channels = broker.clients.producer_channels(name)
    if not channels:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return command.answer(body=ProducerConnection(connection_set=_connections(channels.values())).encode())


def _connections(channels: Iterable[ClientChannel]) -> list[ClientConnection]:
    return [
        ClientConnection(
            client_addr=channel.link.peer,
            client_id=channel.client_id,
            language=channel.language,
            version=channel.version,
        )
        for channel in channels
    ]


def list_producers(broker: Broker, _link: Link, command: Command) -> Command:
    """328: all producer groups with their members."""
    body = ProducerTableInfo(
        data={
            name: [_producer_info(channel) for channel in channels.values()]
            for name, channels in broker.clients.producers.items()
        }
    )
    return command.answer(body=body.encode())


def _producer_info(channel: ClientChannel) -> ProducerInfo:
    return ProducerInfo(
        client_id=channel.client_id,
        language=channel.language,
        last_update_timestamp=channel.last_update_ms,
        remote_ip=f"/{channel.link.peer}",  # the text of a Java socket address
        version=channel.version,
    )


def list_groups_of_topic(broker: Broker, _link: Link, command: Command) -> Command:
    """300: the groups that subscribe a topic now, and those that have committed offsets of it."""
    topic = command.header(QueryTopicConsumeByWhoRequest).topic
    names = {*broker.clients.groups_subscribing(topic), *broker.offsets.groups_of(topic)}
    return command.answer(body=GroupList(group_list=list(java_map_order(sorted(names)))).encode())
