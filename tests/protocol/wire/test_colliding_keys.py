"""Texts made to cost time: numbers as keys that collide, and long texts that only the tolerant reader takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from triomq_protocol.errors import BodyError, ProtocolError
from triomq_protocol.requests import ConsumerOffsetTable, DelayOffsetTable, HeartbeatData, MessageQueue
from triomq_protocol.requests.lock import LockBatchRequestBody
from triomq_protocol.requests.registration import RegisterBrokerBody
from triomq_protocol.wire import fastjson
from triomq_protocol.wire.command import decode_json_command
from triomq_protocol.wire.fastjson import MAX_TOLERANT_BYTES, WIDE_KEYS_MOST

PERIOD = (1 << 61) - 1
"""Numbers that are this far apart have the same hash."""

RAW = "{" + ",".join(f"{n * PERIOD}:1" for n in range(40_000)) + "}"
QUOTED = "{" + ",".join(f'"{n * PERIOD % (1 << 63)}":1' for n in range(40_000)) + "}"
QUEUES = ",".join(f'{{"topic":"t","brokerName":"b","queueId":{n * PERIOD}}}' for n in range(20_000))
QUEUE_KEYS = ",".join(f'{{"topic":"t","brokerName":"b","queueId":{n * PERIOD}}}:1' for n in range(20_000))


def _heartbeat(codes: str) -> str:
    subscription = f'{{"topic":"t","codeSet":[{codes}]}}'
    return f'{{"clientID":"c","consumerDataSet":[{{"groupName":"g","subscriptionDataSet":[{subscription}]}}]}}'


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (fastjson.loads, RAW),
        (lambda text: fastjson.loads(text, tolerant_bytes=len(text)), RAW),
        (lambda text: fastjson.loads(text, tolerant_bytes=len(text)), f"{{{QUEUE_KEYS}}}"),
        (decode_json_command, f'{{"code":1,"extFields":{RAW}}}'),
        (DelayOffsetTable.decode, f'{{"offsetTable":{RAW}}}'),
        (DelayOffsetTable.decode, f'{{"offsetTable":{QUOTED}}}'),
        (ConsumerOffsetTable.decode, f'{{"offsetTable":{{"t@g":{QUOTED}}}}}'),
        (LockBatchRequestBody.decode, f'{{"mqSet":[{QUEUES}]}}'),
        (HeartbeatData.decode, _heartbeat(",".join(f"{n * PERIOD}" for n in range(10_000)))),
    ],
)
def test_keys_that_collide_are_refused_at_once(read: Callable[[bytes], object], text: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(ProtocolError):
        read(text.encode())
    # Comparing each of them with all others takes minutes.
    assert time.perf_counter() - begin < 5


def test_many_small_numbers_are_keys_of_queues() -> None:
    text = "{" + ",".join(f"{n}:{n}" for n in range(5000)) + "}"
    read = fastjson.loads(text, tolerant_bytes=len(text))
    assert read == {n: n for n in range(5000)}
    assert DelayOffsetTable.decode(f'{{"offsetTable":{text}}}'.encode()).offset_table == read


def test_a_few_large_numbers_are_keys() -> None:
    few = {(n + 1) * 1_000_003: n for n in range(WIDE_KEYS_MOST)}
    text = json.dumps({"offsetTable": few})
    assert DelayOffsetTable.decode(text.encode()).offset_table == few
    one_more = json.dumps({"offsetTable": few | {-1: 0}})
    with pytest.raises(BodyError, match="large numbers as keys"):
        DelayOffsetTable.decode(one_more.encode())


def test_queue_ids_have_32_bits() -> None:
    assert MessageQueue.decode(b'{"topic":"t","queueId":"7"}').queue_id == 7
    with pytest.raises(BodyError, match="out of range"):
        MessageQueue.decode(b'{"topic":"t","queueId":2147483648}')


def test_a_long_request_must_be_standard() -> None:
    groups = [{"groupName": f"g{n}", "unknown": [n]} for n in range(1000)]
    text = json.dumps({"clientID": "c", "consumerDataSet": groups, "unknown": {"a": 1}})
    assert len(text) > MAX_TOLERANT_BYTES
    read = HeartbeatData.decode(text.encode())
    assert (read.client_id, len(read.consumer_data_set)) == ("c", 1000)
    assert type(read.consumer_data_set[-1]).__name__ == "ConsumerData"
    assert read.consumer_data_set[-1].group_name == "g999"
    with pytest.raises(BodyError, match="non-standard JSON"):
        HeartbeatData.decode(text.replace('"clientID"', "clientID").encode())
    assert HeartbeatData.decode(b"{clientID:'c',unknown:1}").client_id == "c"


def test_a_long_registration_of_a_later_version_is_read() -> None:
    topics = {f"t{n}": {"topicName": f"t{n}", "perm": 6, "attributes": {"a": "b"}} for n in range(1000)}
    wrapper = {"topicConfigTable": topics, "dataVersion": {"counter": "7", "stateVersion": 1}}
    read = RegisterBrokerBody.decode(json.dumps({"topicConfigSerializeWrapper": wrapper}).encode())
    table = read.topic_config_serialize_wrapper
    assert table is not None
    assert table.data_version.counter == 7
    assert RegisterBrokerBody.decode(read.encode()) == read


@pytest.mark.parametrize("code", ["2147483648", "-2147483649", "4294967297", "99999999999999999999999", '"2147483648"'])
def test_codes_of_tags_have_32_bits_as_in_java(code: str) -> None:
    with pytest.raises(BodyError):
        HeartbeatData.decode(_heartbeat(code).encode())
    for text, value in (("2147483647", 2147483647), ("-2147483648", -2147483648), ('"5"', 5), ("1.5", 1)):
        (consumer,) = HeartbeatData.decode(_heartbeat(text).encode()).consumer_data_set
        assert consumer.subscription_data_set[0].code_set == [value]
