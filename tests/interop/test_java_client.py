"""The Java producer and pull consumer on our name server and broker, with JSON and with binary headers, and of 5.5.0.

Every test runs on the real servers too: what fails there is wrong with the test.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest


@pytest.fixture(params=["java_client", "binary_java_client", "java_client_5"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def wanted(make_samples: Any) -> Any:
    return make_samples(40)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
def test_send_and_pull(client: Any, either: Any, topic: str, wanted: Any, mode: str) -> None:
    servers = either.namesrv.address
    results = client.send(servers, topic, wanted, mode)
    seen = client.pull_all(servers, topic, len(wanted))
    assert {one.sample() for one in seen} == set(wanted)
    assert len(seen) == len(wanted)
    assert_queues_are_whole(seen)
    assert {one.born_host for one in seen} == {"127.0.0.1"}
    assert {one.store_host for one in seen} == {f"/{either.broker.address}"}
    if mode in {"sync", "async"}:
        assert all(result["status"] == "SEND_OK" for result in results)
        places = {(result["queueId"], result["queueOffset"], result["msgId"]) for result in results}
        assert places == {(one.queue_id, one.queue_offset, one.properties["UNIQ_KEY"]) for one in seen}
    if mode == "batch":
        assert results[0]["offsetMsgId"].count(",") == len(wanted) - 1
        assert len({one.queue_id for one in seen}) == 1


def assert_queues_are_whole(seen: Any) -> None:
    queues = Counter(one.queue_id for one in seen)
    for queue_id, count in queues.items():
        offsets = [one.queue_offset for one in seen if one.queue_id == queue_id]
        assert offsets == list(range(count)), f"queue {queue_id}"


def test_tag_filter(client: Any, either: Any, topic: str, wanted: Any) -> None:
    servers = either.namesrv.address
    client.send(servers, topic, wanted)
    client.pull_all(servers, topic, len(wanted))
    for expression, tags in [("A", "A"), ("B || C", "B"), ("A || B", "AB"), ("none", "")]:
        seen = client.pull(servers, topic, expression)
        assert {one.sample() for one in seen} == {one for one in wanted if one.tags and one.tags in tags}


def test_large_body_is_compressed_on_the_way(client: Any, either: Any, topic: str, make_sample: Any) -> None:
    body = b"the same line again and again\n" * 40_000
    servers = either.namesrv.address
    client.send(servers, topic, [make_sample(body, tags="A", keys="large")])
    seen = client.pull_all(servers, topic, 1)
    assert [one.body for one in seen] == [body]
    # 4.9 leaves the flag as it was sent; 5 takes it away, and leaves which algorithm it was.
    assert seen[0].sys_flag & 0x701, "the client compresses what is longer than 4 KiB"


def test_query_by_key_and_by_id(client: Any, either: Any, topic: str, wanted: Any) -> None:
    servers = either.namesrv.address
    results = client.send(servers, topic, wanted)
    client.pull_all(servers, topic, len(wanted))
    for index in (0, 17, 39):
        seen = client.query_until_found(servers, topic, wanted[index].keys)
        assert [one.sample() for one in seen] == [wanted[index]]
        by_offset_id = client.view(servers, topic, results[index]["offsetMsgId"])
        by_unique_key = client.view(servers, topic, results[index]["msgId"])
        assert by_offset_id.sample() == by_unique_key.sample() == wanted[index]


def test_offsets(client: Any, either: Any, topic: str, wanted: Any) -> None:
    servers = either.namesrv.address
    begin_ms = int(time.time() * 1000)
    client.send(servers, topic, wanted)
    client.pull_all(servers, topic, len(wanted))
    group = f"G-{topic}"

    def committed() -> set[int]:
        client.commit(servers, topic, 3, group)
        return {queue["committed"] for queue in client.offsets(servers, topic, 0, group)}

    # Java commits one-way, and its broker may lose one of several first commits of a group that arrive together.
    assert client.eventually(committed, {3}.__eq__) == {3}
    queues = client.offsets(servers, topic, begin_ms - 60_000, group)
    assert len(queues) == 4
    assert sum(queue["max"] for queue in queues) == len(wanted)
    for queue in queues:
        assert queue["min"] == 0
        assert queue["byTime"] == 0
        assert begin_ms - 1000 <= queue["earliest"] <= begin_ms + 60_000
    for queue in client.offsets(servers, topic, begin_ms + 600_000, group):
        # Java's answer to a time after the last message is the last message's own offset.
        assert queue["byTime"] == queue["max"] - 1
