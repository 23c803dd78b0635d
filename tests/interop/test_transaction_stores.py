"""Open transactions in a store that changes hands: the next broker asks about them, and they end as they should.

Both directions, after a clean stop and after a kill, with half messages that the first broker has checked already.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from replaced_files import text_of

import triomq
from triomq import TransactionState
from triomq_benchmarks.clusters.servers import Kind

OTHER = {Kind.OURS: Kind.JAVA, Kind.JAVA: Kind.OURS}
CHECKS = {
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": 1000,
    "flushIntervalCommitLog": 100,
}
UNHURRIED = {**CHECKS, "transactionTimeOut": 600_000}
FIRST = ["COMMIT_MESSAGE 1", "ROLLBACK_MESSAGE 2", "UNKNOW 3", "ROLLBACK_MESSAGE 4", "UNKNOW 5", "COMMIT_MESSAGE 6"]

writers = pytest.mark.parametrize("writer", [Kind.OURS, Kind.JAVA], ids=["written-by-ours", "written-by-java"])


def progress(home: Path, topic: str) -> int:
    """How far the check has come, by consumerOffset.json, whose integer keys are not quoted."""
    file = home / "store" / "config" / "consumerOffset.json"
    if not (text := text_of(file)):
        return -1
    table = json.loads(re.sub(r"(\d+):", r'"\1":', text))["offsetTable"]
    return int(table.get(f"RMQ_SYS_TRANS_{topic}@CID_RMQ_SYS_TRANS", {}).get("0", -1))


def transact_first(client: Any, address: str, broker: Any, home: Path, group: str, topic: str) -> None:
    """Send the first transactions to a broker with `UNHURRIED`; checks begin when it has recorded the four ends.

    RocketMQ checks a transaction whose end arrives later than its check once more, since it has a copy by then.
    """
    client.transact(address, group, topic, FIRST, "UNKNOW")
    queue = home / "store" / "consumequeue" / "RMQ_SYS_TRANS_OP_HALF_TOPIC" / "0" / f"{0:020}"

    def ends() -> int:
        entries = queue.read_bytes()[: 20 * len(FIRST)] if queue.exists() else b""
        return sum(any(entries[at : at + 20]) for at in range(0, len(entries), 20))

    assert client.eventually(ends, lambda count: count == 4) == 4
    time_out = str(CHECKS["transactionTimeOut"])
    client.admin(address, "updateBrokerConfig", "-b", broker.address, "-k", "transactionTimeOut", "-v", time_out)


def bodies(client: Any, servers: str, topic: str) -> list[str]:
    return sorted(message.body.decode() for message in client.pull(servers, topic))


@writers
@pytest.mark.parametrize(("how", "end"), [("killed", "COMMIT_MESSAGE"), ("stopped", "ROLLBACK_MESSAGE")])
def test_the_other_broker_ends_transactions(
    writer: Kind, how: str, end: str, servers: Any, java_client: Any, topic: str
) -> None:
    name, group = f"transactions-{writer}-{how}-{end}", f"G-{topic}"[:60]
    home = servers.scratch / name
    committed = ["COMMIT_MESSAGE 1", "COMMIT_MESSAGE 6", "COMMIT_MESSAGE 7"]
    wanted = sorted([*committed, "UNKNOW 3", "UNKNOW 5"] if end == "COMMIT_MESSAGE" else committed)
    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names:
        address = names.address
        with servers.broker(writer, name, address, UNHURRIED) as broker:
            port = int(broker.address.rpartition(":")[2])
            transact_first(java_client, address, broker, home, group, topic)
            # Nobody answers, so that each check stores the two that are open once more.
            offset = java_client.eventually(
                lambda: progress(home, "HALF_TOPIC"), lambda offset: offset >= len(FIRST) + 2
            )
            assert offset >= len(FIRST) + 2
            assert progress(home, "OP_HALF_TOPIC") == 4
            assert set(bodies(java_client, address, topic)) == {"COMMIT_MESSAGE 1", "COMMIT_MESSAGE 6"}
            if how == "killed":
                broker.kill()
            else:
                broker.stop()
        with servers.broker(OTHER[writer], name, address, CHECKS, port) as broker:
            java_client.transact(address, group, topic, ["COMMIT_MESSAGE 7"], end)
            # The three that have ended are passed: nothing is open any more.
            java_client.eventually(lambda: progress(home, "OP_HALF_TOPIC"), lambda offset: offset >= 7)
            assert progress(home, "OP_HALF_TOPIC") >= 7
            found = java_client.eventually(
                lambda: bodies(java_client, address, topic), lambda found: set(found) == set(wanted)
            )
            assert set(found) == set(wanted)
            halves = progress(home, "HALF_TOPIC")
            broker.stop()
        with servers.broker(writer, name, address, CHECKS, port):
            # The first owner finds nothing open: it passes a transaction of its own, and asks about no other.
            java_client.transact(address, f"{group}-2", topic, ["COMMIT_MESSAGE 8"], "COMMIT_MESSAGE")
            offset = java_client.eventually(lambda: progress(home, "HALF_TOPIC"), lambda offset: offset > halves)
            assert offset > halves
            assert set(bodies(java_client, address, topic)) == {*wanted, "COMMIT_MESSAGE 8"}
        java_client.close(address)


@pytest.mark.parametrize("master", [Kind.OURS, Kind.JAVA], ids=["our-master", "java-master"])
def test_a_slave_of_the_other_implementation_takes_over(
    master: Kind, servers: Any, java_client: Any, topic: str
) -> None:
    name, group = f"transaction-set-{master}", f"G-{topic}"[:60]
    slave_home = servers.scratch / f"{name}-slave"
    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names:
        address = names.address
        as_slave = {**CHECKS, "brokerRole": "SLAVE", "brokerId": 1}
        with servers.broker(OTHER[master], f"{name}-slave", address, as_slave) as slave:
            port = int(slave.address.rpartition(":")[2])
            with servers.broker(master, f"{name}-master", address, UNHURRIED) as broker:
                transact_first(java_client, address, broker, servers.scratch / f"{name}-master", group, topic)
                # A slave may copy offsets before it has copied the log.
                log = slave_home / "store" / "commitlog" / f"{0:020}"
                copied = java_client.eventually(
                    lambda: log.read_bytes().count(b"COMMIT_MESSAGE 6") if log.exists() else 0, lambda count: count >= 2
                )
                assert copied >= 2, "half and committed message"
                passed = java_client.eventually(
                    lambda: progress(slave_home, "HALF_TOPIC"), lambda offset: offset >= len(FIRST) + 2
                )
                assert passed >= len(FIRST) + 2
                broker.kill()
            assert slave.alive
            slave.stop()
        with servers.broker(OTHER[master], f"{name}-slave", address, CHECKS, port):
            java_client.transact(address, group, topic, ["COMMIT_MESSAGE 7"], "COMMIT_MESSAGE")
            wanted = {text for text in (*FIRST, "COMMIT_MESSAGE 7") if not text.startswith("ROLLBACK")}
            found = java_client.eventually(
                lambda: bodies(java_client, address, topic), lambda seen: set(seen) == wanted
            )
            assert set(found) == wanted
        java_client.close(address)


@pytest.mark.parametrize("kind", [Kind.OURS, Kind.JAVA])
async def test_what_checks_keep_of_a_half_message(kind: Kind, servers: Any, topic: str) -> None:
    """4.9.7 loses the flag with the first copy, and counts the rounds in which the producer did not want to be
    asked."""
    name = f"checks-{kind}"
    asked: list[triomq.ReceivedMessage] = []
    enough = trio.Event()

    async def check(message: triomq.ReceivedMessage) -> TransactionState:
        asked.append(message)
        bodies = [one.body for one in asked]
        if b"patient" in bodies and bodies.count(b"flag") >= 2:
            enough.set()
        return TransactionState.UNKNOWN

    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names, servers.broker(kind, name, names.address, CHECKS):
        async with triomq.open_client(names.address) as client:
            producer = client.producer(f"G-{topic}", transactions=check)
            patient = triomq.Message(topic, b"patient", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"})
            for message in (triomq.Message(topic, b"flag", flag=5), patient):
                await producer.send_in_transaction(message, lambda _: TransactionState.UNKNOWN)
            with trio.fail_after(120):
                await enough.wait()
    flags = [one.flag for one in asked if one.body == b"flag"]
    times = next(int(one.properties["TRANSACTION_CHECK_TIMES"]) for one in asked if one.body == b"patient")
    if kind is Kind.OURS:
        assert (flags[:2], times) == ([5, 5], 1)
    else:
        assert flags[:2] == [5, 0]
        assert times > 1
