"""Long work in slices: the same result as in one go, and a bounded amount of work between two yields."""

from __future__ import annotations

import json
import zlib

import msgspec
import pytest

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    CheckClientConfigBody,
    ConsumeStats,
    ConsumeStatsList,
    DataVersion,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    OffsetWrapper,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    UnlockBatchRequestBody,
)
from triomq_protocol.requests.admin import SubscriptionGroupTable
from triomq_protocol.requests.offset import ConsumerOffsetTable, DelayOffsetTable
from triomq_protocol.requests.registration import MOST_UNUSUAL_BYTES, TopicConfigTableForSlaves
from triomq_protocol.wire.fastjson import (
    SLICE_WEIGHT,
    dumps,
    dumps_in_slices,
    dumps_pretty,
    java_map_order,
    java_map_order_in_slices,
    number_maps_in_slices,
)


def count(slices):
    """What sliced work returns, and how often it yielded."""
    yields = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, yields
        yields += 1


def queues(number: int) -> dict[MessageQueue, OffsetWrapper]:
    return {MessageQueue("T", "b", n): OffsetWrapper(broker_offset=n, consumer_offset=n) for n in range(number)}


@pytest.mark.parametrize(
    "value",
    [
        TopicStatsTable(offset_table={MessageQueue("T", "b", n): TopicOffset(max_offset=n) for n in range(1000)}),
        ConsumeStatsList(
            broker_addr="é\n", consume_stats_list=[{f"g{n}": [ConsumeStats(offset_table=queues(n))]} for n in range(50)]
        ),
        TopicList(topic_list=[f"t{n}" for n in range(3 * SLICE_WEIGHT)]),
        {"a": {1: 2, 3: 4}, "b": [None, True, 1.5, {}, []], "c": {n: n for n in range(3 * SLICE_WEIGHT)}},
        {"x": {"y": [[[n] for n in range(3000)]]}},
        {},
        "text",
    ],
)
def test_what_is_written_in_slices(value: object) -> None:
    text, yields = count(dumps_in_slices(value))
    assert text == dumps(value)
    assert yields <= len(text) / 100


def test_a_map_that_changes_while_it_is_written() -> None:
    value = {f"k{n:06}": n for n in range(3 * SLICE_WEIGHT)}
    slices = dumps_in_slices(value)
    next(slices)
    last = list(value)[-1]
    del value["k000000"], value[last]
    value["new"] = 1
    text, _ = count(slices)
    written = json.loads(text)
    assert (written["k000000"], last in written, "new" in written) == (0, False, False)
    assert len(written) == 3 * SLICE_WEIGHT - 1


def test_a_long_body_is_written_in_many_slices() -> None:
    body = TopicStatsTable(offset_table={MessageQueue("T", "b", n): TopicOffset() for n in range(65_536)})
    assert count(body.encode_in_slices())[1] >= 65_536 * 16 // SLICE_WEIGHT
    assert count(TopicStatsTable(offset_table={MessageQueue("T", "b", 0): TopicOffset()}).encode_in_slices())[1] == 0


@pytest.mark.parametrize("number", [0, 1, 33, SLICE_WEIGHT, SLICE_WEIGHT + 1, 50_000])
def test_the_order_of_a_map_in_slices(number: int) -> None:
    names = [f"topic_{n * 7919}" for n in range(number)]
    ordered, yields = count(java_map_order_in_slices(names))
    assert ordered == list(java_map_order(names))
    assert yields >= number // SLICE_WEIGHT - (number == SLICE_WEIGHT)


def registration(topics: int) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        filter_server_list=["f"],
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=7, timestamp=9),
            topic_config_table={f"%RETRY%T-{n}": TopicConfig(topic_name=f"%RETRY%T-{n}", perm=n % 8) for n in range(topics)},
        ),
    )  # fmt: skip


