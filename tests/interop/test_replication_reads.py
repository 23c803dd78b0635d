"""Readers that follow a master's suggestion: the Java pull consumer changes to our slave and back, our SDK to Java's.

The limit for "too far behind" is lowered in different ways: our brokers are configured with little memory, Java's with
a share of theirs that is 0 % first and 40 % later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from java_clients import client_command

import triomq
from triomq_benchmarks.clusters.java import Java
from triomq_benchmarks.clusters.processes import Driver
from triomq_benchmarks.clusters.server_state import knows_topic, log_end, max_offset
from triomq_benchmarks.clusters.servers import Kind, Server

TOPIC = "followed"
QUEUE = triomq.MessageQueue(TOPIC, "broker-a", 0)
BODY = bytes(range(256)) * 16
MEMORY_BYTES = 1 << 20
FEW, MANY = 10, 400
"""Few are within 40 % of the memory of our brokers, many are four times that."""
LIMIT_S = 120.0
SHARED = {"slaveReadEnable": True, "haSendHeartbeatInterval": 500, "maxHashSlotNum": 5000, "maxIndexNum": 20_000}


@attrs.frozen
class Pair:
    """A name server of ours, a master and its slave."""

    name_servers: str
    master: Server
    slave: Server


@contextmanager
def open_pair(servers: Any, leads: Kind, follows: Kind, settings: Mapping[str, object]) -> Iterator[Pair]:
    """Both brokers, and a topic of one queue known to both."""
    base = f"reads-{leads}-{follows}"
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(Kind.OURS, f"{base}-namesrv")).address
        master = stack.enter_context(servers.broker(leads, f"{base}-master", names, {**SHARED, **settings}))
        trio.run(create_topic, names)
        host, _, port = master.address.rpartition(":")
        role = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"{host}:{int(port) + 1}"}
        slave = stack.enter_context(servers.broker(follows, f"{base}-slave", names, {**SHARED, **settings, **role}))
        wait_until(lambda: trio.run(knows_topic, slave.address, TOPIC), "the slave does not have the topic")
        yield Pair(names, master, slave)


async def create_topic(name_servers: str) -> None:
    async with triomq.open_client(name_servers) as client:
        await client.admin.create_topic(TOPIC, queues=1)


def wait_until(good: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not good():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def send(pair: Pair, count: int) -> None:
    """Send, and wait until the slave has it, in its queue too: a reader beyond the queue's end is sent back."""
    end = 0

    async def all_of_them() -> None:
        nonlocal end
        async with (
            triomq.open_client(pair.name_servers) as client,
            client.producer("followed-writers", compressor=None, send_timeout_s=25) as producer,
        ):
            for _ in range(count):
                end = (await producer.send(triomq.Message(TOPIC, BODY), queue=QUEUE)).queue_offset + 1

    trio.run(all_of_them)
    wait_until(lambda: log_end(pair.slave.address) == log_end(pair.master.address), "the slave did not catch up")
    for server in (pair.master, pair.slave):
        wait_until(lambda server=server: trio.run(max_offset, server.address, TOPIC, 0) == end, "its queue is behind")


@contextmanager
def open_java_reader(java: Java, home: Path, pair: Pair) -> Iterator[Callable[[int], tuple[int, int, int]]]:
    """Pulls from an offset: the id of the broker that was asked, how many messages were received, the next offset."""
    argv = client_command(java, "ReplicationReader", [pair.name_servers], home=home)
    with Driver("Java reader", argv, home / "reader.out") as driver:

        def pull(offset: int) -> tuple[int, int, int]:
            command = {"topic": TOPIC, "brokerName": "broker-a", "queue": 0, "offset": offset}
            answer: Mapping[str, Any] = driver.call(command, LIMIT_S)
            return answer["servedBy"], answer["count"], answer["next"]

        yield pull


def read_to(pull: Callable[[int], tuple[int, int, int]], offset: int, end: int) -> list[int]:
    """Pull until `end`; the ids of the brokers that served, one per change."""
    order: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while offset < end:
        served_by, count, following = pull(offset)
        assert following == offset + count, "no message is missing or repeated"
        if count and order[-1:] != [served_by]:
            order.append(served_by)
        offset = following
        assert time.monotonic() < deadline, f"stuck at {offset} with broker {served_by}"
    return order


@pytest.mark.parametrize("follows", [Kind.OURS, Kind.JAVA], ids=["our-slave", "java-slave"])
def test_java_consumer_changes_to_the_slave_and_back(follows: Kind, servers: Any, java: Java) -> None:
    with (
        open_pair(servers, Kind.OURS, follows, {"memoryBytes": MEMORY_BYTES}) as pair,
        open_java_reader(java, servers.scratch / f"reader-{follows}", pair) as pull,
    ):
        send(pair, FEW)
        assert read_to(pull, 0, FEW) == [0]
        send(pair, MANY)
        order = read_to(pull, FEW, FEW + MANY)
        if follows is Kind.OURS:
            assert order == [0, 1, 0]
        else:
            # A Java slave has the machine's memory to measure by: it redirects its readers at once, each time.
            assert set(order) == {0, 1}
            assert order[-1] == 0 or order[-2] == 0


def test_our_reader_follows_java(servers: Any, java_client: Any) -> None:
    with open_pair(servers, Kind.JAVA, Kind.JAVA, {"accessMessageInMemoryMaxRatio": 0}) as pair:
        brokers = {pair.master.address: 0, pair.slave.address: 1}

        def set_ratio(percent: int) -> None:
            for server in (pair.master, pair.slave):
                set_to = ("-k", "accessMessageInMemoryMaxRatio", "-v", str(percent))
                java_client.admin(pair.name_servers, "updateBrokerConfig", "-b", server.address, *set_to)

        async def follow() -> list[int]:
            order: list[int] = []
            async with (
                triomq.open_client(pair.name_servers) as client,
                client.pull_consumer("followed-readers") as consumer,
            ):
                offset = 0
                while offset < MANY:
                    pulled = await consumer.pull(QUEUE, offset, max_messages=16)
                    served_by = brokers[pulled.broker_address]
                    if pulled.messages and order[-1:] != [served_by]:
                        order.append(served_by)
                    if served_by == 1 and offset > MANY // 2 and order == [0, 1]:
                        await trio.to_thread.run_sync(set_ratio, 40)
                    offset = pulled.next_offset
            return order

        send(pair, MANY)
        assert trio.run(follow) == [0, 1, 0]
        java_client.close(pair.name_servers)
