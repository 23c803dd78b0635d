"""The consumers' side of the fake broker: members, held pulls, locks, retries, all on the virtual clock."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from stored_records import encode_record

from triomq_protocol import flags
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.filters.tags import parse_subscription, tags_code
from triomq_protocol.properties import decode_properties, encode_properties
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests import (
    ConsumerIdList,
    ConsumerSendMsgBackRequest,
    GetConsumerListByGroupRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    NotifyConsumerIdsChangedRequest,
    SubscriptionData,
    UnlockBatchRequestBody,
    UnregisterClientRequest,
)
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse
from triomq_protocol.wire.command import Command

LEVELS_S = [0, 1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
LOCK_S = 60.0


class ConsumerSide:
    """What a broker does for consumer groups; `broker` is the FakeBroker it belongs to."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.serves_groups = False
        """Set by the fixture `group_cluster`: pulls are held, subscriptions come from heartbeats."""
        self.members: dict[str, dict[str, trio.abc.Stream]] = {}
        self.models: dict[str, str] = {}
        self.subscriptions: dict[tuple[str, str], SubscriptionData] = {}
        self.locks: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
        self.statuses: dict[int, trio.Event] = {}
        self.answers: dict[int, Command] = {}
        self.numbers = itertools.count(1000)
        self.levels_s = LEVELS_S
        self.sql: Callable[[str, RecordView], bool] = lambda _text, _record: True
        self.arrival = trio.Event()
        self.commits: list[tuple[str, str, int, int]] = []
        """(group, topic, queue id, offset), in the order they came, by either way."""
        self.lock_requests: list[tuple[float, str, str, tuple[MessageQueue, ...]]] = []

    def serve(self, command: Command, stream: trio.abc.Stream) -> Any:
        if command.code == RequestCode.HEART_BEAT:
            return self.heartbeat(command, stream)
        handlers: dict[int, Callable[[Command], Any]] = {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
            RequestCode.CHECK_CLIENT_CONFIG: lambda command: command.answer(0),
        }
        handler = handlers.get(command.code)
        return None if handler is None else handler(command)

    # --- members ---------------------------------------------------------------------------------------------

    def heartbeat(self, command: Command, stream: trio.abc.Stream) -> Command:
        data = HeartbeatData.decode(command.body)
        for each in data.consumer_data_set:
            group = each.group_name or ""
            members = self.members.setdefault(group, {})
            new = data.client_id not in members
            members[data.client_id or ""] = stream
            self.models[group] = each.message_model or ""
            if self.serves_groups and each.message_model == "CLUSTERING":
                self.ensure_topic(f"%RETRY%{group}")
            topics = {one.topic for one in each.subscription_data_set}
            for gone in [key for key in self.subscriptions if key[0] == group and key[1] not in topics]:
                del self.subscriptions[gone]
            for one in each.subscription_data_set:
                known = self.subscriptions.get((group, one.topic or ""))
                if known is None or known.sub_version < one.sub_version:
                    self.subscriptions[group, one.topic or ""] = one
            if new:
                self.notify(group)
        return command.answer(0)

    def ensure_topic(self, topic: str) -> None:
        name_server = self.broker.name_server
        if name_server is not None and topic not in name_server.routes:
            name_server.add_route(topic, self.broker, *self.broker.slaves, queues=1)

    def notify(self, group: str) -> None:
        for stream in self.members.get(group, {}).values():
            request = Command.request(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                NotifyConsumerIdsChangedRequest(consumer_group=group),
                oneway=True,
            )
            self.broker.network.spawn(self.broker.push_to, stream, request)

    def list_members(self, command: Command) -> Command:
        group = command.header(GetConsumerListByGroupRequest).consumer_group
        ids = list(self.members.get(group, {}))
        if not ids:
            return command.answer(1, f"no consumer for this group, {group}")
        return command.answer(0, body=ConsumerIdList(consumer_id_list=ids).encode())

    def unregister(self, command: Command) -> Command:
        header = command.header(UnregisterClientRequest)
        if header.consumer_group and self.members.get(header.consumer_group, {}).pop(header.client_id, None):
            self.notify(header.consumer_group)
        return command.answer(0)

    def forget_link(self, stream: trio.abc.Stream) -> None:
        """A client's connection ended: its memberships end, and the other members are notified."""
        for group, members in self.members.items():
            for client_id in [each for each, theirs in members.items() if theirs is stream]:
                del members[client_id]
                self.notify(group)

    async def status(self, command: Command) -> Command:
        """Ask one member which queues it has."""
        header = command.header(GetConsumerStatusRequest)
        member = header.client_addr or ""
        table: dict[str, dict[MessageQueue, int]] = {}
        stream = self.members.get(header.group, {}).get(member)
        if stream is not None:
            request = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
            request.opaque = next(self.numbers)
            self.statuses[request.opaque] = answered = trio.Event()
            await self.broker.push_to(stream, request)
            with trio.move_on_after(5):
                await answered.wait()
                table[member] = GetConsumerStatusBody.decode(self.answers.pop(request.opaque).body).message_queue_table
        return command.answer(0, body=GetConsumerStatusBody(consumer_table=table).encode())

    def takes_status(self, answer: Command) -> bool:
        waiter = self.statuses.pop(answer.opaque, None)
        if waiter is None:
            return False
        self.answers[answer.opaque] = answer
        waiter.set()
        return True

    # --- locks -----------------------------------------------------------------------------------------------

    def lock(self, command: Command) -> Command:
        body = LockBatchRequestBody.decode(command.body)
        now = trio.current_time()
        self.lock_requests.append((now, "lock", body.client_id or "", tuple(body.mq_set)))
        granted = []
        for queue in body.mq_set:
            owner, until = self.locks.get((body.consumer_group or "", queue), ("", 0.0))
            if owner in ("", body.client_id) or until < now:
                self.locks[body.consumer_group or "", queue] = (body.client_id or "", now + LOCK_S)
                granted.append(queue)
        return command.answer(0, body=LockBatchResponseBody(lock_ok_mq_set=granted).encode())

    def unlock(self, command: Command) -> Command:
        body = UnlockBatchRequestBody.decode(command.body)
        self.lock_requests.append((trio.current_time(), "unlock", body.client_id or "", tuple(body.mq_set)))
        for queue in body.mq_set:
            if self.locks.get((body.consumer_group or "", queue), ("", 0.0))[0] == body.client_id:
                del self.locks[body.consumer_group or "", queue]
        return command.answer(0)

    # --- retries ---------------------------------------------------------------------------------------------

    def send_back(self, command: Command) -> Command:
        header = command.header(ConsumerSendMsgBackRequest)
        record = self.broker.record_at(header.offset)
        if record is None:
            return command.answer(1, "look message by offset failed")
        properties = record.properties
        properties.setdefault("RETRY_TOPIC", record.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", record.offset_message_id)
        level = header.delay_level or 3 + record.reconsume_times
        dead = record.reconsume_times >= (header.max_reconsume_times or 16) or header.delay_level < 0
        self.store_copy(header.group, record.body, properties, record.reconsume_times + 1, 0 if dead else level, dead)
        return command.answer(0)

    def store_copy(
        self, group: str, body: bytes, properties: dict[str, str], times: int, level: int, dead: bool
    ) -> None:
        topic = f"%DLQ%{group}" if dead else f"%RETRY%{group}"
        self.broker.network.spawn(self.store_later, self.levels_s[level], topic, body, properties, times)

    async def store_later(
        self, delay_s: float, topic: str, body: bytes, properties: dict[str, str], times: int
    ) -> None:
        await trio.sleep(delay_s)
        self.ensure_topic(topic)
        self.broker.store(topic, 0, body, encode_properties(properties).encode(), reconsume_times=times)

    def takes_send(self, header: Any, body: bytes) -> bool:
        """A copy sent to a retry topic is delayed by the number of its failures."""
        if not header.topic.startswith("%RETRY%"):
            return False
        properties = decode_properties(header.properties or "")
        group = header.topic.removeprefix("%RETRY%")
        dead = header.max_reconsume_times is not None and (header.reconsume_times or 0) >= header.max_reconsume_times
        level = int(properties.pop("DELAY", "0"))
        self.store_copy(group, body, properties, header.reconsume_times or 0, 0 if dead else level, dead)
        return True

    # --- pulls -----------------------------------------------------------------------------------------------

    def arrived(self) -> None:
        self.arrival.set()
        self.arrival = trio.Event()

    def pull(self, command: Command) -> Command | Awaitable[Command]:
        header = command.header(PullMessageRequest)
        if header.sys_flag & flags.PULL_COMMIT_OFFSET and self.broker.broker_id == 0:
            self.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        answer = self.look(command, header)
        if answer.code == 19 and header.sys_flag & flags.PULL_SUSPEND:
            return self.hold(command, header)
        return answer

    async def hold(self, command: Command, header: PullMessageRequest) -> Command:
        with trio.move_on_after(header.suspend_timeout_millis / 1000):
            while True:
                arrival = self.arrival
                answer = self.look(command, header)
                if answer.code != 19:
                    return answer
                await arrival.wait()
        return self.look(command, header)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.broker.offsets[group, topic, queue_id] = offset
        self.commits.append((group, topic, queue_id, offset))

    def look(self, command: Command, header: PullMessageRequest) -> Command:
        if header.sys_flag & flags.PULL_SUBSCRIPTION:
            text, kind = header.subscription, header.expression_type
        else:
            known = self.subscriptions.get((header.consumer_group, header.topic))
            if known is None:
                return command.answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
            if known.sub_version < header.sub_version:
                return command.answer(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
            text, kind = known.sub_string, known.expression_type
        queue = self.broker.queues[header.topic, header.queue_id]
        low = self.broker.min_offsets.get((header.topic, header.queue_id), 0)
        answer = PullMessageResponse(
            suggest_which_broker_id=self.broker.suggests,
            next_begin_offset=header.queue_offset,
            min_offset=low,
            max_offset=len(queue),
        )
        if header.queue_offset > len(queue) or header.queue_offset < low:
            if self.broker.broker_id:
                # A slave may be behind: it does not decide on offsets, and sends the reader home.
                return command.answer(20, "OFFSET_OVERFLOW_BADLY", answer)
            answer.next_begin_offset = low if header.queue_offset < low else len(queue)
            return command.answer(21, "OFFSET_OVERFLOW_BADLY", answer)
        if header.queue_offset == len(queue):
            return command.answer(19, "OFFSET_OVERFLOW_ONE", answer)
        window = queue[header.queue_offset : header.queue_offset + header.max_msg_nums]
        answer.next_begin_offset = header.queue_offset + len(window)
        # A deleted message leaves its entry behind for a while; entries without one are passed over.
        window = [each for each in window if each]
        if header.sys_flag & flags.PULL_CLASS_FILTER:
            found = window
        elif kind == "SQL92":
            found = [each for each in window if self.sql(text or "", RecordView(each))]
        else:
            wanted = parse_subscription(text)
            found = [each for each in window if not wanted.codes or _code(each) in wanted.codes]
        if not found:
            return command.answer(20, "NO_MATCHED_MESSAGE", answer)
        return command.answer(0, "FOUND", answer, body=b"".join(found))


def _code(record: bytes) -> int:
    return tags_code(RecordView(record).tags)


def record_of(
    topic: str, queue_id: int, body: bytes, properties: bytes, *, queue_offset: int, physical_offset: int, times: int
) -> bytes:
    return encode_record(
        topic.encode(),
        queue_id,
        body,
        properties,
        flag=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        born_host=b"\x7f\0\0\1\0\0\x9c\x40",
        store_host=b"\x7f\0\0\1\0\0\x2a\x9f",
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=1_700_000_000_000 + queue_offset,
        reconsume_times=times,
    )


class MemoryOffsets:
    """An offset store of this process; the virtual clock would jump over the threads that write files."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue, /) -> int | None:
        await trio.lowlevel.checkpoint()
        return self.offsets.get(queue)

    async def commit(self, offsets: Any, /) -> None:
        await trio.lowlevel.checkpoint()
        self.offsets.update(offsets)


async def until(condition: Callable[[], object], seconds: float = 600) -> None:
    """Wait until something holds; its causes have no event for tests."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - conditions live in the fake broker
            await trio.sleep(0.05)
