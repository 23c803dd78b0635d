"""Records of message traces, compared with those that Java's client wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triomq_protocol.trace import (
    ConsumeOutcome,
    TraceKind,
    TraceMessageType,
    decode_records,
    encode_consumed,
    encode_consuming,
    encode_sent,
    encode_transaction_end,
)


def encode(inputs: dict[str, Any], bean: dict[str, Any]) -> str:
    time_ms, group, request_id = inputs["timeStamp"], inputs["groupName"], inputs["requestId"]
    message_id, keys = bean["msgId"], bean["keys"]
    if inputs["traceType"] == "Pub":
        return encode_sent(
            time_ms=time_ms,
            region=inputs["regionId"],
            group=group,
            topic=bean["topic"],
            message_id=message_id,
            tags=bean["tags"],
            keys=keys,
            store_host=bean["storeHost"],
            body_bytes=bean["bodyLength"],
            cost_ms=inputs["costTime"],
            kind=TraceMessageType(bean["msgTypeOrdinal"]),
            offset_message_id=bean["offsetMsgId"],
            success=inputs["success"],
        )
    if inputs["traceType"] == "SubBefore":
        return encode_consuming(
            time_ms=time_ms,
            region=inputs["regionId"],
            group=group,
            request_id=request_id,
            message_id=message_id,
            retry_times=bean["retryTimes"],
            keys=keys,
        )
    if inputs["traceType"] == "SubAfter":
        return encode_consumed(
            request_id=request_id,
            message_id=message_id,
            cost_ms=inputs["costTime"],
            keys=keys,
            outcome=ConsumeOutcome(inputs["contextCode"]),
            time_ms=time_ms,
            group=group,
        )
    return encode_transaction_end(
        time_ms=time_ms,
        region=inputs["regionId"],
        group=group,
        topic=bean["topic"],
        message_id=message_id,
        tags=bean["tags"],
        keys=keys,
        store_host=bean["storeHost"],
        transaction_id=bean["transactionId"],
        state=bean["transactionState"],
        from_check=bean["fromTransactionCheck"],
    )


@pytest.mark.vectors("trace.json", "cases", kinds=("encode",))
def test_records_are_those_of_java(case: dict[str, Any], equal: Callable[[object, object], None]) -> None:
    inputs = case["inputs"]
    text = "".join(encode(inputs, bean) for bean in inputs["beans"])
    if inputs["accessChannel"] == "CLOUD" and inputs["traceType"] == "SubAfter":
        # Channel CLOUD, which the SDK does not have, leaves out the time, the group and the end of the record.
        text = "".join(record.rsplit("\x01", 2)[0] + "\x01" for record in text.split("\x02") if record)
    equal(text.encode().hex(), case["transDataUtf8Hex"])


@pytest.mark.vectors("trace.json", "cases", kinds=("captured",))
def test_what_a_java_producer_has_sent(case: dict[str, Any], equal: Callable[[object, object], None]) -> None:
    text = ""
    for record in case["transData"].split("\x02")[:-1]:
        _, time_ms, region, group, topic, message_id, tags, keys, host, size, cost, kind, offset_id, success = (
            None if field == "null" else field for field in record.split("\x01")
        )
        text += encode_sent(
            time_ms=int(time_ms),
            region=region,
            group=group,
            topic=topic,
            message_id=message_id,
            tags=tags,
            keys=keys,
            store_host=host,
            body_bytes=int(size),
            cost_ms=int(cost),
            kind=TraceMessageType(int(kind)),
            offset_message_id=offset_id,
            success=success == "true",
        )
    equal(text.encode().hex(), case["transDataUtf8Hex"])
    records = decode_records(case["transData"])
    assert len(records) == case["transData"].count("\x02")
    assert all(record.kind is TraceKind.SENT and record.success is not None for record in records)


def test_without_keys_and_tags() -> None:
    text = encode_consuming(time_ms=1, region=None, group="G", request_id="R", message_id="M", retry_times=0, keys=None)
    assert text == "SubBefore\x011\x01null\x01G\x01R\x01M\x010\x01null\x02"


def test_records_are_read_back():
    sent = encode_sent(
        time_ms=5, region="R", group="P", topic="T", message_id="A", tags=None, keys="k1 k2", store_host="h:1",
        body_bytes=7, cost_ms=2, kind=TraceMessageType.HALF, offset_message_id="O", success=True,
    )  # fmt: skip
    given = encode_consuming(
        time_ms=6, region=None, group="G", request_id="r", message_id="A", retry_times=1, keys="k1 k2"
    )
    handled = encode_consumed(
        request_id="r", message_id="A", cost_ms=3, keys=None, outcome=ConsumeOutcome.EXCEPTION, time_ms=9, group="G"
    )
    ended = encode_transaction_end(
        time_ms=8, region="R", group="P", topic="T", message_id="A", tags="t", keys=None, store_host="h:1",
        transaction_id="A", state="COMMIT_MESSAGE", from_check=True,
    )  # fmt: skip
    one, two, three, four = decode_records(sent + given + handled + ended)
    assert (one.kind, one.topic, one.tags, one.keys, one.body_bytes) == (TraceKind.SENT, "T", None, "k1 k2", 7)
    assert (one.message_type, one.offset_message_id, one.success) == (1, "O", True)
    assert (two.kind, two.region, two.retry_times, two.success) == (TraceKind.CONSUMING, None, 1, None)
    assert (three.request_id, three.outcome, three.success, three.time_ms, three.group) == ("r", 2, False, 9, "G")
    assert (four.kind, four.state, four.from_check) == (TraceKind.TRANSACTION_END, "COMMIT_MESSAGE", True)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("\x02\x02", 0),
        ("nonsense\x02", 0),
        ("Pub\x02", 0),
        ("Pub\x011\x01R\x01G\x01T\x01null\x02", 0),
        ("Pub\x01x\x01R\x01G\x01T\x01A\x02", 1),  # an older client's, with a time that is none
        ("SubAfter\x01r\x01A\x011\x01true\x01\x010\x02", 1),  # without time and group, as with namespaces
        ("SubBefore\x011\x01R\x01G\x01r\x01A\x010\x01k\x01more\x01fields\x02Sub", 1),
    ],
)
def test_odd_records(text, count):
    assert len(decode_records(text)) == count


def test_the_send_of_an_early_client():
    (record,) = decode_records("Pub\x011\x01R\x01G\x01T\x01A\x01t\x01k\x01h:1\x017\x012\x010\x01true\x02")
    assert (record.message_type, record.offset_message_id, record.success) == (0, None, True)


@pytest.mark.parametrize("time", ["9" * 5000, "9" * 19, "253402128000001", "-1", "\u00b2", "1.5"])
def test_times_that_are_no_numbers(time):
    (record,) = decode_records(f"Pub\x01{time}\x01R\x01G\x01T\x01A\x02")
    assert record.time_ms is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("007", 7), ("1700000000000", 1_700_000_000_000), ("253402128000000", 253_402_128_000_000)],
)
def test_numbers_up_to_the_end_of_the_calendar(text, number):
    (record,) = decode_records(
        f"Pub\x01{text}\x01R\x01G\x01T\x01A\x01t\x01k\x01h:1\x01{text}\x01{text}\x01{text}\x01O\x01true\x02"
    )
    assert (record.time_ms, record.body_bytes, record.cost_ms, record.message_type) == (number,) * 4


@pytest.mark.parametrize(
    ("flag", "value"), [("true", True), ("false", False), ("TRUE", False), ("", False), ("null", False)]
)
def test_flags_are_true_in_one_spelling(flag, value):
    (record,) = decode_records(f"EndTransaction\x011\x01R\x01G\x01T\x01A\x01t\x01k\x01h:1\x012\x01X\x01S\x01{flag}\x02")
    assert (record.from_check, record.state, record.transaction_id, record.message_type) == (value, "S", "X", 2)
