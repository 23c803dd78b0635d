"""Sends over the wire: every check with its code and remark, and what ends up in the log
(docs/protocol/broker-api.md §4)."""

from __future__ import annotations

from typing import Any

import pytest
from memory_disk import MemoryDisk

from triomq_protocol.codes import RequestCode
from triomq_protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.record.view import RecordView, iter_records
from triomq_protocol.requests.admin import CreateTopicRequest, SubscriptionGroupConfig
from triomq_protocol.wire.command import Command

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)
NEW_TOPIC = (
    "TopicConfig [topicName=New, readQueueNums=4, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, "
    "topicSysFlag=0, order=false]"
)
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def stored(peer: Any, topic: str = "T1", offset: int = 0, queue_id: int = 0) -> RecordView:
    """The one record at a queue offset."""
    answer = await peer.pull(topic, offset, queue_id=queue_id, max_msg_nums=1)
    assert answer.code == 0, answer.remark
    (record,) = iter_records(answer.body)
    return record


async def create_topic(peer: Any, topic: str, *, queues: int = 2, perm: int = 6, **fields: Any) -> None:
    header = CreateTopicRequest(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=perm,
        topic_filter_type=fields.pop("topic_filter_type", "SINGLE_TAG"),
        topic_sys_flag=0,
        order=False,
    )
    answer = await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    assert answer.code == 0


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": ""}, 1, "The specified topic is blank."),
        ({"topic": "a b"}, 1, "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ({"topic": "t" * 128}, 1, "The specified topic is longer than topic max length."),
        ({"topic": "SELF_TEST_TOPIC"}, 16, "Sending message to topic[SELF_TEST_TOPIC] is forbidden."),
        ({"topic": "OFFSET_MOVED_EVENT"}, 16, "Sending message to topic[OFFSET_MOVED_EVENT] is forbidden."),
        (
            {"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"},
            16,
            "Sending message to topic[RMQ_SYS_TRANS_OP_HALF_TOPIC] is forbidden.",
        ),
        ({"topic": "New", "default_topic": "nosuch"}, 17, f"topic[New] not exist, apply first please!{FAQ}"),
        ({"topic": "New", "default_topic": "BenchmarkTest"}, 17, f"topic[New] not exist, apply first please!{FAQ}"),
        (
            {"topic": "New", "queue_id": 4},
            1,
            f"request queueId[4] is illegal, {NEW_TOPIC} Producer: {{peer}}",
        ),
        ({"topic": "New", "body": bytes(4194305)}, 13, ILLEGAL),
        ({"topic": "New", "properties": "P\x01" + "v" * 33000}, 13, ILLEGAL),
        ({"topic": "New", "properties": "P\x01" + "é" * 17000}, 13, ILLEGAL),
        ({"topic": "New", "properties": "DELAY\x01soon"}, 1, "property DELAY is not a number: 'soon'"),
    ],
)
@pytest.mark.parametrize("code_", [310, 10])
async def test_refusals(open_broker: Any, fields: dict[str, Any], code: int, remark: str, code_: int) -> None:
    async with open_broker(mappedFileSizeCommitLog=8 << 20) as broker:
        peer = await broker.peer()
        answer = await peer.put(code=code_, **fields)
    assert (answer.code, answer.fields) == (code, REGION)
    assert answer.remark == remark.format(peer="127.0.0.1:40001")


@pytest.mark.parametrize(("file_bytes", "refused"), [(1 << 20, True), (8 << 20, False)])
async def test_a_message_that_no_file_of_the_log_can_hold_is_refused_with_the_reason(
    open_broker: Any, file_bytes: int, refused: bool
) -> None:
    async with open_broker(mappedFileSizeCommitLog=file_bytes) as broker:
        peer = await broker.peer()
        answer = await peer.put("New", b"x" * (1 << 20))
        assert answer.code == (13 if refused else 0)
        assert (await peer.put("New", b"x")).code == 0
    if refused:
        assert answer.remark == f"{ILLEGAL} A file of the log holds 1048576B (mappedFileSizeCommitLog)."


