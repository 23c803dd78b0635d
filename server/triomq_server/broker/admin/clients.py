"""Operators' requests about connected clients: 203, 204, 300, 328, 343, 345 (docs/protocol/broker-api.md §14; upstream:
AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    ClientConnection,
    ConsumerConnection,
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
    GroupAndTopicRequest,
    GroupList,
    GroupRequest,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionBody,
    QueryTopicConsumeByWhoRequest,
    TopicList,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import java_map_order_in_slices
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.clients import ClientChannel
from triomq_server.wire import Handlers, Link

Slices = Generator[None, None, Command]

MEMBERS_PER_SLICE = 1024
"""After how many members of groups other requests have their turns."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.sliced[RequestCode.GET_CONSUMER_CONNECTION_LIST] = partial(list_consumer_connections, broker)
    handlers.sliced[RequestCode.GET_PRODUCER_CONNECTION_LIST] = partial(list_producer_connections, broker)
    handlers.sliced[RequestCode.GET_ALL_PRODUCER_INFO] = partial(list_producers, broker)
    handlers.sliced[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = partial(list_groups_of_topic, broker)
    handlers.sliced[RequestCode.QUERY_TOPICS_BY_CONSUMER] = partial(list_topics_of_group, broker)
    handlers.plain[RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER] = partial(subscription_of_group, broker)


def list_consumer_connections(broker: Broker, _link: Link, command: Command) -> Slices:
    """203: members, kind and subscriptions of an online group."""
    name = command.header(GetConsumerConnectionListRequest).consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnection(
        connection_set=(yield from _connections(group.channels.values())),
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_table={},
    )
    for topic in (yield from java_map_order_in_slices(group.subscriptions)):
        if (subscription := group.subscriptions.get(topic)) is not None:
            body.subscription_table[topic] = subscription
    return command.answer(body=(yield from body.encode_in_slices()))


def list_producer_connections(broker: Broker, _link: Link, command: Command) -> Slices:
    """204: members of a producer group."""
    name = command.header(GetProducerConnectionListRequest).producer_group
    channels = broker.clients.producer_channels(name)
    if not channels:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    body = ProducerConnection(connection_set=(yield from _connections(channels.values())))
    return command.answer(body=(yield from body.encode_in_slices()))


def _connections(channels: Iterable[ClientChannel]) -> Generator[None, None, list[ClientConnection]]:
    found = []
    for number, channel in enumerate(list(channels), 1):
        connection = ClientConnection(
            client_addr=channel.link.peer,
            client_id=channel.client_id,
            language=channel.language,
            version=channel.version,
        )
        found.append(connection)
        if not number % MEMBERS_PER_SLICE:
            yield
    return found


def list_producers(broker: Broker, _link: Link, command: Command) -> Slices:
    """328: all producer groups with their members."""
    groups: list[bytes] = []
    count = 0
    for name in tuple(broker.clients.producers):
        members = []
        for channel in list(broker.clients.producer_channels(name).values()):
            members.append(_producer_info(channel).encode())
            count += 1
            if not count % MEMBERS_PER_SLICE:
                yield
        if members:  # else the group was removed after the names were copied
            groups.append(ProducerTableInfo.encode_group(name, members))
    return command.answer(body=ProducerTableInfo.encode_groups(groups))


def _producer_info(channel: ClientChannel) -> ProducerInfo:
    return ProducerInfo(
        client_id=channel.client_id,
        language=channel.language,
        last_update_timestamp=channel.last_update_ms,
        remote_ip=f"/{channel.link.peer}",  # the text of a Java socket address
        version=channel.version,
    )


def list_groups_of_topic(broker: Broker, _link: Link, command: Command) -> Slices:
    """300: the groups that subscribe to a topic now, and those with committed offsets in it."""
    topic = command.header(QueryTopicConsumeByWhoRequest).topic
    names = {*(yield from broker.clients.groups_subscribing(topic)), *(yield from broker.offsets.groups_of(topic))}
    groups = GroupList(group_list=(yield from java_map_order_in_slices(sorted(names))))
    return command.answer(body=(yield from groups.encode_in_slices()))


def list_topics_of_group(broker: Broker, _link: Link, command: Command) -> Slices:
    """343: the topics in which a group has committed offsets."""
    names = yield from broker.offsets.topics_of(command.header(GroupRequest).group)
    topics = TopicList(broker_addr=broker.address, topic_list=(yield from java_map_order_in_slices(names)))
    return command.answer(body=(yield from topics.encode_in_slices()))


def subscription_of_group(broker: Broker, _link: Link, command: Command) -> Command:
    """345: what the members of a group subscribe of a topic."""
    header = command.header(GroupAndTopicRequest)
    found = broker.clients.subscription(header.group, header.topic)
    body = QuerySubscriptionBody(group=header.group, subscription_data=found, topic=header.topic)
    return command.answer(body=body.encode())
