"""Operators' requests that compare and copy committed offsets: 308, 314 (docs/protocol/broker-api.md §14).

Upstream: AdminBrokerProcessor, ConsumerOffsetManager.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import CloneGroupOffsetRequest, QueryCorrectionOffsetBody, QueryCorrectionOffsetRequest
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.tables.offsets.committed import FULL_REMARK, MOST_UNEXPECTED
from triomq_server.broker.tables.topics import group_name_remark
from triomq_server.wire import Handlers, Link

QUEUES_PER_SLICE = 1024
"""After how many queues, of all groups or topics together, other requests have their turns. A group or topic counts as
one more."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    handlers.sliced[RequestCode.QUERY_CORRECTION_OFFSET] = partial(correction_offsets, broker)
    handlers.sliced[RequestCode.CLONE_GROUP_OFFSET] = partial(clone_offsets, broker)


def correction_offsets(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """308: per queue, the smallest offset any group has committed, groups of `filterGroups` left aside.

    4.9 leaves them aside by deleting all their offsets, of every topic, which no operator can want from a query; only
    `compat = "4.9"` does so here. The comparison with `compareGroup` never takes effect in 4.9 and is left out.
    """
    header = command.header(QueryCorrectionOffsetRequest)
    aside = {name for name in (header.filter_groups or "").split(",") if name}
    if broker.compat_49:
        for group in aside:
            yield from broker.offsets.remove_group(group)
            yield  # there may be many groups, and a group may have no offsets
    least: dict[int, int] = {}
    count = 0
    for group in (yield from broker.offsets.groups_of(header.topic)):
        count += 1
        if not count % QUEUES_PER_SLICE:
            yield
        if group in aside:
            continue
        for queue_id, offset in broker.offsets.queues(group, header.topic).items():
            if offset >= broker.store.queue_bounds(header.topic, queue_id)[0]:
                least[queue_id] = min(offset, least.get(queue_id, offset))
            count += 1
            if not count % QUEUES_PER_SLICE:
                yield
    body = QueryCorrectionOffsetBody(correction_offsets=dict(sorted(least.items())))
    return command.answer(body=(yield from body.encode_in_slices()))


def clone_offsets(broker: Broker, _link: Link, command: Command) -> Generator[None, None, Command]:
    """314: give one group the offsets of another, for one topic or for all that the source has.

    Without a topic 4.9 copies nothing, since it looks under the empty name it was given; only `compat = "4.9"` does
    so here. Unless `offline`, an online source group has to subscribe the topic. Of groups that the broker does not know,
    a limited number of offsets is taken, as by code 15.
    """
    header = command.header(CloneGroupOffsetRequest)
    target = header.dest_group
    known = target in broker.groups.table or broker.compat_49
    remark = None if known else group_name_remark(target)
    if remark is not None:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)
    topics = [header.topic] if header.topic else []
    if not header.topic and not broker.compat_49:
        topics = yield from broker.offsets.topics_of(header.src_group)
    source = broker.clients.consumers.get(header.src_group)
    count = 0
    for topic in topics:
        queues = len(broker.offsets.queues(header.src_group, topic))
        count += 1 + queues
        if count > QUEUES_PER_SLICE:
            count = 0
            yield
        if topic not in broker.topics.table:
            continue
        if not header.offline and source is not None and source.subscriptions and topic not in source.subscriptions:
            continue
        if not (known or broker.offsets.queues(target, topic)):
            if broker.offsets.unexpected + queues > MOST_UNEXPECTED:
                return command.answer(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group [{target}] does not exist, and the broker keeps no more offsets of unknown groups",
                )
            broker.offsets.unexpected += queues
        if not (yield from broker.offsets.clone(header.src_group, target, topic)):
            return command.answer(ResponseCode.SYSTEM_ERROR, FULL_REMARK)
    return command.answer()
