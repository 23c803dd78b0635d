"""Bodies of the real programs, decoded into their classes and encoded back to the same bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triomq_protocol import requests
from triomq_protocol.checksum import crc32
from triomq_protocol.wire.fastjson import ObjectKey, dumps, loads, loads_tolerant

RENAMED = {
    "TopicConfigSerializeWrapper": requests.TopicConfigTable,
    "ConsumerOffsetSerializeWrapper": requests.ConsumerOffsetTable,
    "delay offsets (DelayOffsetSerializeWrapper)": requests.DelayOffsetTable,
    "SubscriptionGroupWrapper": requests.SubscriptionGroupTable,
    "GetConsumerListByGroupResponseBody": requests.ConsumerIdList,
    "CheckClientRequestBody": requests.CheckClientConfigBody,
    "OffsetSerializeWrapper": requests.LocalOffsetTable,
    "OffsetSerializeWrapper(pretty)": requests.LocalOffsetTable,
    "QueryConsumeQueueResponseBody": requests.QueryConsumeQueueBody,
}


def body_class(java_name: str) -> Any:
    return RENAMED.get(java_name) or getattr(requests, java_name)


def plain(value: object) -> object:
    """Parsed JSON in the form of the vector files: a map whose keys are not all text is a list of pairs."""
    if isinstance(value, ObjectKey):
        return plain(value.members())
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(member) for key, member in value.items()}
        return {"$pairs": [[plain(key), plain(member)] for key, member in value.items()]}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@pytest.mark.vectors("bodies.json", "cases")
def test_bodies(case: dict[str, Any], equal: Any) -> None:
    data = bytes.fromhex(case["bodyHex"])
    equal(crc32(data), case["crc32"])
    equal(requests.registration_crc(data), case["crc32"])
    kind = case["bodyType"]
    if kind == "TopicConfig line":
        config = requests.TopicConfig.from_line(data.decode())
        equal(config.line().encode(), data)
    elif "compressed" in kind:
        check_compressed(case, data, equal)
    else:
        check_json(case, data, equal)


def check_compressed(case: dict[str, Any], data: bytes, equal: Any) -> None:
    body = requests.RegisterBrokerBody.decode_compressed(data)
    equal(body.encode_compressed(), data)
    table = body.topic_config_serialize_wrapper
    equal(table.data_version.encode().decode(), case["parts"]["dataVersion"])
    equal([config.line() for config in table.topic_config_table.values()], case["parts"]["topicConfigLines"])
    equal(dumps(body.filter_server_list).decode(), case["parts"]["filterServerList"])


def check_json(case: dict[str, Any], data: bytes, equal: Any) -> None:
    equal(plain(loads(data)), case["value"])
    equal(plain(loads_tolerant(data)), case["value"])
    try:
        json.loads(data)
        standard = True
    except ValueError:
        standard = False
    equal(standard, case["standardJson"])
    cls = body_class(case["bodyType"])
    body = cls.decode(data)
    equal(cls.from_json(loads_tolerant(data)), body)
    quoted_route = case["bodyType"] == "TopicRouteData" and case.get("clientVersion", 0) >= 401
    encode = (
        body.encode_standard if quoted_route else body.encode_pretty if "pretty" in case["bodyType"] else body.encode
    )
    equal(encode(), data)


CONFIG_FILES = {
    "topics.json": requests.TopicConfigTable,
    "subscriptionGroup.json": requests.SubscriptionGroupTable,
    "consumerOffset.json": requests.ConsumerOffsetTable,
    "delayOffset.json": requests.DelayOffsetTable,
}


@pytest.mark.parametrize("name", sorted(CONFIG_FILES))
def test_configuration_files_of_a_real_store(name: str, vectors: Any) -> None:
    files = json.loads((vectors / "store-small.json").read_text())["configFiles"]
    for text in (files[name], files.get(name + ".bak", files[name])):
        assert CONFIG_FILES[name].decode(text.encode()).encode_pretty() == text.encode()
