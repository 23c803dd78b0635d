"""Pulls: code 11, and code 361 of RocketMQ 5's lite consumers.

A pull checks permissions, selects the filter, reads the queue and builds the answer. A pull that finds nothing may be
held (`tables.held_pulls`); when it is resumed, it is answered with whatever is available. It answers to
`PullMessageProcessor`; rules: docs/protocol/broker-api.md §5, docs/protocol/ha.md §8.
"""

from __future__ import annotations

import logging

import trio

from triomq_protocol.codes import FAQ, RequestCode, ResponseCode, SerializeType
from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.sql92 import Sql92Error
from triomq_protocol.filters.tags import read_tags
from triomq_protocol.flags import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from triomq_protocol.names import DELAY, KEYS, OFFSET_MOVED_TOPIC, RETRY_PREFIX, TAGS
from triomq_protocol.properties import encode_properties
from triomq_protocol.record.check import store_timestamp_of
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.requests.heartbeat import BROADCASTING, SubscriptionData
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse, encode_pull_answer_head
from triomq_protocol.wire import fastjson
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import RefusedError
from triomq_server.broker.requests.pull_bursts import compiled_pulls, configure
from triomq_server.broker.requests.suggestion import pull_outcome
from triomq_server.broker.tables.consumer_filters import (
    LatestByText,
    PropertyMatcher,
    RetryMatcher,
    compiled,
    is_tag_type,
)
from triomq_server.broker.tables.held_pulls import HeldPull
from triomq_server.replication.divergence import drop_own_messages, first_own_offset
from triomq_server.store import NewRecord, ReadResult, ReadStatus, TagMatcher
from triomq_server.wire import Answer, Burst, Handlers, Link

PULL_CODES = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})

LONGEST_WAIT_MS = 600_000
"""How long a pull is held at most; clients ask for 15 to 30 s."""

MOST_INLINE_CHARACTERS = 16_384
"""Of tags that come with a pull; reading more takes long."""
MOST_KEPT_CHARACTERS = 1 << 20
"""Of all tags that came with pulls and whose codes are kept, which take 25 times the memory."""

_REMARKS = {status: status.name for status in ReadStatus}


def register(handlers: Handlers, broker: Broker) -> None:
    """Serve codes 11 and 361, and let `broker.held_pulls` resume pulls."""
    pulling = Pulling(broker)
    if pulling.burst is not None:
        handlers.bursts.append(pulling.burst)
    handlers.plain[RequestCode.PULL_MESSAGE] = pulling.pull
    handlers.plain[RequestCode.LITE_PULL_MESSAGE] = pulling.pull
    broker.held_pulls.resume = pulling.resume
    broker.on_config_change.append(pulling.read_config)


class TagCodes:
    """A filter by tag hashes, the only thing a consume queue entry knows of tags; consumers compare the text."""

    __slots__ = ("_codes",)

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def by_consume_queue(self, tags_code: int) -> bool:
        """Whether the low 32 bits, signed as in Java, are wanted."""
        return ((tags_code + 0x80000000) & 0xFFFFFFFF) - 0x80000000 in self._codes

    def by_commitlog(self, record: memoryview) -> bool:  # noqa: ARG002
        """The broker does not look into records for tags."""
        return True


