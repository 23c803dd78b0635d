"""Sends: codes 10, 310 and 320. A message is checked, its properties are rewritten, and it is stored and answered.

A plain message never waits. If the role or the flush type requires it, `answers` holds the answer until disk and slave
have the message, and that of a message that has made its topic until the name servers know it. The counterpart in
RocketMQ is `SendMessageProcessor`; rules: docs/protocol/broker-api.md §4, docs/protocol/messages.md §3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.flags import PERM_WRITE, READ_WRITE_PERM
from triomq_protocol.java_text import utf8
from triomq_protocol.message_id import offset_message_ids
from triomq_protocol.names import (
    DELAY,
    DELIVERY_TIMES,
    DLQ_PREFIX,
    FORBIDDEN_TOPICS,
    KEYS,
    RETRY_PREFIX,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from triomq_protocol.properties import broker_properties, decode_properties, get_property, has_timer, starts_later
from triomq_protocol.record.layout import MULTI_TAGS, TRANSACTION_PREPARED
from triomq_protocol.requests.send import SendMessageRequest, SendMessageRequestV2
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import RefusedError
from triomq_server.broker.requests.sending.answers import SendCompletion, waits_for_store
from triomq_server.broker.requests.sending.bursts import compiled_sends, configure
from triomq_server.broker.requests.sending.checks import SendChecks, SendRequest
from triomq_server.broker.requests.sending.plain_properties import (
    KEY_CHARACTERS,
    MARK,
    MARK_CHARACTERS,
    PlainProperties,
)
from triomq_server.broker.requests.sending.rewriting import new_batch, special_record
from triomq_server.store import AppendResult, AppendStatus, NewBatch, NewRecord
from triomq_server.store.dispatch.dispatcher import MANY_KEYS_CHARACTERS
from triomq_server.wire import Burst, Handlers, Link, Slices

PUT_OK = AppendStatus.PUT_OK  # looking a member up in its enumeration takes a tenth of a microsecond


SEND_CODES = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})

LARGE_BATCH_BYTES = 1 << 16
"""A longer body of a batch is done in slices: its messages may be tiny."""
IDS_AT_ONCE = 8192


def register(handlers: Handlers, broker: Broker) -> None:
    """Serve codes 10, 310 and 320."""
    sending = Sending(broker)
    handlers.plain[RequestCode.SEND_MESSAGE] = sending.send_v1
    handlers.plain[RequestCode.SEND_MESSAGE_V2] = sending.send_v2
    handlers.plain[RequestCode.SEND_BATCH_MESSAGE] = sending.send_v2
    if sending.burst is not None:
        handlers.bursts.append(sending.burst)
    broker.on_config_change.append(sending.read_config)


class Sending:
    """Stores messages of producers. It caches settings; `read_config` reads them again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._dispatcher = broker.store.dispatcher
        self._topics = broker.topics.table
        self._checks = SendChecks(broker)
        self._completion = SendCompletion(broker)
        self._compiled = compiled_sends(broker, self._completion)
        self._large_batch = False
        """Whether a large batch is being stored."""
        self.burst: Burst | None = None
        """Handles plain sends, many at once; None without the compiled module."""
        if self._compiled is not None:
            self.burst = Burst(self._compiled.take, SEND_CODES, checks_access=True)
        self.read_config()

    def read_config(self) -> None:
        """Take over settings that request 25 may have changed."""
        config = self._broker.config
        self._cluster = config.broker_cluster_name
        self._plain = PlainProperties(self._cluster)
        self._host_id = self._broker.store_host.hex().upper()
        self._fields = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        # One flag for rare conditions, so that a send checks them all at once.
        self._restricted = (
            bool(config.start_accept_send_request_time_stamp) or not config.broker_permission & PERM_WRITE
        )
        self._completion.read_config()
        if self._compiled is not None:
            configure(self._compiled, self._broker, self._completion, restricted=self._restricted)

    # -- requests

    def send_v1(self, link: Link, command: Command) -> bytes | Command | Slices | None:
        """Code 10: the header with long names."""
        return self._send(link, command, command.header(SendMessageRequest))

    def send_v2(self, link: Link, command: Command) -> bytes | Command | Slices | None:
        """Codes 310 and 320: the header with one-letter names; the header's flag, not the code, makes a batch."""
        return self._send(link, command, command.header(SendMessageRequestV2))

    def _send(self, link: Link, command: Command, header: SendRequest) -> bytes | Command | Slices | None:
        try:
            if header.batch:
                return self._send_batch(link, command, header)
            return self._send_one(link, command, header)
        except RefusedError as refused:
            return command.answer(refused.code, refused.remark, fields=self._fields)

    def _send_one(self, link: Link, command: Command, header: SendRequest) -> bytes | Slices | None:
        broker = self._broker
        topic = header.topic
        topic_config = self._topics.get(topic)
        change = 0
        if (
            topic_config is None
            or self._restricted
            or topic in FORBIDDEN_TOPICS
            or header.sys_flag & TRANSACTION_PREPARED
        ):
            known = topic_config
            topic_config = self._checks.topic(header, known)
            if known is None:
                change = broker.registration.changes
        queue_id = header.queue_id
        if not 0 <= queue_id < topic_config.write_queue_nums:
            queue_id = self._checks.queue(link, queue_id, topic_config)
        text = header.properties or ""
        dead = False
        if topic.startswith(RETRY_PREFIX):
            dead = self._checks.is_dead_letter(command, header)
            if dead:
                topic, queue_id = DLQ_PREFIX + topic[len(RETRY_PREFIX) :], 0
                topic_config = broker.topics.ensure(topic, 1, READ_WRITE_PERM)
        record = NewRecord(
            topic,
            queue_id,
            command.body,
            b"",
            header.flag,
            header.sys_flag if topic_config.topic_filter_type == "SINGLE_TAG" else header.sys_flag | MULTI_TAGS,
            header.born_timestamp,
            link.peer_host,
            broker.store_host,
            header.reconsume_times or 0,
        )
        key_at = text.find(MARK) + MARK_CHARACTERS
        key_end = key_at + KEY_CHARACTERS
        shape = self._plain.shapes.get(text[:key_at] + text[key_end:])
        if (
            shape is not None
            and (unique_key := text[key_at:key_end]).isalnum()
            and key_at >= MARK_CHARACTERS
            and not dead
            and unique_key.isascii()
        ):
            before, after, record.tags, wait = shape
            record.properties = before + unique_key.encode() + after
            record.uniq_key = unique_key
        else:
            wait = self._set_properties(record, text, dead=dead)
        result = self._store.append(record)
        if result.status is not PUT_OK:
            raise self._checks.not_stored(result.status)
        broker.stats.count_put(record.topic, 1, result.size_bytes)
        if record.delay_level:
            broker.stats.count_queue_put(record.topic, record.queue_id, 1, result.size_bytes)
        message_id = f"{self._host_id}{result.physical_offset:016X}"
        keys = record.keys
        many_keys = keys is not None and len(keys) > MANY_KEYS_CHARACTERS
        if many_keys or self._dispatcher.is_far_behind:
            # Otherwise keys could arrive faster than they are indexed.
            stored = partial(
                self._one_stored, link, command, record.topic, message_id, queue_id, result, wait, change=change
            )
            return self._when_indexed(stored, self._dispatcher.mark if many_keys else 0)
        return self._one_stored(link, command, record.topic, message_id, queue_id, result, wait, change=change)

    def _one_stored(
        self,
        link: Link,
        command: Command,
        topic: str,
        message_id: str,
        queue_id: int,
        result: AppendResult,
        wait: str | None,
        *,
        change: int,
    ) -> bytes | None:
        """Answer a stored message now or later; `change` is 0 or the number of the change that made its topic."""
        completion = self._completion
        answer = None
        if not command.flag & 2:
            answer = completion.encode(command, message_id, queue_id, result.queue_offset)
        if completion.waits and waits_for_store(wait):
            return completion.hold_one(link, answer, result.end_offset, topic, command.code, change=change)
        return completion.when_known(link, answer, change)

    def _when_indexed(self, stored: Callable[[], bytes | None], mark: int) -> Slices:
        """Call `stored` for the answer once the index has read up to `mark`, or, with 0, most of the log."""
        while self._store.index_more(mark):
            yield
        return stored()

    def _set_properties(self, record: NewRecord, text: str, *, dead: bool) -> str | None:
        """Give a record the properties it is stored with; returns WAIT. Raises RefusedError."""
        properties = decode_properties(text)
        if not DELIVERY_TIMES.isdisjoint(properties) and not self._broker.config.store.compat_49:
            self._check_delivery_time(record.topic, properties)
        if dead or DELAY in properties or TRAN_MSG in properties:
            wait = properties.get(WAIT)
            special_record(record, properties, self._broker.config, dead=dead)
            return wait
        self._plain.learn(text, properties)
        record.properties = utf8(broker_properties(text, self._cluster, properties))
        record.tags = properties.get(TAGS)
        record.keys = properties.get(KEYS)
        record.uniq_key = properties.get(UNIQ_KEY)
        return properties.get(WAIT)

    def _check_delivery_time(self, topic: str, properties: Mapping[str, str]) -> None:
        """Raise RefusedError if a broker that knows times of delivery would keep the message, and not deliver it now."""
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return  # a consumer's copy of a message that was delivered: it waits as long as its delay level says
        if has_timer(properties):
            whose = "RocketMQ 5"
        elif starts_later(properties, self._broker.clock()):
            whose = "Alibaba Cloud"
        else:
            return
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a message with a time of delivery needs a broker of {whose}; here messages have delay levels",
        )

    def _send_batch(self, link: Link, command: Command, header: SendRequest) -> bytes | Slices | None:
        known = self._topics.get(header.topic)
        topic_config = self._checks.topic(header, known)
        change = 0 if known is not None else self._broker.registration.changes
        queue_id = self._checks.queue(link, header.queue_id, topic_config)
        if not command.body:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "a batch without a body")
        batch = new_batch(header, command.body, self._cluster)
        if batch is None:
            raise self._checks.not_stored(AppendStatus.MESSAGE_ILLEGAL)
        batch.queue_id = queue_id
        batch.born_host = link.peer_host
        batch.store_host = self._broker.store_host
        if topic_config.topic_filter_type != "SINGLE_TAG":
            batch.sys_flag |= MULTI_TAGS
        wait = get_property(header.properties or "", WAIT)
        if len(command.body) > LARGE_BATCH_BYTES:
            return self._send_large_batch(link, command, batch, wait, change=change)
        result = self._store.append_batch(batch)
        if result.status is not AppendStatus.PUT_OK:
            raise self._checks.not_stored(result.status)
        message_ids = offset_message_ids(batch.store_host, result.message_ids)
        stored = partial(self._batch_stored, link, command, batch, result, message_ids, wait, change=change)
        return self._when_indexed(stored, 0) if self._dispatcher.is_far_behind else stored()

    def _send_large_batch(
        self, link: Link, command: Command, batch: NewBatch, wait: str | None, *, change: int
    ) -> Slices:
        """A batch of any number of messages, one batch at a time, since handling it takes much memory."""
        while self._large_batch:
            yield
        self._large_batch = True
        try:
            result = yield from self._store.append_large_batch(batch)
            if result.status is not AppendStatus.PUT_OK:
                raise self._checks.not_stored(result.status)
            ids = []
            for first in range(0, len(result.physical_offsets), IDS_AT_ONCE):
                ids.append(offset_message_ids(batch.store_host, result.physical_offsets[first : first + IDS_AT_ONCE]))
                yield
            mark = self._dispatcher.mark
            while self._store.index_more(mark):
                yield
            return self._batch_stored(link, command, batch, result, ",".join(ids), wait, change=change)
        except RefusedError as refused:
            return command.answer(refused.code, refused.remark, fields=self._fields)
        finally:
            self._large_batch = False

    def _batch_stored(
        self,
        link: Link,
        command: Command,
        batch: NewBatch,
        result: AppendResult,
        message_ids: str,
        wait: str | None,
        *,
        change: int,
    ) -> bytes | None:
        """Count a stored batch, and answer it now or later."""
        self._broker.stats.count_put(batch.topic, len(result.message_ids), result.size_bytes)
        completion = self._completion
        answer = completion.answer(command, message_ids, batch.queue_id, result.queue_offset)
        if completion.waits and waits_for_store(wait):
            return completion.hold_one(link, answer, result.end_offset, batch.topic, command.code, change=change)
        return completion.when_known(link, answer, change)
