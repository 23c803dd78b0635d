"""What becomes of a message's properties on its way to disk, against records of a real broker
(docs/protocol/messages.md §3.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triomq_protocol.properties import decode_properties, encode_properties
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.send import SendMessageRequestV2
from triomq_server.broker.refusals import RefusedError
from triomq_server.broker.requests.sending.rewriting import delay_level, new_batch, special_record
from triomq_server.config import BrokerConfig
from triomq_server.store import NewRecord

CONFIG, _ = BrokerConfig.from_properties(
    {
        "brokerClusterName": "VecCluster",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
    }
)


def rewritten(text: str, *, topic: str = "T", queue_id: int = 3, sys_flag: int = 0, dead: bool = False) -> NewRecord:
    record = NewRecord(topic, queue_id, b"x", b"", sys_flag=sys_flag)
    special_record(record, decode_properties(text), CONFIG, dead=dead)
    return record


def properties_of(record: NewRecord) -> dict[str, str]:
    return decode_properties(bytes(record.properties).decode())


@pytest.mark.parametrize("name", ["rec_delay_18_1", "rec_delay_99_1", "rec_tx_UNKNOW_1", "rec_tx_ROLLBACK_MESSAGE_1"])
def test_records_of_a_real_broker(vectors: Path, name: str) -> None:
    """Delayed and half messages: the client's properties in, the stored topic, queue and properties out."""
    cases: list[dict[str, Any]] = json.loads((vectors / "messages.json").read_text())["records"]
    case = next(case for case in cases if case["name"] == name)
    sent = case["sentByClient"]
    stored = RecordView(bytes.fromhex(case["recordHex"]))
    expected = stored.properties
    client = dict(sent["propertiesAfterSend"])
    sys_flag = 4 if client.get("TRAN_MSG") == "true" else 0
    record = rewritten(
        encode_properties(client), topic=sent["topic"], queue_id=int(expected["REAL_QID"]), sys_flag=sys_flag
    )
    assert (record.topic, record.queue_id) == (stored.topic, stored.queue_id)
    assert properties_of(record) == expected
    if sys_flag:
        assert bytes(record.properties) == stored.properties_bytes
    assert record.sys_flag == stored.sys_flag


@pytest.mark.parametrize(("level", "stored"), [("1", 1), ("18", 18), ("99", 18), ("+2", 2)])
def test_delay_is_clipped_and_goes_to_the_schedule_topic(level: str, stored: int) -> None:
    record = rewritten(f"WAIT\x01true\x02TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01u\x02DELAY\x01{level}")
    assert (record.topic, record.queue_id, record.delay_level) == ("SCHEDULE_TOPIC_XXXX", stored - 1, stored)
    assert (record.tags, record.keys, record.uniq_key) == ("a", "k", "u")
    assert properties_of(record) == {
        "WAIT": "true", "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "u", "DELAY": str(stored),
        "CLUSTER": "VecCluster", "REAL_TOPIC": "T", "REAL_QID": "3",
    }  # fmt: skip


@pytest.mark.parametrize("level", ["0", "-1"])
def test_no_delay(level: str) -> None:
    record = rewritten(f"WAIT\x01true\x02DELAY\x01{level}")
    assert (record.topic, record.queue_id, record.delay_level) == ("T", 3, 0)
    assert properties_of(record) == {"DELAY": level, "CLUSTER": "VecCluster"}


@pytest.mark.parametrize("level", ["x", "1.5", "٣", "²", "1_0", "99999999999", "1" * 5000, "-", " 1"])
def test_a_delay_that_is_no_int32_is_refused(level: str) -> None:
    with pytest.raises(RefusedError) as refused:
        rewritten(f"DELAY\x01{level}")
    assert refused.value.code == 1


