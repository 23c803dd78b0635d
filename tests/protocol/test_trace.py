"""Records of message traces, compared with those that Java's client wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triomq_protocol.trace import (
    ConsumeOutcome,
    TraceMessageType,
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


def test_without_keys_and_tags() -> None:
    text = encode_consuming(time_ms=1, region=None, group="G", request_id="R", message_id="M", retry_times=0, keys=None)
    assert text == "SubBefore\x011\x01null\x01G\x01R\x01M\x010\x01null\x02"
