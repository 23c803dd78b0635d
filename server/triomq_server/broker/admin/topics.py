"""Operators' requests about topics and their queues: 17, 18, 21, 202, 215, 305, 306, 316, 329, 351
(docs/protocol/broker-api.md §12).

Upstream: AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial

import trio

from triomq_protocol.codes import NOT_SET_REMARK, RequestCode, ResponseCode
from triomq_protocol.names import LMQ_PREFIX, SYSTEM_TOPICS
from triomq_protocol.requests import (
    CreateTopicListBody,
    CreateTopicRequest,
    DeleteTopicRequest,
    GetAllTopicConfigResponse,
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    MessageQueue,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.fastjson import dumps_in_slices, java_map_order
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import INT32_MOST, SLAVE_REMARK, range_remark
from triomq_server.broker.tables.topics import QUEUES_LIMIT, topic_name_remark
from triomq_server.wire import Handlers, Link, in_turns

FILTER_TYPES = frozenset({"SINGLE_TAG", "MULTI_TAG"})

QUEUES_PER_SLICE = 256
"""After how many queues of a topic other requests have their turns."""

TOPICS_PER_TURN = 16
"""After how many topics of a list other requests have their turns."""

_HARMLESS_ATTRIBUTES = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}
"""Attributes of RocketMQ 5 that change nothing for clients that do not go through its proxy."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.waiting[RequestCode.UPDATE_AND_CREATE_TOPIC] = partial(create_topic_everywhere, broker)
    handlers.waiting[RequestCode.UPDATE_AND_CREATE_TOPIC_LIST] = partial(create_topics_everywhere, broker)
    handlers.plain[RequestCode.GET_TOPIC_CONFIG] = partial(topic_config, broker)
    handlers.waiting[RequestCode.DELETE_TOPIC_IN_BROKER] = partial(delete_topic, broker)
    handlers.sliced[RequestCode.GET_ALL_TOPIC_CONFIG] = partial(list_topic_configs, broker)
    handlers.sliced[RequestCode.GET_TOPIC_STATS_INFO] = partial(topic_stats, broker)
    handlers.plain[RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER] = partial(list_system_topics, broker)
    handlers.waiting[RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE] = partial(clean_expired_queues, broker)
    handlers.waiting[RequestCode.CLEAN_UNUSED_TOPIC] = partial(clean_unused_topics, broker)
    handlers.plain[RequestCode.DELETE_EXPIRED_COMMITLOG] = partial(delete_expired_commitlog, broker)


async def create_topic_everywhere(broker: Broker, link: Link, command: Command) -> Command:
    """17: create a topic, and answer when it is on the disk and the name servers know of it, so that the caller's next
    question finds it."""
    answer = create_topic(broker, link, command)
    if answer.code == ResponseCode.SUCCESS:
        saved = await broker.topics.answer_when_saved(command)
        await broker.registration.register_now()
        if saved.code != ResponseCode.SUCCESS:
            return saved
    return answer  # with the remark of Java's


def create_topic(broker: Broker, _link: Link, command: Command) -> Command:
    """17: create a topic, or replace its whole configuration.

    The header's `order` and `defaultTopic` have no effect in 4.9 either: ordered topics are named by the name servers.
    """
    header = command.header(CreateTopicRequest)
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
    )
    attributes = (header.attributes or "").split(",")
    refusal = _refusal(broker, header.topic) or _numbers_refusal(config) or attributes_refusal(attributes)
    if refusal is not None:
        return command.answer(ResponseCode.SYSTEM_ERROR, refusal)
    _put(broker, config)
    return command.answer(remark=NOT_SET_REMARK)


async def create_topics_everywhere(broker: Broker, _link: Link, command: Command) -> Command:
    """18: create or replace several topics, all or none; answered when the name servers know of them."""
    configs = CreateTopicListBody.decode(command.body).topic_config_list
    for number, config in enumerate(configs, 1):
        attributes = (f"{name}={value}" for name, value in config.attributes.items())
        name = config.topic_name or ""
        refusal = _refusal(broker, name) or _numbers_refusal(config) or attributes_refusal(attributes)
        if refusal is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, f"{name}: {refusal}; none of the topics is changed")
        if not number % TOPICS_PER_TURN:
            await trio.lowlevel.checkpoint()
    for number, config in enumerate(configs, 1):
        _put(
            broker,
            TopicConfig(
                topic_name=config.topic_name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
            ),
        )
        if not number % TOPICS_PER_TURN:
            await trio.lowlevel.checkpoint()
    answer = await broker.topics.answer_when_saved(command)
    await broker.registration.register_now()
    return answer


def _put(broker: Broker, config: TopicConfig) -> None:
    """Create or replace a topic; whether it is ordered stays as it was."""
    known = broker.topics.get(config.topic_name or "")
    config.order = known is not None and known.order
    broker.topics.put(config)


def topic_config(broker: Broker, _link: Link, command: Command) -> Command:
    """351: the configuration of one topic."""
    topic = command.header(GetTopicConfigRequest).topic
    config = broker.topics.get(topic)
    if config is None:
        return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    return command.answer(body=config.encode())


def attributes_refusal(attributes: Iterable[str]) -> str | None:
    """Why a topic cannot have attributes (`+name=value`, `-name`); None if they change nothing or remove some."""
    for attribute in attributes:
        sign, (name, _, value) = attribute[:1], attribute[1:].partition("=")
        if attribute and sign != "-" and value not in _HARMLESS_ATTRIBUTES.get(name, ()):
            return f"topic attribute {attribute[:200]!r} needs a broker of RocketMQ 5"
    return None