@pytest.mark.parametrize("level", ["abc", "9" * 30, "1.5"])
def test_a_half_message_with_a_delay_that_is_no_int32_is_refused(level: str) -> None:
    # Its transaction could not be committed any more.
    with pytest.raises(RefusedError, match="DELAY"):
        rewritten(f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02DELAY\x01{level}", sys_flag=4)


def test_half_message() -> None:
    record = rewritten("TRAN_MSG\x01TRUE\x02PGROUP\x01g\x02WAIT\x01true", sys_flag=0x4 | 0x1)
    assert (record.topic, record.queue_id, record.sys_flag, record.delay_level) == (
        "RMQ_SYS_TRANS_HALF_TOPIC",
        0,
        0x1,
        0,
    )
    assert properties_of(record) == {
        "TRAN_MSG": "TRUE", "PGROUP": "g", "WAIT": "true",
        "CLUSTER": "VecCluster", "REAL_TOPIC": "T", "REAL_QID": "3",
    }  # fmt: skip


def test_prepared_flag_without_the_property_is_not_delayed() -> None:
    record = rewritten("DELAY\x013", sys_flag=0x4)
    assert (record.topic, record.delay_level, record.sys_flag) == ("T", 0, 0x4)


def test_rejected_transactions() -> None:
    config, _ = BrokerConfig.from_properties({"brokerIP1": "127.0.0.1", "rejectTransactionMessage": "true"})
    with pytest.raises(RefusedError) as refused:
        special_record(NewRecord("T", 0, b"", b""), {"TRAN_MSG": "true"}, config, dead=False)
    assert refused.value.code == 16
    assert refused.value.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


def test_a_half_message_is_not_delayed() -> None:
    record = rewritten("TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x012", sys_flag=0x4)
    assert (record.topic, record.delay_level) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)


@pytest.mark.parametrize(("times", "topic"), [(1, "SCHEDULE_TOPIC_XXXX"), (0, "RMQ_SYS_TRANS_HALF_TOPIC")])
def test_a_message_that_a_consumer_sends_back_itself_is_no_half_message(times: int, topic: str) -> None:
    record = NewRecord("%RETRY%g", 0, b"x", b"", reconsume_times=times)
    special_record(record, {"TRAN_MSG": "true", "PGROUP": "g", "DELAY": "3"}, CONFIG, dead=False)
    assert record.topic == topic


def test_a_dead_letter_is_no_half_message() -> None:
    assert rewritten("TRAN_MSG\x01true\x02PGROUP\x01g", topic="%DLQ%g", dead=True).topic == "%DLQ%g"


def test_dead_letters_are_not_delayed() -> None:
    record = rewritten("DELAY\x015\x02WAIT\x01true", topic="%DLQ%g", queue_id=0, dead=True)
    assert (record.topic, record.queue_id, record.delay_level) == ("%DLQ%g", 0, 0)
    assert properties_of(record) == {"DELAY": "0", "CLUSTER": "VecCluster"}


def test_the_number_of_levels_comes_from_the_configuration() -> None:
    config, _ = BrokerConfig.from_properties({"messageDelayLevel": "1s 2s"})
    assert delay_level({"DELAY": "9"}, config) == 2


def header(properties: str | None, sys_flag: int = 0) -> SendMessageRequestV2:
    return SendMessageRequestV2(
        producer_group="g", topic="T", queue_id=0, sys_flag=sys_flag, born_timestamp=5, flag=0, properties=properties
    )


def test_batches_keep_wait_and_get_the_cluster() -> None:
    batch = new_batch(header("WAIT\x01true"), b"elements", "C")
    assert batch is not None
    assert batch.properties == b"WAIT\x01true\x02CLUSTER\x01C"
    bare = new_batch(header(None), b"elements", "C")
    assert bare is not None
    assert bare.properties == b"CLUSTER\x01C"


@pytest.mark.parametrize("level", ["x", "²", "-", "9" * 5000])
def test_a_batch_with_a_delay_that_is_no_int32_is_refused(level: str) -> None:
    with pytest.raises(RefusedError, match="property DELAY is not a number"):
        new_batch(header(f"DELAY\x01{level}"), b"elements", "C")


@pytest.mark.parametrize(
    ("properties", "sys_flag"),
    [("DELAY\x011", 0), ("DELAY\x01+1", 0), ("DELAY\x01" + "0" * 5000 + "1", 0), ("", 4), ("", 8)],
)
def test_batches_are_neither_delayed_nor_transactional(properties: str, sys_flag: int) -> None:
    assert new_batch(header(properties, sys_flag), b"elements", "C") is None
