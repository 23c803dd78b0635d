"""No request to a broker takes the loop for long, however many topics, groups, offsets and clients there are.

Work is counted in lines of Python, so the bounds hold on any machine: 150,000 lines take some ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import trio
from loop_lines import lines_of, lines_of_slices, lines_of_turns

from triomq_protocol.codes import RequestCode as Code
from triomq_protocol.errors import BodyError
from triomq_protocol.record.batch import encode_batch_element, split_batch
from triomq_protocol.requests import (
    CheckClientConfigBody,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    SubscriptionGroupConfig,
    UnlockBatchRequestBody,
)
from triomq_protocol.requests.heartbeat import ConsumerData, ProducerData, SubscriptionData
from triomq_protocol.requests.registration import TopicConfig
from triomq_protocol.wire.command import Command
from triomq_server.broker.admin.ha import CHANGE_ROLE, CUT_LOG, HA_STATUS
from triomq_server.broker.requests.clients import MOST_GROUPS, link_closed
from triomq_server.broker.tables.notifications import STEPS_PER_TURN
from triomq_server.replication.log_copy import READ_LOG
from triomq_server.store import Arrival

MOST_LINES = 150_000
"""Of one slice."""

LARGE = 2000
QUEUES = 1500

TOPIC = {"topic": "T0", "queueId": "0", "consumerGroup": "G0", "group": "G0"}
SEND = {
    "producerGroup": "PG", "topic": "T0", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0",
}  # fmt: skip
SHORT = dict(zip("abcdefghij", SEND.values(), strict=True))
PULL = {
    "consumerGroup": "G0", "topic": "T0", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
LOCKED = [MessageQueue("T0", "broker-a", queue_id) for queue_id in range(8)]
HEARTBEAT = HeartbeatData(
    client_id="c",
    consumer_data_set=[ConsumerData(group_name="G0", subscription_data_set=[SubscriptionData(topic="T0")])],
    producer_data_set=[ProducerData(group_name="P0")],
)


REQUESTS: dict[int, tuple[dict[str, str], Callable[[], bytes]]] = {
    Code.SEND_MESSAGE: (SEND, lambda: b"x"),
    Code.SEND_MESSAGE_V2: (SHORT, lambda: b"x"),
    Code.SEND_BATCH_MESSAGE: ({**SHORT, "m": "true"}, lambda: b""),
    Code.CONSUMER_SEND_MSG_BACK: (
        {"offset": "0", "group": "G0", "delayLevel": "0", "originTopic": "T0", "maxReconsumeTimes": "3"},
        bytes,
    ),
    Code.PULL_MESSAGE: (PULL, bytes),
    Code.LITE_PULL_MESSAGE: (PULL, bytes),
    Code.QUERY_CONSUMER_OFFSET: (TOPIC, bytes),
    Code.UPDATE_CONSUMER_OFFSET: ({**TOPIC, "commitOffset": "1"}, bytes),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: ({**TOPIC, "timestamp": "1"}, bytes),
    Code.GET_MAX_OFFSET: (TOPIC, bytes),
    Code.GET_MIN_OFFSET: (TOPIC, bytes),
    Code.GET_EARLIEST_MSG_STORETIME: (TOPIC, bytes),
    Code.GET_ALL_CONSUMER_OFFSET: ({}, bytes),
    Code.GET_ALL_DELAY_OFFSET: ({}, bytes),
    Code.HEART_BEAT: ({}, HEARTBEAT.encode),
    Code.UNREGISTER_CLIENT: ({"clientID": "c", "consumerGroup": "G0", "producerGroup": "P0"}, bytes),
    Code.GET_CONSUMER_LIST_BY_GROUP: ({"consumerGroup": "G1"}, bytes),
    Code.CHECK_CLIENT_CONFIG: ({}, CheckClientConfigBody(client_id="c", group="G0").encode),
    Code.LOCK_BATCH_MQ: ({}, LockBatchRequestBody(client_id="c", consumer_group="G0", mq_set=LOCKED).encode),
    Code.UNLOCK_BATCH_MQ: ({}, UnlockBatchRequestBody(client_id="c", consumer_group="G0", mq_set=LOCKED).encode),
    Code.QUERY_MESSAGE: (
        {"topic": "T0", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
        bytes,
    ),
    Code.VIEW_MESSAGE_BY_ID: ({"offset": "0"}, bytes),
    Code.GET_ALL_TOPIC_CONFIG: ({}, bytes),
    Code.GET_TOPIC_CONFIG: (TOPIC, bytes),
    Code.GET_TOPIC_STATS_INFO: (TOPIC, bytes),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ({}, bytes),
    Code.DELETE_EXPIRED_COMMITLOG: ({}, bytes),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ({}, bytes),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: ({"group": "G0"}, bytes),
    Code.SET_MESSAGE_REQUEST_MODE: ({}, lambda: b'{"mode":"PULL"}'),
    Code.GET_CONSUMER_CONNECTION_LIST: ({"consumerGroup": "G0"}, bytes),
    Code.GET_PRODUCER_CONNECTION_LIST: ({"producerGroup": "P0"}, bytes),
    Code.GET_ALL_PRODUCER_INFO: ({}, bytes),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: (TOPIC, bytes),
    Code.QUERY_TOPICS_BY_CONSUMER: ({"group": "G0"}, bytes),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: ({"group": "G0", "topic": "T0"}, bytes),
    Code.GET_CONSUME_STATS: ({"consumerGroup": "G0"}, bytes),
    Code.QUERY_CONSUME_TIME_SPAN: (TOPIC, bytes),
    Code.GET_BROKER_CONSUME_STATS: ({"isOrder": "false"}, bytes),
    Code.QUERY_CORRECTION_OFFSET: ({"topic": "T0", "compareGroup": "G0"}, bytes),
    Code.CLONE_GROUP_OFFSET: ({"srcGroup": "G0", "destGroup": "H", "offline": "true"}, bytes),
    Code.GET_BROKER_CONFIG: ({}, bytes),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: ({}, bytes),
    Code.DELETE_ACL_CONFIG: ({}, bytes),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ({}, bytes),
    Code.GET_BROKER_CLUSTER_ACL_INFO: ({}, bytes),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: ({}, bytes),
    Code.GET_BROKER_RUNTIME_INFO: ({}, bytes),
    Code.VIEW_BROKER_STATS_DATA: ({"statsName": "TOPIC_PUT_NUMS", "statsKey": "T0"}, bytes),
    Code.QUERY_CONSUME_QUEUE: ({"topic": "T0", "queueId": "0", "index": "0", "count": "100000"}, bytes),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: ({**TOPIC, "timestamp": "-1", "isForce": "true"}, bytes),
    Code.END_TRANSACTION: (
        {
            "producerGroup": "P0",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "commitOrRollback": "8",
            "msgId": "0" * 32,
        },
        bytes,
    ),
    Code.RESUME_CHECK_HALF_MESSAGE: ({"msgId": "7F0000010000540600000000000000FF"}, bytes),
    HA_STATUS: ({}, bytes),
    Code.GET_BROKER_HA_STATUS: ({}, bytes),
    READ_LOG: ({"offset": "0", "mostBytes": "1048576"}, bytes),
}
"""A request that finds much of what there is, for every code that is answered without waiting."""

BOUNDED = {
    Code.HEART_BEAT: "MOST_GROUPS, MOST_SUBSCRIPTIONS, MOST_TAGS and MOST_FILTER_CHARACTERS bound it; members are notified in turns",
    Code.GET_CONSUMER_LIST_BY_GROUP: "a list of ids of at most maxConnections members: 10,000 take 5 ms",
    Code.GET_BROKER_RUNTIME_INFO: "sums MOST_COUNTERS counters: 20,000 take 4 ms",
    Code.UNLOCK_BATCH_MQ: "10,000 queues in a request",
}
"""Codes whose work grows with a table that has a bound, and why it takes little time at the bound."""

WAITING = {
    Code.SEND_REPLY_MESSAGE: "one message",
    Code.SEND_REPLY_MESSAGE_V2: "one message",
    Code.UPDATE_AND_CREATE_TOPIC: "changes one topic; the table is encoded and written by a worker thread",
    Code.UPDATE_AND_CREATE_TOPIC_LIST: "TOPICS_PER_TURN topics in a turn, 1000 in a request",
    Code.DELETE_TOPIC_IN_BROKER: "REMOVED_PER_TURN queues in a turn; the tables are written by a worker thread",
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: "QUEUES_PER_TURN queues in a turn, REMOVED_PER_TURN of those that are removed",
    Code.CLEAN_UNUSED_TOPIC: "QUEUES_PER_TURN queues in a turn, REMOVED_PER_TURN of those that are removed",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "changes one group; the table is written by a worker thread",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "GROUPS_PER_SLICE groups in a turn",
    Code.DELETE_SUBSCRIPTIONGROUP: "removes offsets in slices; the table is written by a worker thread",
    Code.UPDATE_BROKER_CONFIG: "reads MOST_SETTINGS_BYTES at most",
    Code.GET_CONSUMER_RUNNING_INFO: "asks one client",
    Code.CONSUME_MESSAGE_DIRECTLY: "asks one client",
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "asks MEMBERS_PER_TURN members in a turn, reads long answers in a thread",
    CHANGE_ROLE: "waits between its steps",
    CUT_LOG: "waits between its steps",
}
"""Codes of coroutine functions, and why they take little time between their waits."""


def fill(desk: Any, client_link: Any, size: int, queues: int) -> None:
    """So many topics, groups, offsets and members; topic T0 has many queues, groups G1 and P0 many members."""
    broker = desk.broker
    broker.topics.table["T0"] = TopicConfig(topic_name="T0", read_queue_nums=queues, write_queue_nums=queues)
    desk.store("T0", 0, *range(1000, 1000 + 40), keys="k")
    for number in range(1, size):
        broker.topics.table[f"T{number}"] = TopicConfig(topic_name=f"T{number}", read_queue_nums=1, write_queue_nums=1)
        broker.groups.table[f"G{number}"] = SubscriptionGroupConfig(group_name=f"G{number}")
        broker.offsets.commit(f"G{number}", "T0" if number < 5 else f"T{number}", 0, 1)
        broker.offsets.commit("G0", f"T{number}", 0, 1)
        broker.stats.count_put(f"T{number}", 1, 1)
    broker.groups.find("G0")
    for queue_id in range(queues):
        broker.offsets.commit("G0", "T0", queue_id, 1)
    for number in range(size):
        consumers = [ConsumerData(group_name=name, subscription_data_set=[SubscriptionData(topic="T0")])
                     for name in ("G1", f"O{number}")]  # fmt: skip
        data = HeartbeatData(
            client_id=f"c{number}", consumer_data_set=consumers, producer_data_set=[ProducerData(group_name="P0")]
        )
        if number < 20 or number % 10 == 0:
            desk.handlers.plain[Code.HEART_BEAT](client_link(), Command.request(34, body=data.encode()))
    desk.handlers.plain[Code.HEART_BEAT](client_link(), command(Code.HEART_BEAT))


def command(code: int) -> Command:
    fields, made = REQUESTS[code]
    return Command.request(code, fields=fields, body=made())


async def test_every_code_is_in_the_tables_of_this_file(desk: Any) -> None:
    assert {*desk.handlers.plain, *desk.handlers.sliced} == set(REQUESTS)
    assert set(desk.handlers.waiting) == set(WAITING)
    assert set(BOUNDED) <= set(desk.handlers.plain)
    assert all([*WAITING.values(), *BOUNDED.values()])


async def test_a_request_takes_little_time_however_much_there_is(
    desk: Any, new_desk: Callable[..., Any], client_link: Any
) -> None:
    small: dict[int, int] = {}
    async with new_desk() as other:
        fill(other, client_link, 30, 30)
        for code in other.handlers.plain:
            small[code] = lines_of(lambda c=code: other.handlers.plain[c](client_link(), command(c)))
    fill(desk, client_link, LARGE, QUEUES)
    found = {}
    for code in REQUESTS:
        if code in desk.handlers.sliced:
            lines = max(lines_of_slices(desk.handlers.sliced[code](client_link(), command(code))))
            if lines > MOST_LINES:
                found[code] = f"{lines} lines in one slice"
            continue
        lines = lines_of(lambda c=code: desk.handlers.plain[c](client_link(), command(c)))
        if lines > (MOST_LINES if code in BOUNDED else small[code] + 100):
            found[code] = f"{lines} lines, and {small[code]} with small tables: serve the code in slices"
    assert found == {}


def part(properties: bytes) -> bytes:
    return encode_batch_element(b"", properties)


LARGE_FILES = {
    "mapped_file_size_commit_log": 1 << 23,
    "mapped_file_size_consume_queue": 1 << 20,
    "max_index_num": 1 << 18,
}
LARGE_BATCHES = {
    "tiny messages": part(b"") * 40_000,
    "keys": part(b"KEYS\x01" + b"a " * 16_000) * 4,
    "unique keys and tags": b"".join([part(b"UNIQ_KEY\x01%d\x02TAGS\x01%d" % (n, n)) for n in range(10_000)]),
    "names in values": part(b"A\x01" + b"xKEYS\x01" * 5000) * 8,
}
"""Bodies of a batch whose parts are small, or hold many small things."""


@pytest.mark.parametrize("name", LARGE_BATCHES)
async def test_a_batch_takes_little_time_whatever_is_in_it(
    new_desk: Callable[..., Any], client_link: Any, name: str
) -> None:
    link, body = client_link(), LARGE_BATCHES[name]
    count = len(split_batch(body, b"").elements)
    request = Command.request(Code.SEND_BATCH_MESSAGE, fields={**SHORT, "m": "true"}, body=body)
    arrivals: list[Arrival] = []
    answers: list[Any] = []
    async with new_desk(**LARGE_FILES) as desk:
        store = desk.broker.store
        store.arrival_listeners.append(arrivals.append)
        lines = [lines_of(lambda: answers.append(desk.handlers.plain[Code.SEND_BATCH_MESSAGE](link, request)))]
        if isinstance(answers[0], Generator):
            lines += lines_of_slices(answers[0])
        lines.append(lines_of(store.notify_arrivals))
        while store.dispatcher.index_is_behind:
            await trio.lowlevel.checkpoint()
        assert store.queue_bounds("T0", 0) == (0, count)
    assert max(lines) < MOST_LINES
    assert max(arrival.next_offset for arrival in arrivals) == count
    assert len(arrivals) < 100


ENDED = object()

KEYS_OF_ONE = {"long": 16_000, "short": 120}
"""How many keys each message has; short ones are read at once, until very many wait."""


@pytest.mark.parametrize("length", KEYS_OF_ONE)
async def test_keys_of_many_messages_take_little_time(
    new_desk: Callable[..., Any], client_link: Any, length: str
) -> None:
    """Senders wait for the index when they are far ahead of it, so that a receive cannot bring more than it takes."""
    link, count = client_link(), KEYS_OF_ONE[length]
    keys = " ".join("abcdefghij"[n % 10] for n in range(count))
    request = Command.request(Code.SEND_MESSAGE, fields={**SEND, "properties": f"KEYS\x01{keys}"}, body=b"x")
    sent, waited = 640_000 // count, 0
    lines: list[int] = []
    answers: list[Any] = []
    async with new_desk(**{**LARGE_FILES, "max_index_num": 1 << 20, "mapped_file_size_commit_log": 1 << 24}) as desk:
        store = desk.broker.store
        for n in range(sent):
            lines.append(lines_of(lambda: answers.append(desk.handlers.plain[Code.SEND_MESSAGE](link, request))))
            if isinstance(answer := answers.pop(), Generator):
                waited += 1
                lines += lines_of_slices(answer)
            assert not store.dispatcher.is_far_behind or length == "short"
            if n % 400 == 399:  # the end of a long receive
                lines.append(lines_of(store.notify_arrivals))
        assert waited == sent if length == "long" else waited > 0
        while store.dispatcher.index_is_behind:
            lines.append(lines_of(store.notify_arrivals))
        assert sum(file.count - 1 for file in store.index.files) == sent * count
        assert store.queue_bounds("T0", 0) == (0, sent)
    assert max(lines) < 4 * MOST_LINES


async def test_usual_messages_do_not_wait_for_the_keys_of_others(
    new_desk: Callable[..., Any], client_link: Any
) -> None:
    def send(code: int, fields: dict[str, str], body: bytes) -> Any:
        return desk.handlers.plain[code](client_link(), Command.request(code, fields=fields, body=body))

    many = " ".join("abcdefghij"[n % 10] for n in range(16_000))
    batch = part(b"KEYS\x01" + b"a " * 16_000) * 4
    async with new_desk(**LARGE_FILES) as desk:
        store = desk.broker.store
        waiting = [send(Code.SEND_MESSAGE, {**SEND, "properties": f"KEYS\x01{many}"}, b"x") for _ in range(3)]
        waiting.append(send(Code.SEND_BATCH_MESSAGE, {**SHORT, "m": "true"}, batch))
        assert [next(one, ENDED) for one in waiting] == [None] * 4, "their keys are being read"
        for _ in range(100):
            assert isinstance(send(Code.SEND_MESSAGE, {**SEND, "properties": "KEYS\x01k"}, b"x"), bytes)
            waiting.append(send(Code.SEND_MESSAGE, {**SEND, "properties": f"KEYS\x01{'k ' * 200}"}, b"x"))
        for one in waiting:  # each waits for its own keys and those before, not for what comes later
            for _ in range(30):
                if next(one, ENDED) is ENDED:
                    break
            else:
                pytest.fail("it waits for others")
        while store.dispatcher.index_is_behind:
            store.notify_arrivals()
        assert sum(file.count - 1 for file in store.index.files) == 3 * 16_000 + 4 * 16_000 + 100 + 100 * 200


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_registration_of_very_many_topics_is_made_in_turns(desk: Any, compressed: bool) -> None:
    broker = desk.broker
    broker.config.compressed_register = compressed
    broker.topics.table.update({f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(10_000)})
    with lines_of_turns() as turns:
        request = await broker.registration.request(broker.topics.snapshot())
    assert request.body
    assert len(turns) > 3
    assert max(turns) < MOST_LINES


async def test_members_of_many_groups_are_notified_in_turns(desk: Any, client_link: Any) -> None:
    groups = [ConsumerData(group_name=f"g{number}") for number in range(100)]
    body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
    links = [client_link() for _ in range(20)]
    for link in links:
        desk.handlers.plain[Code.HEART_BEAT](link, Command.request(34, body=body))
    for link in links:
        link.notified.clear()
    link_closed(desk.broker, links[0])
    assert sum(len(link.notified) for link in links) <= STEPS_PER_TURN
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.broker.notifications.run)
        while any(len(link.notified) < 100 for link in links[1:]):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert {len({one.fields["consumerGroup"] for one in link.notified}) for link in links[1:]} == {100}


async def test_a_connection_has_a_limit_of_groups_over_all_its_heartbeats(desk: Any, client_link: Any) -> None:
    def beat(link: Any, begin: int, end: int) -> None:
        groups = [ConsumerData(group_name=f"g{number}") for number in range(begin, end)]
        body = HeartbeatData(client_id="c", consumer_data_set=groups).encode()
        desk.handlers.plain[Code.HEART_BEAT](link, Command.request(34, body=body))

    link = client_link()
    beat(link, 0, MOST_GROUPS)
    beat(link, 0, MOST_GROUPS)
    with pytest.raises(BodyError, match="over one connection"):
        beat(link, MOST_GROUPS, MOST_GROUPS + 1)
    beat(client_link(), MOST_GROUPS, MOST_GROUPS + 1)
    assert len(desk.broker.clients.consumers) == MOST_GROUPS + 1