@pytest.mark.parametrize("topics", [0, 10, 30_000])
def test_a_registration_is_read_in_slices(topics: int) -> None:
    body = registration(topics)
    for data in (body.encode(), msgspec.json.encode(body)):
        assert count(RegisterBrokerBody.decode_in_slices(data)) == (
            body,
            -(-len(data) // (1 << 18)) if topics > 10 else 0,
        )
    found, yields = count(RegisterBrokerBody.decode_compressed_in_slices(body.encode_compressed()))
    assert found == body
    assert yields >= topics // 1024


def test_a_long_registration_in_an_unusual_form_is_refused() -> None:
    text = registration(MOST_UNUSUAL_BYTES // 25).encode().replace(b'"topicConfigTable":{', b'"topicConfigTable": {')
    with pytest.raises(BodyError, match="unusual form"):
        count(RegisterBrokerBody.decode_in_slices(text))
    broken = registration(30_000).encode().replace(b'"perm":3', b'"perm":x')
    with pytest.raises(BodyError, match="non-standard JSON"):
        count(RegisterBrokerBody.decode_in_slices(broken))


def topics_of_master(topics: int, removed: int) -> TopicConfigTableForSlaves:
    return TopicConfigTableForSlaves(
        data_version=DataVersion(counter=7, timestamp=9),
        topic_config_table={f"%RETRY%T-{n}": TopicConfig(topic_name=f"%RETRY%T-{n}", perm=n % 8) for n in range(topics)},
        triomq_removed_queues=[(f"T-{n}", n % 4, 5, n) for n in range(removed)],
    )  # fmt: skip


def groups_of_master(groups: int) -> SubscriptionGroupTable:
    table = {f"G-{n}": SubscriptionGroupConfig(group_name=f"G-{n}", retry_max_times=n % 16) for n in range(groups)}
    return SubscriptionGroupTable(data_version=DataVersion(counter=7, timestamp=9), subscription_group_table=table)


def offsets_of_master(keys: int, queues: int) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(
        offset_table={f"T-{n}@G": {queue: n * 1000 + queue for queue in range(queues)} for n in range(keys)}
    )


@pytest.mark.parametrize(
    ("body", "slices"),
    [
        (topics_of_master(0, 0), 0),
        (topics_of_master(10, 10), 0),
        (topics_of_master(30_000, 0), 15),
        (topics_of_master(1, 60_000), 4),
        (topics_of_master(30_000, 60_000), 19),
        (groups_of_master(0), 0),
        (groups_of_master(20_000), 15),
        (offsets_of_master(0, 0), 0),
        (offsets_of_master(10, 0), 0),
        (offsets_of_master(50_000, 8), 60),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tables_of_a_master_are_read_in_slices(body, slices: int) -> None:
    for data in (body.encode(), msgspec.json.encode(body)):
        found, yields = count(type(body).decode_in_slices(data))
        assert found == body
        assert yields >= slices


def test_long_tables_in_an_unusual_form_are_refused() -> None:
    text = topics_of_master(30_000, 0).encode().replace(b'"topicConfigTable":{', b'"topicConfigTable": {')
    with pytest.raises(BodyError, match="unusual form"):
        count(TopicConfigTableForSlaves.decode_in_slices(text))
    text = offsets_of_master(50_000, 8).encode().replace(b'"offsetTable":{', b'"offsetTable": {')
    with pytest.raises(BodyError, match="unusual form"):
        count(ConsumerOffsetTable.decode_in_slices(text))
    broken = groups_of_master(20_000).encode().replace(b'"brokerId":0', b'"brokerId":x')
    with pytest.raises(BodyError):
        count(SubscriptionGroupTable.decode_in_slices(broken))


def test_tables_of_later_versions_that_are_cut_wrongly_are_read_in_one_go() -> None:
    """Up to 2 MiB: offsets with the data version behind them, and groups with an object in an object."""
    offsets = offsets_of_master(10_000, 4)
    text = offsets.encode()[:-1] + b',"dataVersion":{"counter":1,"timestamp":2}}'
    assert len(text) > 1 << 18
    assert count(ConsumerOffsetTable.decode_in_slices(text))[0] == offsets
    groups = groups_of_master(2000)
    policy = b'"groupRetryPolicy":{"exponentialRetryPolicy":{"max":9}},"notify'
    text = groups.encode().replace(b'"notify', policy)
    assert 1 << 18 < len(text) < 2 << 20
    assert count(SubscriptionGroupTable.decode_in_slices(text))[0] == groups
    topics = topics_of_master(2000, 0)
    text = topics.encode().replace(b'"perm"', b'"later":{"a":{"b":1}},"perm"')
    assert count(TopicConfigTableForSlaves.decode_in_slices(text))[0] == topics


def test_a_table_of_delay_levels_is_short() -> None:
    with pytest.raises(BodyError, match="at most 65536"):
        DelayOffsetTable.decode(DelayOffsetTable(offset_table=dict.fromkeys(range(10_000), 5)).encode())


def test_a_registration_of_a_later_version_is_read_in_slices() -> None:
    body = registration(30_000)
    text = body.encode().replace(b'{"order"', b'{"attributes":{},"order"')
    text = text.replace(b"}}}", b'}},"topicQueueMappingInfoMap":{"x":{}}}').replace(
        b'"counter"', b'"stateVersion":0,"counter"'
    )
    found, yields = count(RegisterBrokerBody.decode_in_slices(text))
    assert found == body
    assert yields > 3


@pytest.mark.parametrize(
    "text",
    [
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{}' + b',"b":{}' * 10_000 + b"}}}",
        b'{"filterServerList":[""'
        + b',""' * (1 << 20)
        + b'],"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{}}}}',
        b'{"filterServerList":[""' + b',""' * 100_000 + b"]}",
        # Many short topics where the others are long.
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{}'
        + b',"b":{}' * 10_000
        + b',"c":{"topicName":"%b"}' % (b"c" * 1000) * 10_000
        + b"}}}",
    ],
)
def test_a_slow_registration_is_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        count(RegisterBrokerBody.decode_in_slices(text))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (HeartbeatData, b'{"clientID":"c","consumerDataSet":[{}' + b",{}" * 5000 + b"]}"),
        (HeartbeatData, b'{"clientID":"' + b"c" * (2 << 20) + b'"}'),
        (LockBatchRequestBody, b'{"mqSet":[{}' + b",{}" * 10_001 + b"]}"),
        (UnlockBatchRequestBody, b'{"mqSet":[{}' + b",{}" * 10_001 + b"]}"),
        (CheckClientConfigBody, b'{"clientId":"' + b"c" * (1 << 20) + b'"}'),
        (SubscriptionGroupConfig, b'{"groupName":"' + b"c" * (1 << 20) + b'"}'),
    ],
)
def test_a_body_of_a_request_that_would_take_long_is_not_read(body, text: bytes) -> None:
    with pytest.raises(BodyError, match="are read"):
        body.decode(text)


def test_a_registration_that_inflates_too_far_is_refused() -> None:
    more = zlib.decompress(registration(1).encode_compressed()) + bytes(65 << 20)
    with pytest.raises(BodyError, match="more than"):
        count(RegisterBrokerBody.decode_compressed_in_slices(zlib.compress(more, 1)))


@pytest.mark.parametrize(
    "table", [{}, {"T@g": {}}, {"T@g": {0: 1}}, {"%RETRY%g@g": {0: -1, 7: 1 << 60}, 'x"@é': {}, "u@g": {1: 2}}]
)
def test_maps_of_numbers_are_written_as_any_other_value(table: dict[str, dict[int, int]]) -> None:
    for write, pretty in ((dumps, False), (dumps_pretty, True)):
        assert count(number_maps_in_slices("offsetTable", table.items(), pretty=pretty)) == (
            write({"offsetTable": table}), 0,
        )  # fmt: skip


def test_long_tables_of_numbers_are_written_in_slices() -> None:
    table = {f"t{number}@g": {0: number, 1: 5} for number in range(10_000)}
    text, yields = count(number_maps_in_slices("offsetTable", table.items(), pretty=False))
    assert text == dumps({"offsetTable": table})
    assert yields >= 10_000 * 6 // SLICE_WEIGHT