class Pulling:
    """Serves pulls. It caches settings; `read_config` reads them again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics.table
        self._inline_tags: LatestByText[TagMatcher | None] = LatestByText(MOST_KEPT_CHARACTERS)
        self._bursts = compiled_pulls(broker)
        self.burst: Burst | None = None
        """Answers plain pulls, many at once; None without the compiled module."""
        if self._bursts is not None:
            self.burst = Burst(self._bursts.take, PULL_CODES, checks_access=True)
        self.read_config()

    def read_config(self) -> None:
        """Take over settings that request 25 may have changed."""
        config = self._broker.config
        self._readable = bool(config.broker_permission & PERM_READ)
        self._slave_read = config.slave_read_enable
        self._slave = self._broker.is_slave
        self._final = not self._broker.is_slave or config.store.offset_check_in_slave
        self._filters_properties = config.enable_property_filter
        self._filters_retries = config.filter_support_retry
        if self._bursts is not None:
            configure(self._bursts, self._broker, readable=self._readable)

    def pull(self, link: Link, command: Command) -> Answer:
        """Answer a pull, or hold it if it finds nothing and may wait."""
        header = command.header(PullMessageRequest)
        try:
            group = self._checked(link, header)
            matcher = self._matcher(header, group)
        except RefusedError as refused:
            return command.answer(refused.code, refused.remark, PullMessageResponse())
        if header.sys_flag & PULL_COMMIT_OFFSET and not self._broker.is_slave:
            self._broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        pieces = self._read(link, command, header, group, matcher, first=True)
        if pieces is None:
            return None
        # A long view of the log goes straight to the socket, at the end of the batch and before anything else runs. For
        # short ones the kernel takes longer than a copy does.
        return pieces if len(pieces) == 2 and not link.draining else b"".join(pieces)

    def resume(self, held: HeldPull) -> None:
        """Run a held pull again with the current subscription and send the result; it is not held a second time."""
        command = held.command
        header = command.header(PullMessageRequest)
        if held.link.unsent_bytes > self._broker.config.link_output_limit_bytes:
            # Each answer may have megabytes, and the reader has not taken the last ones; it may ask again.
            remark = "the answers before this one have not been taken"
            answer = command.answer(
                ResponseCode.PULL_NOT_FOUND,
                remark,
                PullMessageResponse(
                    suggest_which_broker_id=0, next_begin_offset=header.queue_offset, min_offset=0, max_offset=0
                ),
                serialize=SerializeType.JSON,
            )
            held.link.send(answer.encode())
            return
        try:
            group = self._checked(held.link, header)
            # The group may have changed its subscription. Messages that only the old one skips would be lost to the group.
            matcher = self._matcher(header, group)
            pieces = self._read(held.link, command, header, group, matcher, first=False)
        except RefusedError as refused:
            answer = command.answer(refused.code, refused.remark, PullMessageResponse(), serialize=SerializeType.JSON)
            pieces = [answer.encode()]
        except Exception as error:  # noqa: BLE001 (becomes the answer, and is logged)
            # It runs among the requests of the client whose message has woken it.
            peer, message = held.link.peer, "a held pull of %s failed"
            self._broker.peer_log.write(logging.ERROR, peer, message, peer, kind=type(error), exc_info=error)
            remark = f"{type(error).__name__}: {error}"
            pieces = [command.answer(ResponseCode.SYSTEM_ERROR, remark, serialize=SerializeType.JSON).encode()]
        if pieces is not None:
            held.link.send(b"".join(pieces))

    # -- checks, in the order of docs/protocol/broker-api.md §5.2

    def _checked(self, link: Link, header: PullMessageRequest) -> SubscriptionGroupConfig:
        """The group's configuration; raises RefusedError."""
        broker, topic = self._broker, header.topic
        if not self._readable:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{broker.config.broker_ip1}] pulling message is forbidden"
            )
        name = header.consumer_group
        group = broker.groups.table.get(name) or broker.groups.find(name)
        if group is None:
            remark = broker.groups.full_remark(name) or f"subscription group [{name}] does not exist, {FAQ}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        topic_config = self._topics.get(topic)
        if topic_config is None:
            if broker.following is not None:
                broker.following.metadata.fetch_soon()
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}")
        if not topic_config.perm & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic_config.read_queue_nums:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}] consumer:[/{link.peer}]",
            )
        return group

    def _matcher(self, header: PullMessageRequest, group: SubscriptionGroupConfig) -> TagMatcher | None:
        """The pull's filter, None for every message; raises RefusedError."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            kind = header.expression_type or ""
            matcher = self._inline(header)
        else:
            subscription = self._subscription(header, group)
            kind = subscription.expression_type or ""
            matcher = self._registered(header, subscription) if is_tag_type(kind) else self._compiled(header)
        if is_tag_type(kind):
            if self._filters_retries and header.topic.startswith(RETRY_PREFIX):
                return RetryMatcher(self._broker.filters, header.consumer_group)
        elif not self._filters_properties:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        return matcher

    def _inline(self, header: PullMessageRequest) -> TagMatcher | None:
        """The filter that the request itself brings; raises RefusedError."""
        if not is_tag_type(header.expression_type):
            return _inline_property_matcher(header.expression_type or "", header.subscription)
        expression = header.subscription or ""
        try:
            return self._inline_tags.find(expression, _tag_matcher)
        except LocalProtocolError:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None

    def _registered(self, header: PullMessageRequest, subscription: SubscriptionData) -> TagMatcher | None:
        """The filter of a subscription as heartbeats brought it (`DefaultMessageFilter`)."""
        if subscription.class_filter_mode or subscription.sub_string == "*":
            return None
        return TagCodes(self._broker.clients.consumers[header.consumer_group].tag_codes[header.topic])

    def _compiled(self, header: PullMessageRequest) -> TagMatcher:
        """The property filter that a heartbeat brought; raises RefusedError."""
        found = self._broker.filters.find(header.topic, header.consumer_group)
        if found is None:
            raise RefusedError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if found.client_version < header.sub_version:
            raise RefusedError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return found.matcher

    def _subscription(self, header: PullMessageRequest, group: SubscriptionGroupConfig) -> SubscriptionData:
        """The topic's subscription in the group's heartbeats; raises RefusedError."""
        online = self._broker.clients.consumers.get(header.consumer_group)
        if online is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if online.message_model == BROADCASTING and not group.consume_broadcast_enable:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = online.subscriptions.get(header.topic)
        if subscription is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.sub_version < header.sub_version:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    # -- reading

    def _read(
        self,
        link: Link,
        command: Command,
        header: PullMessageRequest,
        group: SubscriptionGroupConfig,
        matcher: TagMatcher | None,
        *,
        first: bool,
    ) -> list[bytes | memoryview] | None:
        """The pieces of the answer's frame; None if the pull is held."""
        broker = self._broker
        topic, queue_id, offset = header.topic, header.queue_id, header.queue_offset
        read = self._store.read(topic, queue_id, offset, header.max_msg_nums, matcher)
        if read is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "store getMessage return null")
        first_own = None
        if self._slave and broker.following is not None:
            first_own = first_own_offset(self._store, broker.following.log.status.compared, topic, queue_id)
        if first_own is not None and offset < first_own < read.next_offset:
            drop_own_messages(read, first_own)
        outcome = pull_outcome(
            read.status,
            offset,
            lags=read.suggest_slave,
            slave_read=self._slave_read,
            home_id=group.broker_id,
            slow_id=group.which_broker_when_consume_slowly,
            final=self._final,
        )
        if first_own is not None and first_own <= offset < read.max_offset:
            return [
                encode_pull_answer_head(
                    command,
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                    "this slave's log differs from the master's from here on",
                    suggest_which_broker_id=group.broker_id,
                    next_begin_offset=offset,
                    min_offset=read.min_offset,
                    max_offset=read.max_offset,
                    body_bytes=0,
                    serialize=None if first else SerializeType.JSON,
                )
            ]
        if outcome.code == ResponseCode.SUCCESS:
            stored_ms = store_timestamp_of(read.slices[0])
            age_ms = max(0, broker.clock() - stored_ms) if stored_ms > 0 else 0
            broker.stats.count_get(
                topic, queue_id, header.consumer_group, read.message_count, read.bytes_total, age_ms=age_ms
            )
        else:
            broker.stats.count_miss()
            if first and header.sys_flag & PULL_SUSPEND and outcome.code == ResponseCode.PULL_NOT_FOUND:
                if self._hold(link, command, header, matcher):
                    return None
            elif outcome.offset_moved:
                self._store_offset_moved(header, read)
        head = encode_pull_answer_head(
            command,
            outcome.code,
            _REMARKS[read.status],
            suggest_which_broker_id=outcome.broker_id,
            next_begin_offset=read.next_offset,
            min_offset=read.min_offset,
            max_offset=read.max_offset,
            body_bytes=read.bytes_total,
            serialize=None if first else SerializeType.JSON,
        )
        return [head, *read.slices]

    def _hold(self, link: Link, command: Command, header: PullMessageRequest, matcher: TagMatcher | None) -> bool:
        """Hold the pull until a message comes; false if there are too many held already."""
        config = self._broker.config
        wait_ms = header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
        wait_ms = min(wait_ms, LONGEST_WAIT_MS)
        deadline = trio.current_time() + wait_ms / 1000
        held = HeldPull(link, command, header.topic, header.queue_id, header.queue_offset, matcher, deadline)
        held.examines = isinstance(matcher, PropertyMatcher)
        return self._broker.held_pulls.hold(held)

    def _store_offset_moved(self, header: PullMessageRequest, read: ReadResult) -> None:
        """Leave a note for operators that a reader was sent elsewhere (docs/protocol/messages.md §15)."""
        broker, group = self._broker, header.consumer_group
        event = {
            "consumerGroup": group,
            "messageQueue": {
                "brokerName": broker.config.broker_name,
                "queueId": header.queue_id,
                "topic": header.topic,
            },
            "offsetNew": read.next_offset,
            "offsetRequest": header.queue_offset,
        }
        broker.store.append(
            NewRecord(
                OFFSET_MOVED_TOPIC,
                0,
                fastjson.dumps(event),
                encode_properties({KEYS: group, DELAY: "0", TAGS: group}).encode(),
                born_timestamp=broker.clock(),
                born_host=broker.store_host,
                store_host=broker.store_host,
                tags=group,
                keys=group,
            )
        )


def _tag_matcher(expression: str) -> TagMatcher | None:
    """The filter of a tag expression. Raises LocalProtocolError if it has no tag or is too long."""
    if len(expression) > MOST_INLINE_CHARACTERS:
        raise LocalProtocolError(f"the expression has more than {MOST_INLINE_CHARACTERS} characters")
    wanted = read_tags(expression)
    return TagCodes(wanted.codes) if wanted.codes else None


def _inline_property_matcher(kind: str, expression: str | None) -> TagMatcher | None:
    """The filter of an expression in a pull; one that cannot be compiled lets everything pass, as in 4.9."""
    try:
        compiled(kind, expression)
    except Sql92Error:
        return None
    return PropertyMatcher(expression or "")
