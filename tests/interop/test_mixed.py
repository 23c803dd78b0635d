"""One's broker at the other's name server, used by the Java client and by our SDK at once; and both brokers in one
cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
import pytest
import trio

import triomq
from triomq_benchmarks.clusters.servers import Kind, Server

OTHER = {Kind.OURS: Kind.JAVA, Kind.JAVA: Kind.OURS}


@attrs.frozen
class Mixed:
    """A name server of one kind and brokers by name."""

    namesrv: Server
    brokers: dict[str, Server]


@pytest.fixture(scope="module", params=[Kind.OURS, Kind.JAVA], ids=["our-broker", "java-broker"])
def mixed(request: pytest.FixtureRequest, servers: Any) -> Iterator[Mixed]:
    """A broker of the one kind, registered at a name server of the other."""
    kind = request.param
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(OTHER[kind], f"mixed-{kind}-namesrv"))
        broker = stack.enter_context(servers.broker(kind, f"mixed-{kind}-broker", names.address))
        yield Mixed(names, {"broker-a": broker})


def round_trip_of_java(java_client: Any, servers: str, topic: str, wanted: Any) -> None:
    java_client.send(servers, topic, wanted)
    seen = java_client.pull_all(servers, topic, len(wanted))
    assert {one.sample() for one in seen} == set(wanted)
    assert len(seen) == len(wanted)


async def pull_bodies(servers: str, topic: str) -> Counter[bytes]:
    bodies: Counter[bytes] = Counter()
    async with triomq.open_pull_consumer(servers, "mixed-readers") as consumer:
        for queue in await consumer.fetch_queues(topic):
            offset = 0
            while (pulled := await consumer.pull(queue, offset)).status == triomq.PullStatus.FOUND:
                bodies.update(one.body for one in pulled.messages)
                offset = pulled.next_offset
    return bodies


async def test_broker_at_the_other_name_server(mixed: Mixed, java_client: Any, topic: str, make_samples: Any) -> None:
    servers = mixed.namesrv.address
    from_java, from_us = make_samples(30, seed=1), make_samples(30, seed=2)
    await trio.to_thread.run_sync(round_trip_of_java, java_client, servers, topic, from_java)
    async with triomq.open_producer(servers, "mixed-writers", send_timeout_s=25) as producer:
        for one in from_us:
            await producer.send(triomq.Message(topic, one.body, tags=one.tags, keys=one.keys, flag=one.flag))
    expected = Counter(one.body for one in [*from_java, *from_us])
    # The queue entry of the last message may follow its answer with a delay.
    bodies: Counter[bytes] = Counter()
    with trio.move_on_after(60):
        while bodies.total() < 60:
            await trio.sleep(0.1)
            bodies = await pull_bodies(servers, topic)
    assert bodies == expected
    seen = await trio.to_thread.run_sync(java_client.pull_all, servers, topic, 60)
    assert Counter(one.body for one in seen) == expected


def test_topic_created_by_mqadmin_exists_on_both(mixed: Mixed, java_client: Any, topic: str) -> None:
    servers = mixed.namesrv.address
    broker = mixed.brokers["broker-a"].address
    java_client.admin(servers, "updateTopic", "-b", broker, "-t", topic, "-r", "3", "-w", "3")
    route = java_client.eventually(
        lambda: java_client.admin(servers, "topicRoute", "-t", topic), lambda text: '"readQueueNums":3' in text
    )
    assert '"writeQueueNums":3' in route
    assert broker in route


def test_write_permission_is_wiped_and_added(mixed: Mixed, java_client: Any, topic: str, make_samples: Any) -> None:
    servers = mixed.namesrv.address
    round_trip_of_java(java_client, servers, topic, make_samples(4))

    def after(command: str) -> str:
        java_client.admin(servers, command, "-b", "broker-a")
        return str(java_client.admin(servers, "topicRoute", "-t", topic))

    # A client's first heartbeat may come in between: its group's topic makes the broker register all of them again.
    assert '"perm":4' in java_client.eventually(lambda: after("wipeWritePerm"), lambda text: '"perm":4' in text)
    assert '"perm":6' in java_client.eventually(lambda: after("addWritePerm"), lambda text: '"perm":6' in text)


def test_a_stopped_broker_leaves_the_other_name_server(servers: Any, java_client: Any) -> None:
    for kind in (Kind.OURS, Kind.JAVA):
        with servers.namesrv(OTHER[kind], f"leaving-{kind}-namesrv") as names:
            with servers.broker(kind, f"leaving-{kind}-broker", names.address) as broker:
                assert broker.address in java_client.admin(names.address, "clusterList")
                broker.stop()
            listed = java_client.eventually(
                lambda names=names: java_client.admin(names.address, "clusterList"),
                lambda text, broker=broker: broker.address not in text,
            )
            assert broker.address not in listed


def route_with(java_client: Any, servers: str, topic: str, *brokers: str) -> str:
    return java_client.eventually(  # type: ignore[no-any-return]
        lambda: java_client.admin(servers, "topicRoute", "-t", topic),
        lambda text: all(name in text for name in brokers),
    )


async def test_both_brokers_in_one_cluster(servers: Any, java_client: Any, topic: str, make_samples: Any) -> None:
    """Two brokers of different kinds at two name servers of different kinds: one topic over all of them."""
    wanted = make_samples(64)
    with ExitStack() as stack:
        names = [stack.enter_context(servers.namesrv(kind, f"both-{kind}-namesrv")).address for kind in Kind]
        joined = ";".join(names)
        for kind, name in ((Kind.OURS, "broker-ours"), (Kind.JAVA, "broker-java")):
            stack.enter_context(servers.broker(kind, f"both-{kind}", joined, {"brokerName": name}))
        create = ["updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2"]
        await trio.to_thread.run_sync(java_client.admin, joined, *create)
        # Wait until both have registered at both name servers: the client refreshes routes every half minute only.
        for name in names:
            route = await trio.to_thread.run_sync(
                partial(route_with, java_client, name, topic, "broker-ours", "broker-java")
            )
            assert "broker-java" in route
            assert "broker-ours" in route
        async with triomq.open_producer(joined, "both-writers", send_timeout_s=25) as producer:
            results = [await producer.send(triomq.Message(topic, one.body, tags=one.tags)) for one in wanted]
        assert Counter(result.queue.broker_name for result in results) == {"broker-ours": 32, "broker-java": 32}
        seen = await trio.to_thread.run_sync(java_client.pull_all, joined, topic, len(wanted))
        assert Counter(one.body for one in seen) == Counter(one.body for one in wanted)
        assert await pull_bodies(joined, topic) == Counter(one.body for one in wanted)
        await trio.to_thread.run_sync(java_client.close, joined)
