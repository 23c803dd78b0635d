"""Replies of request-reply: pushed to the requester, stored, answered (docs/protocol/broker-api.md §4.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import decode_properties, encode_properties
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.heartbeat import HeartbeatData, ProducerData
from triomq_protocol.requests.send import ReplyMessageRequest
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

REPLY = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01127.0.0.1@p\x02CORRELATION_ID\x01c-1\x02TTL\x018000"
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def register_producer(peer: Any, client_id: str = "127.0.0.1@p") -> None:
    body = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name="PG_req")])
    assert (await peer.ask(Command.request(RequestCode.HEART_BEAT, body=body.encode()))).code == 0


async def answer_push(peer: Any, code: int = 0) -> Command:
    pushed = await peer.receive()
    assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    await peer.stream.send_all(pushed.answer(code).encode())
    return pushed


@pytest.mark.parametrize("code", [324, 325])
async def test_a_reply_is_pushed_and_stored(open_broker: Any, code: int) -> None:
    async with open_broker() as broker:
        requester, replier = await broker.peer(), await broker.peer()
        await register_producer(requester)
        opaque = await replier.send(replier.put_request("C1_REPLY_TOPIC", b"pong", code=code, properties=REPLY))
        pushed = await answer_push(requester)
        answer = await replier.receive()
        kept = await replier.pull("C1_REPLY_TOPIC")
    header = pushed.header(ReplyMessageRequest)
    assert (header.topic, header.producer_group, header.born_host) == ("C1_REPLY_TOPIC", "PG", "127.0.0.1:40002")
    assert (header.store_host, header.born_timestamp, pushed.body) == ("127.0.0.1:10911", 1_700_000_000_000, b"pong")
    properties = decode_properties(header.properties)
    assert properties.pop("PUSH_REPLY_TIME") == str(header.store_timestamp)
    assert properties == decode_properties(REPLY)
    assert (answer.opaque, answer.code, answer.remark) == (opaque, 0, None)
    (record,) = iter_records(kept.body)
    assert record.body == b"pong"
    assert answer.fields == {"msgId": record.offset_message_id, "queueId": "0", "queueOffset": "0", **REGION}


async def test_a_reply_is_stored_as_it_was_sent_and_pushed_without_empty_properties(open_broker: Any) -> None:
    sent = f"{REPLY}\x02WAIT\x01true\x02CLUSTER\x01C2\x02a\x01\x02b\x01x\x02b\x01y\x02PUSH_REPLY_TIME\x01x"
    async with open_broker() as broker:
        requester, replier = await broker.peer(), await broker.peer()
        await register_producer(requester)
        await replier.send(replier.put_request("C1_REPLY_TOPIC", b"pong", code=325, properties=sent))
        pushed = (await answer_push(requester)).header(ReplyMessageRequest)
        assert (await replier.receive()).code == 0
        kept = await replier.pull("C1_REPLY_TOPIC")
    assert kept.body.endswith(b"pong\x0eC1_REPLY_TOPIC" + len(sent).to_bytes(2, "big") + sent.encode())
    want = decode_properties(sent) | {"PUSH_REPLY_TIME": str(pushed.store_timestamp)}
    assert pushed.properties == encode_properties(want)


async def test_the_push_has_the_fields_of_a_real_one(open_broker: Any, vectors: Path) -> None:
    cases = json.loads((vectors / "exchanges.json").read_text())["cases"]
    recorded = next(case for case in cases if case["name"] == "326_client_from_master__0_0")
    (real,) = FrameDecoder().feed(bytes.fromhex(recorded["requestHex"]))
    async with open_broker() as broker:
        requester, replier = await broker.peer(), await broker.peer()
        await register_producer(requester)
        await replier.send(replier.put_request("C1_REPLY_TOPIC", b"pong", code=325, properties=REPLY))
        pushed = await answer_push(requester)
    assert pushed.fields is not None
    assert real.fields is not None
    assert set(pushed.fields) == set(real.fields)
    assert pushed.language == real.language


async def test_without_storing_the_answer_has_0(open_broker: Any) -> None:
    async with open_broker(storeReplyMessageEnable="false") as broker:
        requester, replier = await broker.peer(), await broker.peer()
        await register_producer(requester)
        await replier.send(replier.put_request("C1_REPLY_TOPIC", code=325, properties=REPLY))
        await answer_push(requester)
        answer = await replier.receive()
        assert (await replier.pull("C1_REPLY_TOPIC")).code == 19
    assert answer.fields == {"msgId": "0", "queueId": "0", "queueOffset": "0", **REGION}


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("A\x01b", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01missing", "push reply message fail, channel of <missing> not found."),
    ],
)
async def test_replies_without_a_requester_are_errors_though_stored(
    open_broker: Any, properties: str, remark: str
) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.put("C1_REPLY_TOPIC", code=325, properties=properties)
        assert (await peer.pull("C1_REPLY_TOPIC")).code == 0
    assert (answer.code, answer.remark) == (1, remark)
    assert answer.fields is not None
    assert answer.fields["queueOffset"] == "0"


@pytest.mark.parametrize("how", ["refused", "silent", "gone"])
async def test_a_push_that_fails(open_broker: Any, how: str) -> None:
    async with open_broker() as broker:
        requester, replier = await broker.peer(), await broker.peer()
        await register_producer(requester)
        start = trio.current_time()
        await replier.send(replier.put_request("C1_REPLY_TOPIC", code=325, properties=REPLY))
        if how == "refused":
            await answer_push(requester, 1)
        elif how == "gone":
            await requester.receive()
            await requester.stream.aclose()
        answer = await replier.receive()
        assert trio.current_time() - start == pytest.approx(10 if how == "silent" else 0, abs=0.1)
    assert (answer.code, answer.remark) == (1, "push reply message to 127.0.0.1@pfail.")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "a b"}, 1),
        ({"topic": "SELF_TEST_TOPIC"}, 16),
        ({"queue_id": 5}, 1),
    ],
)
async def test_replies_are_checked_like_sends(open_broker: Any, fields: dict[str, Any], code: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        answer = await peer.put(**{"topic": "C1_REPLY_TOPIC", "code": 325, "properties": REPLY, **fields})
    assert (answer.code, answer.fields) == (code, REGION)


@pytest.mark.parametrize(
    ("compat", "sys_flag", "stored"), [("safe", 4, 0), ("safe", 13, 1), ("safe", 8, 0), ("4.9", 5, 0), ("4.9", 1, 0)]
)
async def test_no_reply_is_stored_as_half_of_a_transaction(
    open_broker: Any, compat: str, sys_flag: int, stored: int
) -> None:
    # Such a record would be in no queue. 4.9.7 stores all replies without flags.
    async with open_broker(compat=compat, rejectTransactionMessage="true") as broker:
        requester, replier = await broker.peer(), await broker.peer()
        await register_producer(requester)
        properties = f"{REPLY}\x02TRAN_MSG\x01true"
        await replier.send(replier.put_request("C1_REPLY_TOPIC", code=324, properties=properties, sys_flag=sys_flag))
        pushed = await answer_push(requester)
        assert (await replier.receive()).code == 0
        (record,) = iter_records((await replier.pull("C1_REPLY_TOPIC")).body)
    assert (pushed.header(ReplyMessageRequest).sys_flag, record.sys_flag) == (sys_flag, stored)
