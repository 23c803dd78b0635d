"""A Java slave follows our master, and our slave a Java master: 16 MiB of known messages over several log files.

One run per direction: an empty slave follows while a third of the messages is sent, is killed while the second third is
sent, restarts, and then the master is killed and restarts before the last third. The tests check the results of each
phase.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import attrs
import pytest
import trio

import triomq
from triomq import SendStatus
from triomq_benchmarks.clusters.server_state import ask_blocking, log_end
from triomq_benchmarks.clusters.servers import Kind, Server
from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.fastjson import loads

TOPIC, GROUP = "replicated", "replicated-readers"
QUEUES = 4
THIRD = 1400
LARGEST_BODY = 8000
FILE_BYTES = 2 << 20
IN_FLIGHT = 32
HEARTBEAT_MS = 500
LIMIT_S = 120.0
CQ_ENTRY_BYTES = 20
COMMITTED = {0: 3, 1: 1, 2: 2, 3: 7}
SETTINGS = {
    "brokerRole": "SYNC_MASTER",
    "mappedFileSizeCommitLog": FILE_BYTES,
    "haSendHeartbeatInterval": HEARTBEAT_MS,
    # Overload is not under test.
    "slaveTimeout": 20_000,
    "waitTimeMillsInSendQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}


class Starts(Protocol):
    """The interface of the `Servers` of `conftest`."""

    scratch: Path

    def broker(self, kind: Kind, name: str, name_servers: str, settings: dict[str, object], port: int) -> Any: ...


@attrs.define
class ReplicationRun:
    """The results of one direction.

    Attributes:
        master, slave: their folders.
        sent: bodies per queue, in the order of their offsets.
        with_slave, without_slave, with_slave_again: how often each status was answered then.
        metadata_s: seconds until the slave had all metadata; None: not in time.
        metadata: what the slave had then: topics, offsets, groups.
        log_end: where the master's log ends.
        slave_log_end: where the slave's does.
        slave_begin: the first byte that the slave has.
        seen: bodies per queue as our SDK pulled them from the slave.
        second_slave: the folder of another empty slave, started when there were several files.
    """

    master: Path
    slave: Path
    sent: dict[int, list[bytes]] = attrs.field(factory=lambda: {queue: [] for queue in range(QUEUES)})
    with_slave: Counter[SendStatus] = attrs.field(factory=Counter)
    without_slave: Counter[SendStatus] = attrs.field(factory=Counter)
    with_slave_again: Counter[SendStatus] = attrs.field(factory=Counter)
    metadata_s: float | None = None
    metadata: tuple[Any, Any, Any] = (None, None, None)
    log_end: int = 0
    slave_log_end: int = 0
    seen: dict[int, list[bytes]] = attrs.field(factory=dict)
    second_slave: Path | None = None


def bodies(part: int) -> list[bytes]:
    chance = random.Random(part)
    return [b"%d-%d:" % (part, index) + chance.randbytes(chance.randrange(1, LARGEST_BODY)) for index in range(THIRD)]


def send_third(name_servers: str, part: int, replication_run: ReplicationRun) -> Counter[SendStatus]:
    """Send a third of all messages, many at once; its statuses."""
    statuses: Counter[SendStatus] = Counter()
    placed: list[tuple[int, int, bytes]] = []

    async def send() -> None:
        waiting = list(enumerate(bodies(part)))[::-1]

        async def one_sender(producer: triomq.Producer) -> None:
            while waiting:
                index, body = waiting.pop()
                message = triomq.Message(TOPIC, body, tags="AB"[index % 2], keys=f"k{part}-{index}")
                result = await producer.send(message)
                statuses[result.status] += 1
                placed.append((result.queue.queue_id, result.queue_offset, body))

        with trio.fail_after(LIMIT_S):
            async with (
                triomq.open_client(name_servers) as client,
                client.producer("replicated-writers", compressor=None, send_timeout_s=25) as producer,
                trio.open_nursery() as nursery,
            ):
                for _ in range(IN_FLIGHT):
                    nursery.start_soon(one_sender, producer)

    trio.run(send)
    for queue, offset, body in sorted(placed, key=lambda each: each[:2]):
        assert offset == len(replication_run.sent[queue]), "offsets of a queue are dense"
        replication_run.sent[queue].append(body)
    return statuses


def wait_until(good: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    begin = time.monotonic()
    while not good():
        assert time.monotonic() - begin < limit_s, what
        time.sleep(0.1)
    return time.monotonic() - begin


def wait_for_slave(master: Server, slave: Server) -> None:
    """Wait until the slave has every byte, and an entry for each message in its queues."""

    def caught_up() -> bool:
        try:
            return log_end(slave.address) == log_end(master.address) and queue_ends(slave) == queue_ends(master)
        except OSError:
            return False

    wait_until(caught_up, f"the slave did not catch up: {slave.output()}")


def queue_ends(server: Server) -> list[int]:
    ends = []
    for queue in range(QUEUES):
        answer = ask_blocking(server.address, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue)})
        ends.append(int((answer.fields or {})["offset"]))
    return ends


def status_of_one(name_servers: str, replication_run: ReplicationRun) -> SendStatus:
    """Send one more message."""

    async def send() -> SendStatus:
        async with (
            triomq.open_client(name_servers) as client,
            client.producer("replicated-writers", send_timeout_s=25) as producer,
        ):
            body = b"one more %d" % len(replication_run.sent[0])
            result = await producer.send(triomq.Message(TOPIC, body), queue=triomq.MessageQueue(TOPIC, "broker-a", 0))
            replication_run.sent[0].append(body)
            return result.status

    return trio.run(send)


def make_metadata(java_client: Any, name_servers: str, master: Server) -> None:
    java_client.admin(
        name_servers, "updateTopic", "-b", master.address, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES)
    )
    java_client.admin(name_servers, "updateSubGroup", "-b", master.address, "-g", GROUP, "-r", "5")
    for queue, offset in COMMITTED.items():
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "commitOffset": str(offset)}
        assert ask_blocking(master.address, RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def metadata(server: Server) -> tuple[Any, Any, Any]:
    """What a broker answers about the topic, its offsets and its group."""

    def table(code: int, name: str) -> dict[str, Any]:
        body: Any = loads(ask_blocking(server.address, code).body)
        return dict(body[name])

    offsets = table(RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable").get(f"{TOPIC}@{GROUP}", {})
    return (
        table(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable").get(TOPIC),
        {int(queue): offset for queue, offset in offsets.items()},
        table(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable").get(GROUP),
    )


def pull_from_slave(name_servers: str) -> dict[int, list[bytes]]:
    seen: dict[int, list[bytes]] = {}

    async def pull() -> None:
        async with (
            triomq.open_client(name_servers) as client,
            client.pull_consumer("slave-readers", read_preference="slave") as consumer,
        ):
            for queue in range(QUEUES):
                seen[queue] = []
                offset = 0
                where = triomq.MessageQueue(TOPIC, "broker-a", queue)
                while (pulled := await consumer.pull(where, offset)).messages:
                    seen[queue] += [one.body for one in pulled.messages]
                    offset = pulled.next_offset

    trio.run(pull)
    return seen


def port_of(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


@pytest.fixture(
    scope="module",
    params=[(Kind.OURS, Kind.JAVA), (Kind.JAVA, Kind.OURS)],
    ids=["java-slave-of-ours", "our-slave-of-java"],
)
def replication_run(request: pytest.FixtureRequest, servers: Any, java_client: Any) -> Iterator[ReplicationRun]:
    leads, follows = request.param
    base = f"replication-{leads}-{follows}"
    run = ReplicationRun(servers.scratch / f"{base}-master", servers.scratch / f"{base}-slave")
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(Kind.OURS, f"{base}-namesrv")).address

        def start_master(port: int | None = None) -> Server:
            return stack.enter_context(servers.broker(leads, run.master.name, names, SETTINGS, port))  # type: ignore[no-any-return]

        master = start_master()
        make_metadata(java_client, names, master)

        def start_slave(name: str, broker_id: int, port: int | None = None) -> Server:
            host, _, listens = master.address.rpartition(":")
            role = {
                "brokerRole": "SLAVE",
                "brokerId": broker_id,
                "haMasterAddress": f"{host}:{int(listens) + 1}",
            }
            return stack.enter_context(servers.broker(follows, name, names, SETTINGS | role, port))  # type: ignore[no-any-return]

        slave = start_slave(run.slave.name, 1)
        wait_until(lambda: status_of_one(names, run) is SendStatus.SEND_OK, "the slave never counted")
        run.with_slave = send_third(names, 1, run)
        wait_for_slave(master, slave)
        run.metadata_s = arrival_of_metadata(master, slave)
        run.metadata = metadata(slave)
        slave.kill()
        wait_until(
            lambda: status_of_one(names, run) is SendStatus.SLAVE_NOT_AVAILABLE, "the killed slave still counted"
        )
        run.without_slave = send_third(names, 2, run)
        slave = start_slave(run.slave.name, 1, port_of(slave))
        wait_for_slave(master, slave)
        port = port_of(master)
        master.kill()
        master = start_master(port)
        wait_until(lambda: status_of_one(names, run) is SendStatus.SEND_OK, "the slave did not reconnect")
        run.with_slave_again = send_third(names, 3, run)
        wait_for_slave(master, slave)
        wait_until(lambda: metadata(slave)[0] is not None, "the slave does not have the topic")
        run.seen = pull_from_slave(names)
        fresh = start_slave(f"{base}-second-slave", 2)
        wait_for_slave(master, fresh)
        run.second_slave = servers.scratch / f"{base}-second-slave"
        run.log_end, run.slave_log_end = log_end(master.address), log_end(slave.address)
        java_client.close(names)
        yield run


def arrival_of_metadata(master: Server, slave: Server) -> float | None:
    """Seconds until the slave has all metadata; some may have arrived before. None: not in time."""
    try:
        return wait_until(lambda: metadata(slave) == metadata(master), "no metadata")
    except AssertionError:
        return None


def log_bytes(home: Path, end: int) -> bytes:
    """All bytes of a log, from its first file on."""
    files = sorted(file for file in (home / "store" / "commitlog").iterdir() if file.name.isdigit())
    begin = int(files[0].name)
    return b"".join(file.read_bytes() for file in files)[: end - begin]


def queue_bytes(home: Path, queue: int, entries: int) -> bytes:
    folder = home / "store" / "consumequeue" / TOPIC / str(queue)
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))[: entries * CQ_ENTRY_BYTES]


def test_the_logs_are_equal(replication_run: ReplicationRun) -> None:
    assert replication_run.log_end == replication_run.slave_log_end > 16 << 20
    log = log_bytes(replication_run.master, replication_run.log_end)
    assert len(log) == replication_run.log_end
    assert log.count(b"\0") < len(log) // 2
    copy = log_bytes(replication_run.slave, replication_run.log_end)
    assert len(copy) == len(log)
    assert copy == log


def test_the_queues_are_equal(replication_run: ReplicationRun) -> None:
    for queue, sent in replication_run.sent.items():
        entries = queue_bytes(replication_run.master, queue, len(sent))
        assert len(entries) == len(sent) * CQ_ENTRY_BYTES
        assert entries[-12:-8] != bytes(4)
        assert queue_bytes(replication_run.slave, queue, len(sent)) == entries


def test_the_slave_serves_every_message_in_order(replication_run: ReplicationRun) -> None:
    assert sum(map(len, replication_run.sent.values())) >= 3 * THIRD
    for queue, sent in replication_run.sent.items():
        assert replication_run.seen[queue] == sent


def test_results_of_sends_show_whether_a_slave_has_them(replication_run: ReplicationRun) -> None:
    assert replication_run.with_slave == {SendStatus.SEND_OK: THIRD}
    assert replication_run.without_slave == {SendStatus.SLAVE_NOT_AVAILABLE: THIRD}
    assert replication_run.with_slave_again == {SendStatus.SEND_OK: THIRD}


def test_metadata_arrives(replication_run: ReplicationRun) -> None:
    assert replication_run.metadata_s is not None
    topic, offsets, group = replication_run.metadata
    assert (topic["readQueueNums"], topic["writeQueueNums"]) == (QUEUES, QUEUES)
    assert offsets == COMMITTED
    assert group["retryMaxTimes"] == 5
    saved = json.loads((replication_run.slave / "store" / "config" / "topics.json").read_text())
    assert TOPIC in saved["topicConfigTable"]


def test_an_empty_slave_gets_all_files(replication_run: ReplicationRun) -> None:
    assert replication_run.second_slave is not None
    copy = log_bytes(replication_run.second_slave, replication_run.log_end)
    assert len(copy) == replication_run.log_end
    assert copy == log_bytes(replication_run.master, replication_run.log_end)