def _refusal(broker: Broker, topic: str) -> str | None:
    """Why this broker will not create or delete the topic; None if it will."""
    if broker.is_slave:
        return SLAVE_REMARK
    remark = topic_name_remark(topic)
    if remark is not None:
        return remark
    if broker.topics.is_system(topic):
        return f"The topic[{topic}] is conflict with system topic."
    return None


def _numbers_refusal(config: TopicConfig) -> str | None:
    numbers = (
        ("readQueueNums", config.read_queue_nums, 0, QUEUES_LIMIT),
        ("writeQueueNums", config.write_queue_nums, 0, QUEUES_LIMIT),
        # The body of 18 can hold larger ones, with which no name server would take a registration of this broker.
        ("perm", config.perm, -INT32_MOST - 1, INT32_MOST),
        ("topicSysFlag", config.topic_sys_flag, -INT32_MOST - 1, INT32_MOST),
    )
    if remark := range_remark(numbers):
        return remark
    if config.topic_filter_type not in FILTER_TYPES:
        return (
            "org.apache.rocketmq.remoting.exception.RemotingCommandException: "
            f"topicFilterType = [{config.topic_filter_type}] value invalid"
        )
    return None


async def delete_topic(broker: Broker, _link: Link, command: Command) -> Command:
    """215: forget a topic and destroy its queues; an unknown one is fine. Messages stay in the log until it expires."""
    topic = command.header(DeleteTopicRequest).topic
    refusal = _refusal(broker, topic)
    if refusal is not None:
        return command.answer(ResponseCode.SYSTEM_ERROR, refusal)
    removal = broker.store.queue_removal
    # Messages sent in the meantime are deleted with the topic. If it were removed first, a send could make it again,
    # and its messages would be stored in an old queue.
    await removal.remove_topic(topic)
    if not topic.startswith(LMQ_PREFIX):
        broker.topics.remove(topic)
    await removal.remove_topic(topic, unless=broker.topics.table)
    await _forget_offsets(broker, topic)
    return await broker.topics.answer_when_saved(command)


async def _forget_offsets(broker: Broker, *deleted: str) -> None:
    """Forget the offsets of groups in deleted topics whose numbering does not continue if they are made again.

    As long as it continues, the groups continue as well. After that the offsets would be wrong, and nothing would remove
    them, while new ones are refused beyond `consumerOffsetsLimitBytes`. Slaves follow their master.
    """
    removal, offsets, known = broker.store.queue_removal, broker.offsets, broker.topics.table
    forgotten = removal.take_forgotten()
    if broker.is_slave or broker.compat_49:
        return
    if gone := removal.without_numbers({*forgotten, *deleted}):
        await in_turns(offsets.remove_topics(lambda topic: topic in gone and topic not in known))
    if made_again := forgotten.intersection(known):
        # Nothing has been stored in these queues since then, and their numbering begins at 0.
        def end_of(topic: str, queue_id: int) -> int | None:
            return 0 if topic in made_again and removal.begins_at_zero(topic, queue_id) else None

        await in_turns(offsets.lower_to_ends(end_of))


def list_topic_configs(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """21: all topics with their version; slaves copy it, and remove the queues that this broker has removed."""
    removed = broker.store.queue_removal.removed()
    body = yield from broker.topics.encoded_in_slices()
    if removed and not broker.compat_49:
        # A member of TopicConfigTableForSlaves: its name is the last one in the alphabet.
        member = yield from dumps_in_slices({"triomqRemovedQueues": removed})
        body = body[:-1] + b"," + member[1:]
    return command.answer(header=GetAllTopicConfigResponse(), body=body)


def topic_stats(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """202: bounds and last store time of each write queue."""
    topic = command.header(GetTopicStatsInfoRequest).topic
    config = broker.topics.get(topic)
    if config is None:
        return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    table = {}
    for queue_id in range(config.write_queue_nums):
        table[MessageQueue(topic, broker.config.broker_name, queue_id)] = _queue_offsets(broker, topic, queue_id)
        if not (queue_id + 1) % QUEUES_PER_SLICE:
            yield
    return command.answer(body=(yield from TopicStatsTable(offset_table=table).encode_in_slices()))


def _queue_offsets(broker: Broker, topic: str, queue_id: int) -> TopicOffset:
    low, high = broker.store.queue_bounds(topic, queue_id)
    last_ms = broker.store.store_time_at(topic, queue_id, high - 1) if high > 0 else 0
    return TopicOffset(min_offset=max(low, 0), max_offset=max(high, 0), last_update_timestamp=max(last_ms, 0))


def list_system_topics(broker: Broker, _link: Link, command: Command) -> Command:
    """305: the topics that belong to the system."""
    added = sorted(broker.topics.system_topics.difference(SYSTEM_TOPICS))
    body = TopicList(topic_list=list(java_map_order([*SYSTEM_TOPICS, *added])))
    return command.answer(body=body.encode())


async def clean_expired_queues(broker: Broker, _link: Link, command: Command) -> Command:
    """306: delete consume queues whose records are all before the log's start."""
    await broker.store.queue_removal.remove_expired()
    await _forget_offsets(broker)
    return command.answer()


async def clean_unused_topics(broker: Broker, _link: Link, command: Command) -> Command:
    """316: destroy consume queues of topics that are no longer configured.

    A slave removes what its master has removed. By itself it would take a topic whose messages it has, and of which its
    master has died before it told, for one that is no longer configured.
    """
    if broker.is_slave and not broker.compat_49:
        return command.answer()
    await broker.store.queue_removal.remove_unused(broker.topics.table)
    await _forget_offsets(broker)
    return command.answer()


def delete_expired_commitlog(broker: Broker, _link: Link, command: Command) -> Command:
    """329: expire old log files in the next passes, whatever the hour."""
    broker.store.cleaner.request_expiry()
    return command.answer()