async def test_a_request_for_no_queues_gets_none(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.put("New", default_topic_queue_nums=0, queue_id=-1)
    assert answer.code == 1


@pytest.mark.parametrize("code", [10, 310])
async def test_a_new_topic_needs_the_number_of_queues_a_known_one_does_not(open_broker: Any, code: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        refused = await peer.put("New", code=code, default_topic_queue_nums=None)
        assert (refused.code, "'defaultTopicQueueNums' is missing" in refused.remark) == (1, True)
        assert (await peer.put("New", code=code)).code == 0
        assert (await peer.put("New", code=code, default_topic_queue_nums=None)).code == 0


async def test_sends_are_refused_until_the_latest_time_that_the_setting_takes(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        key, most = "startAcceptSendRequestTimeStamp", 253_370_764_800_000
        for value, code in (((1 << 63) - 1, 1), (most + 1, 1), (most, 0)):
            assert (await peer.ask(Command.request(25, body=b"%s=%d\n" % (key.encode(), value)))).code == code
        answer = await peer.put()
    assert answer.code == 1
    assert answer.remark.startswith("broker unable to service, until 999")


async def test_requests_before_the_service_time(open_broker: Any) -> None:
    async with open_broker(startAcceptSendRequestTimeStamp=4_000_000_000_123) as broker:
        answer = await (await broker.peer()).put()
    assert answer.code == 1
    assert answer.remark.startswith("broker unable to service, until 2096-10-0")
    assert answer.remark.endswith(",123")


async def test_a_broker_without_write_permission_refuses_order_topics_only(open_broker: Any) -> None:
    disk = MemoryDisk()
    disk.make_directory("/store/config")
    disk.write("/store/config/topics.json", b'{"topicConfigTable":{"Ordered":{"topicName":"Ordered","order":true}}}')
    async with open_broker(brokerPermission=4, disk=disk) as broker:
        peer = await broker.peer()
        assert (await peer.put("Plain")).code == 0
        answer = await peer.put("Ordered")
    assert (answer.code, answer.remark) == (16, "the broker[127.0.0.1] sending message is forbidden")


async def test_a_topic_without_write_permission_is_written_to(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await create_topic(peer, "RO", perm=4)
        assert (await peer.put("RO")).code == 0


async def test_what_is_stored(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.put(
            body=b"payload",
            queue_id=2,
            sys_flag=1,
            flag=9,
            reconsume_times=3,
            properties="A\x01b\x02WAIT\x01true\x02TAGS\x01t",
        )
        record = await stored(peer, queue_id=2)
    assert answer.fields == {"msgId": "7F00000100002A9F0000000000000000", "queueId": "2", "queueOffset": "0", **REGION}
    assert record.properties == {"A": "b", "TAGS": "t", "CLUSTER": "C1"}
    assert (record.topic, record.body, record.queue_id, record.flag) == ("T1", b"payload", 2, 9)
    assert (record.sys_flag, record.reconsume_times, record.born_timestamp) == (1, 3, 1_700_000_000_000)
    assert (record.born_host, record.store_host) == (("127.0.0.1", 40001), ("127.0.0.1", 10911))
    assert record.store_timestamp >= 1_795_000_000_000


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (None, {}),
        ("", {}),
        ("A\x01b\x02", {"A": "b"}),
        ("WAIT\x01false", {}),
        ("CLUSTER\x01other\x02A\x01b", {"A": "b"}),
        ("A\x01WAIT\x02X\x01DELAYED", {"A": "WAIT", "X": "DELAYED"}),
        ("A\x01DELAY\x02WAIT\x01true", {"A": "DELAY"}),
        ("A\x01größe 😀", {"A": "größe 😀"}),
    ],
)
async def test_properties_of_plain_messages(open_broker: Any, sent: str | None, kept: dict[str, str]) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        assert (await peer.put(properties=sent)).code == 0
        record = await stored(peer)
    assert record.properties == {**kept, "CLUSTER": "C1"}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a\x01b\x02c\x01", b"a\x01b\x02CLUSTER\x01C1"),
        ("a\x01\x02c\x01d", b"c\x01d\x02CLUSTER\x01C1"),
        ("\x01v\x02c\x01d", b"c\x01d\x02CLUSTER\x01C1"),
        ("abc\x02\x02c\x01d\x02", b"c\x01d\x02CLUSTER\x01C1"),
        ("c\x01d\x02c\x01e", b"c\x01e\x02CLUSTER\x01C1"),
        ("c\x01", b"CLUSTER\x01C1"),
        (f"UNIQ_KEY\x01{'A' * 32}\x02c\x01", b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02CLUSTER\x01C1"),
        ("\x02".join(f"p{number}\x01v" for number in range(40)), None),
    ],
)
async def test_nothing_without_name_or_value_is_stored(open_broker: Any, sent: str, kept: bytes | None) -> None:
    """Twice: the second time the shape of a unique key's properties is known."""
    async with open_broker() as broker:
        peer = await broker.peer()
        for offset in range(2):
            assert (await peer.put(properties=sent)).code == 0
            body = (await peer.pull(offset=offset)).body
            assert body.endswith(kept or sent.encode() + b"\x02CLUSTER\x01C1")


@pytest.mark.parametrize("key", ["k1", "k2", "7F0000017ADB5FFD2B27682054930000"])
async def test_messages_are_found_by_their_keys(open_broker: Any, key: str) -> None:
    query = {"topic": "T1", "key": key, "maxNum": "5", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(properties="KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000017ADB5FFD2B27682054930000")
        answer = await peer.ask(Command.request(RequestCode.QUERY_MESSAGE, fields=query))
    assert answer.code == 0
    assert [record.body for record in iter_records(answer.body)] == [b"hello"]


async def test_multi_tag_topics_mark_their_messages(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await create_topic(peer, "Multi", topic_filter_type="MULTI_TAG")
        await peer.put("Multi", sys_flag=1)
        await peer.put("Multi", encode_batch_element(b"x", b""), code=320, batch=True)
        flags = [(await stored(peer, "Multi", n)).sys_flag for n in (0, 1)]
    assert flags == [3, 2]


async def test_oneway_is_stored_and_not_answered(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.send(peer.put_request(oneway=True))
        await peer.send(peer.put_request("a b", oneway=True))
        assert (await stored(peer)).body == b"hello"


async def test_auto_created_topics_are_persisted_before_the_answer(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put("New", default_topic_queue_nums=3)
        assert b'"New":{' in broker.disk.read("/store/config/topics.json")
        topics = await peer.ask(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert b'"New":{"order":false,"perm":6,"readQueueNums":3,' in topics.body


# -- retry and dead letters


@pytest.mark.parametrize(
    ("times", "fields", "version", "dead"),
    [
        (15, {}, 407, False),
        (16, {}, 407, True),
        (3, {"max_reconsume_times": 3}, 407, True),
        (2, {"max_reconsume_times": 3}, 407, False),
        (3, {"max_reconsume_times": 3}, 120, False),
    ],
)
async def test_retry_messages_become_dead_letters(
    open_broker: Any, times: int, fields: dict[str, Any], version: int, dead: bool
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.put(
            "%RETRY%CG",
            properties="DELAY\x013\x02A\x01b",
            reconsume_times=times,
            version=version,
            default_topic="nosuch",
            **fields,
        )
        assert answer.code == 0
        record = await stored(peer, *(("%DLQ%CG",) if dead else ("SCHEDULE_TOPIC_XXXX", 0, 2)))
    if dead:
        assert record.properties == {"A": "b", "DELAY": "0", "CLUSTER": "C1"}
    else:
        assert record.properties["REAL_TOPIC"] == "%RETRY%CG"


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "__STARTDELIVERTIME"])
@pytest.mark.parametrize(("times", "dead"), [(1, False), (16, True)])
async def test_a_retry_keeps_its_time_of_delivery(open_broker: Any, name: str, times: int, dead: bool) -> None:
    """Ordered consumers of Java send it so; if it were refused, its queue would stand still."""
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = {"properties": f"{name}\x011000\x02RETRY_TOPIC\x01T", "reconsume_times": times}
        answer = await peer.put("%RETRY%CG", default_topic="nosuch", **sent)
        assert answer.code == 0
        record = await stored(peer, "%DLQ%CG" if dead else "%RETRY%CG")
    assert record.properties[name] == "1000"


async def test_retry_of_an_unknown_group(open_broker: Any) -> None:
    async with open_broker(autoCreateSubscriptionGroup="false") as broker:
        answer = await (await broker.peer()).put("%RETRY%CG")
    assert (answer.code, answer.remark) == (26, f"subscription group not exist, CG {FAQ}")


# -- batches


def batch(*bodies: bytes) -> bytes:
    return b"".join(encode_batch_element(body, b"KEYS\x01k", flag=n) for n, body in enumerate(bodies))


async def test_batch(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        answer = await peer.put(
            body=batch(b"a", b"b"), code=310, batch=True, properties="WAIT\x01true", reconsume_times=2
        )
        records = [await stored(peer, offset=offset) for offset in (1, 2)]
    assert answer.code == 0
    assert answer.fields["queueOffset"] == "1"
    assert answer.fields["msgId"].split(",") == [record.offset_message_id for record in records]
    assert [(r.body, r.flag, r.reconsume_times) for r in records] == [(b"a", 0, 2), (b"b", 1, 2)]
    assert records[0].properties == {"KEYS": "k", "WAIT": "true", "CLUSTER": "C1"}


async def test_a_large_batch(open_broker: Any) -> None:
    async with open_broker(mappedFileSizeCommitLog=8 << 20) as broker:
        peer, other = await broker.peer(), await broker.peer()
        await peer.put()
        held = await other.send(other.pull_request(offset=1, sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION, max_msg_nums=3))
        bodies = [b"%d" % n for n in range(5000)]
        request = peer.put_request(body=batch(*bodies), code=320, batch=True, properties="WAIT\x01true")
        await peer.send(request)
        await peer.send(peer.put_request(body=b"behind"))
        answer, behind = await peer.receive(), await peer.receive()
        woken = await other.receive()
        records = [await stored(peer, offset=offset) for offset in (1, 5000, 5001)]
    assert (answer.code, answer.fields["queueOffset"], behind.fields["queueOffset"]) == (0, "1", "5001")
    ids = answer.fields["msgId"].split(",")
    assert len(ids) == 5000
    assert [ids[0], ids[4999], behind.fields["msgId"]] == [record.offset_message_id for record in records]
    assert [record.body for record in records] == [b"0", b"4999", b"behind"]
    assert (woken.opaque, woken.code) == (held, 0)


async def test_the_largest_number_of_messages_in_a_batch(open_broker: Any) -> None:
    async with open_broker(mappedFileSizeCommitLog=16 << 20) as broker:
        peer = await broker.peer()
        element = encode_batch_element(b"", b"")
        refused = await peer.put(body=element * 65_537, code=320, batch=True)
        answer = await peer.put(body=element * 65_536, code=320, batch=True)
        behind = await peer.put(body=b"behind")
    assert "65537 messages; at most 65536 can be stored at once" in refused.remark
    assert (answer.code, behind.fields["queueOffset"]) == (0, "65536")


async def test_a_large_one_way_batch_is_stored(open_broker: Any) -> None:
    async with open_broker(mappedFileSizeCommitLog=8 << 20) as broker:
        peer = await broker.peer()
        request = peer.put_request(body=batch(*[b"%d" % n for n in range(5000)]), code=320, batch=True)
        request.flag |= 2
        await peer.send(request)
        answer = await peer.put(body=b"behind")
    assert (answer.code, answer.fields["queueOffset"]) == (0, "5000")


async def test_messages_with_many_keys_are_answered_when_the_index_has_them(open_broker: Any) -> None:
    async with open_broker(maxIndexNum=1 << 18, mappedFileSizeCommitLog=8 << 20) as broker:
        peer = await broker.peer()
        requests = [
            peer.put_request(body=b"x", properties=f"KEYS\x01{' '.join(f'{m}-{n}' for n in range(3000))}")
            for m in range(10)
        ]
        one_way = peer.put_request(body=b"y", properties=f"KEYS\x01{' '.join(map(str, range(3000)))}")
        one_way.flag |= 2
        for request in (*requests, one_way):
            await peer.send(request)
        answers = [await peer.receive() for _ in requests]
        behind = await peer.put(body=b"behind")
        query = {"topic": "T1", "key": "9-2999", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        found = await peer.ask(Command.request(RequestCode.QUERY_MESSAGE, fields=query))
    assert [(a.opaque, a.code, a.fields["queueOffset"]) for a in answers] == [
        (request.opaque, 0, str(n)) for n, request in enumerate(requests)
    ]
    assert behind.fields["queueOffset"] == "11"
    assert found.code == 0


@pytest.mark.parametrize(
    ("body", "fields", "code"),
    [
        (b"", {}, 1),
        ((batch(b"a") * 5000)[:-3], {}, 1),
        (batch(b"a") * 300_000, {}, 13),
        (encode_batch_element(b"", b"") * 65_537, {}, 1),
        (batch(b"a", b"b")[:-3], {}, 1),
        (b"\0\0", {}, 1),
        (batch(b"a"), {"properties": "DELAY\x011"}, 13),
        (batch(b"a"), {"properties": "DELAY\x01+1"}, 13),
        (batch(b"a"), {"properties": "DELAY\x01soon"}, 1),
        (batch(b"a"), {"properties": "DELAY\x01\xb2"}, 1),
        (batch(b"a"), {"properties": "DELAY\x01" + "1" * 5000}, 1),
        (batch(b"a"), {"sys_flag": 4}, 13),
        (batch(bytes(4_000_000), bytes(300_000)), {}, 13),
    ],
)
async def test_bad_batches(open_broker: Any, body: bytes, fields: dict[str, Any], code: int) -> None:
    async with open_broker(mappedFileSizeCommitLog=8 << 20) as broker:
        peer = await broker.peer()
        answer = await peer.put(body=body, code=320, batch=True, **fields)
        assert answer.code == code
        assert (await peer.pull()).code in (19, 17), "nothing of it is stored"


# -- internal topics


async def test_delayed_message(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.put(queue_id=3, properties="DELAY\x0199\x02WAIT\x01true\x02TAGS\x01t")
        record = await stored(peer, "SCHEDULE_TOPIC_XXXX", 0, 17)
        assert (await peer.pull(queue_id=3)).code == 19
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("3", "0")
    assert record.properties == {
        "DELAY": "18", "WAIT": "true", "TAGS": "t", "CLUSTER": "C1", "REAL_TOPIC": "T1", "REAL_QID": "3"
    }  # fmt: skip


@pytest.mark.parametrize("sys_flag", [4, 12])
@pytest.mark.parametrize("properties", ["TRAN_MSG\x01true\x02PGROUP\x01PG", "UNIQ_KEY\x01A", ""])
async def test_half_messages_are_refused_where_the_settings_forbid_them(
    open_broker: Any, sys_flag: int, properties: str
) -> None:
    async with open_broker(rejectTransactionMessage="true") as broker:
        peer = await broker.peer()
        answer = await peer.put(sys_flag=sys_flag, properties=properties)
        assert (answer.code, answer.remark) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")
        assert (await peer.put(sys_flag=8)).code == 0


@pytest.mark.parametrize(
    ("sys_flag", "properties", "remark"),
    [
        (4, "UNIQ_KEY\x01A", "TRAN_MSG is not true"),
        (12, "TRAN_MSG\x01no", "TRAN_MSG is not true"),
        (4, "TRAN_MSG\x01true", "without the property PGROUP"),
        (0, "TRAN_MSG\x01TRUE", "without the property PGROUP"),
    ],
)
@pytest.mark.parametrize("compat", ["4.9", ""])
async def test_half_messages_that_no_client_could_end(
    open_broker: Any, sys_flag: int, properties: str, remark: str, compat: str
) -> None:
    async with open_broker(**({"compat": compat} if compat else {})) as broker:
        answer = await (await broker.peer()).put(sys_flag=sys_flag, properties=properties)
    assert answer.code == (0 if compat else 13)
    assert compat or remark in answer.remark


async def test_half_message(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        properties = "TRAN_MSG\x01true\x02PGROUP\x01PG"
        first = await peer.put(queue_id=3, sys_flag=4, properties=properties)
        second = await peer.put(queue_id=1, sys_flag=4, properties=properties)
        assert (await peer.pull(queue_id=3)).code == 19
        offset = str(int(first.fields["msgId"][16:], 16))
        view = await peer.ask(Command.request(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": offset}))
        (record,) = iter_records(view.body)
    assert (record.topic, record.queue_id, record.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
    assert record.properties == {
        "TRAN_MSG": "true", "PGROUP": "PG", "CLUSTER": "C1", "REAL_TOPIC": "T1", "REAL_QID": "3"
    }  # fmt: skip
    assert [(a.fields["queueId"], a.fields["queueOffset"]) for a in (first, second)] == [("3", "0"), ("1", "1")]


# -- send-back


def give_back(group: str = "CG", **fields: Any) -> Command:
    values = {"offset": 0, "group": group, "delayLevel": 0, "unitMode": "false", **fields}
    return Command.request(
        RequestCode.CONSUMER_SEND_MSG_BACK, fields={name: str(value) for name, value in values.items()}
    )


@pytest.mark.parametrize(
    ("fields", "topic", "queue_id", "delay"),
    [
        ({}, "SCHEDULE_TOPIC_XXXX", 2, "3"),
        ({"delayLevel": 5}, "SCHEDULE_TOPIC_XXXX", 4, "5"),
        ({"delayLevel": -1}, "%DLQ%CG", 0, "0"),
        ({"maxReconsumeTimes": 0}, "%DLQ%CG", 0, "0"),
    ],
)
async def test_send_back(open_broker: Any, fields: dict[str, Any], topic: str, queue_id: int, delay: str) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = await peer.put(properties="TAGS\x01t")
        answer = await peer.ask(give_back(**fields))
        assert (answer.code, answer.remark, answer.fields) == (0, None, None)
        record = await stored(peer, topic, 0, queue_id)
    expected = {
        "TAGS": "t", "CLUSTER": "C1", "RETRY_TOPIC": "T1", "ORIGIN_MESSAGE_ID": sent.fields["msgId"],
        "WAIT": "false", "DELAY": delay,
    }  # fmt: skip
    if topic == "SCHEDULE_TOPIC_XXXX":
        expected |= {"REAL_TOPIC": "%RETRY%CG", "REAL_QID": "0"}
    assert record.properties == expected
    assert (record.reconsume_times, record.body, record.born_timestamp) == (1, b"hello", 1_700_000_000_000)


async def test_each_further_try_waits_a_level_longer(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(reconsume_times=2)
        assert (await peer.ask(give_back())).code == 0
        record = await stored(peer, "SCHEDULE_TOPIC_XXXX", 0, 4)
    assert (record.properties["DELAY"], record.reconsume_times) == ("5", 3)


@pytest.mark.parametrize(
    ("settings", "code", "remark"),
    [
        ({"autoCreateSubscriptionGroup": "false"}, 26, f"subscription group not exist, CG {FAQ}"),
        ({"brokerPermission": 4}, 16, "the broker[127.0.0.1] sending message is forbidden"),
        ({}, 1, "look message by offset failed, 0"),
    ],
)
async def test_send_back_refusals(open_broker: Any, settings: dict[str, Any], code: int, remark: str) -> None:
    async with open_broker(**settings) as broker:
        answer = await (await broker.peer()).ask(give_back())
    assert (answer.code, answer.remark) == (code, remark)


async def test_send_back_to_a_group_without_retry_queues_is_dropped(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        group = SubscriptionGroupConfig(group_name="CG", retry_queue_nums=0)
        await peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode()))
        assert (await peer.ask(give_back(offset=77))).code == 0


LATER_MS = 9_000_000_000_000


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"])
@pytest.mark.parametrize(("settings", "code"), [({}, 13), ({"compat": "4.9"}, 0)])
async def test_a_time_of_delivery_is_refused(open_broker: Any, settings: dict[str, str], name: str, code: int) -> None:
    async with open_broker(**settings) as broker:
        peer = await broker.peer()
        # The first message of a topic is never plain, and the second may be handled by a compiled module.
        for _ in range(2):
            answer = await peer.put(properties=f"{name}\x01{LATER_MS}\x02UNIQ_KEY\x01{'A' * 32}")
            assert answer.code == code
            assert code == 0 or "delay levels" in answer.remark
            assert (await peer.put()).code == 0


@pytest.mark.parametrize(("text", "code"), [("0", 0), ("1000", 0), (f"{LATER_MS}", 13), ("soon", 13), ("-1", 13)])
async def test_a_time_of_delivery_that_is_over_is_no_reason_to_refuse(open_broker: Any, text: str, code: int) -> None:
    """Alibaba Cloud delivers such a message at once, and so a copy of one that it has delivered."""
    async with open_broker() as broker:
        peer = await broker.peer()
        for _ in range(2):
            assert (await peer.put(properties=f"__STARTDELIVERTIME\x01{text}")).code == code
            assert (await peer.put()).code == 0


@pytest.mark.parametrize(("further", "code"), [("", 0), (f"\x02__STARTDELIVERTIME\x01{LATER_MS}", 13)])
async def test_a_message_that_a_timer_has_delivered_is_taken(open_broker: Any, further: str, code: int) -> None:
    """A broker of RocketMQ 5 delivers such a message at once, if it is sent again with all of its properties."""
    async with open_broker() as broker:
        peer = await broker.peer()
        for _ in range(2):
            properties = f"TIMER_DELIVER_MS\x01{LATER_MS}\x02TIMER_OUT_MS\x011000{further}"
            assert (await peer.put(properties=properties)).code == code
            assert (await peer.put()).code == 0


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "__STARTDELIVERTIME"])
@pytest.mark.parametrize("times", [1, 16])
async def test_a_consumers_copy_of_a_message_with_a_time_of_delivery(open_broker: Any, name: str, times: int) -> None:
    """Such a message is in the log of an older broker, and an ordered consumer sends a copy of it in the end."""
    async with open_broker() as broker:
        peer = await broker.peer()
        properties = f"{name}\x01{LATER_MS}\x02DELAY\x013\x02RETRY_TOPIC\x01T1"
        answer = await peer.put("%RETRY%CG", properties=properties, reconsume_times=times)
        assert answer.code == 0
