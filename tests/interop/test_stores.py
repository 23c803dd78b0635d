"""A store directory written by the one broker, opened and served by the other: after a clean stop and after a crash.

What is compared is everything a Java client sees of a message, offsets and properties included, the consumer offsets
and the topics, and then that the new owner continues where the old one ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from replaced_files import text_of

from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.clusters.servers import Kind, Server

OTHER = {Kind.OURS: Kind.JAVA, Kind.JAVA: Kind.OURS}
GROUP = "readers"
# Long enough that everything of the test is on the disk in the crash cases too: the process is killed, not the machine,
# so what was written to a mapped file remains; only what the broker keeps in memory must have been saved.
SETTINGS = {"flushConsumerOffsetInterval": 200, "flushIntervalCommitLog": 100, "flushIntervalConsumeQueue": 100}

writers = pytest.mark.parametrize("writer", [Kind.OURS, Kind.JAVA], ids=["written-by-ours", "written-by-java"])


def fill(client: Any, servers: str, topic: str, make_samples: Any) -> list[Any]:
    """Send every kind of message: single messages over several files, a batch, large compressed bodies, offsets."""
    wanted = [*make_samples(120, seed=11, largest_bytes=30_000), *make_samples(60, seed=12)]
    batch = make_samples(32, seed=13)
    large = make_samples(2, seed=14)
    client.send(servers, topic, wanted, "async")
    client.send(servers, topic, batch, "batch")
    client.send(servers, topic, large)
    everything = [*wanted, *batch, *large]
    client.pull_all(servers, topic, len(everything))

    def committed() -> set[int]:
        client.commit(servers, topic, 7, GROUP)
        return {queue["committed"] for queue in client.offsets(servers, topic, 0, GROUP)}

    assert client.eventually(committed, {7}.__eq__) == {7}
    return everything


def is_in_table(home: Path, table: str, entry: str) -> bool:
    return entry in text_of(home / "store" / "config" / table)


def saved_offsets(home: Path, topic: str) -> bool:
    """Whether the committed offsets have reached the file."""
    return is_in_table(home, "consumerOffset.json", f"{topic}@{GROUP}")


def serve_and_compare(client: Any, servers: str, topic: str, before: Any, make_samples: Any) -> None:
    seen = client.pull_all(servers, topic, len(before))
    assert seen == before
    for one in before[:: len(before) // 5]:
        found = client.query_until_found(servers, topic, one.keys)
        assert [(each.queue_id, each.queue_offset) for each in found] == [(one.queue_id, one.queue_offset)]
    assert {queue["committed"] for queue in client.offsets(servers, topic, 0, GROUP)} == {7}
    # The new owner continues where the old one ended.
    more = make_samples(20, seed=15)
    client.send(servers, topic, more)
    after = client.pull_all(servers, topic, len(before) + len(more))
    assert sorted(one.sample().body for one in after if one not in before) == sorted(one.body for one in more)
    for queue_id in {one.queue_id for one in after}:
        offsets = [one.queue_offset for one in after if one.queue_id == queue_id]
        assert offsets == list(range(len(offsets)))


def saved_topic(home: Path, topic: str) -> bool:
    """Whether the table of topics on disk has one."""
    return is_in_table(home, "topics.json", topic)


def by_place(messages: Any) -> Any:
    return sorted(messages, key=lambda one: (one.queue_id, one.queue_offset))


def end(broker: Server, how: str) -> None:
    if how == "killed":
        broker.kill()
    else:
        assert broker.stop() in {0, 143, -15}, "a clean stop"


@writers
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_other_broker_opens_a_store(
    writer: Kind, how: str, servers: Any, java_client: Any, topic: str, make_samples: Any
) -> None:
    name = f"store-{writer}-{how}"
    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names:
        address = names.address
        with servers.broker(writer, name, address, SETTINGS) as broker:
            everything = fill(java_client, address, topic, make_samples)
            before = java_client.pull_all(address, topic, len(everything))
            assert len(before) == len(everything)
            assert {one.sample() for one in before} == set(everything)
            java_client.eventually(partial(saved_offsets, servers.scratch / name, topic), bool)
            port = int(broker.address.rpartition(":")[2])
            end(broker, how)
        abort = servers.scratch / name / "store" / "abort"
        assert abort.exists() == (how == "killed")
        # The same port: the store host in each record is part of what is compared.
        with servers.broker(OTHER[writer], name, address, SETTINGS, port) as broker:
            assert broker.address.endswith(f":{port}")
            serve_and_compare(java_client, address, topic, before, make_samples)
            end(broker, how)
        # And back again to the first one, which reads what the other has added.
        with servers.broker(writer, name, address, SETTINGS, port):
            seen = java_client.pull_all(address, topic, len(before) + 20)
            assert len(seen) == len(before) + 20
            assert [one for one in seen if one in before] == before
        java_client.close(address)


@writers
def test_a_repaired_store_is_served_by_both(
    writer: Kind, servers: Any, java_client: Any, topic: str, make_samples: Any
) -> None:
    """Queues, index and checkpoint are damaged or missing; `triomq admin repair-store` builds them again."""
    name = f"repaired-{writer}"
    store = servers.scratch / name / "store"
    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names:
        address = names.address
        with servers.broker(writer, name, address, SETTINGS) as broker:
            everything = fill(java_client, address, topic, make_samples)
            before = java_client.pull_all(address, topic, len(everything))
            java_client.eventually(partial(saved_offsets, servers.scratch / name, topic), bool)
            port = int(broker.address.rpartition(":")[2])
            end(broker, "stopped")
        first, second, *_ = sorted((store / "consumequeue" / topic).iterdir())
        with (first / f"{0:020d}").open("r+b") as file:
            file.seek(20 * 3 + 7)
            file.write(b"?")
        shutil.rmtree(second)
        shutil.rmtree(store / "index")
        (store / "checkpoint").write_bytes(b"?")
        command = [sys.executable, "-m", "triomq_server", "admin", "repair-store", str(store), "--yes", "--json"]
        done = subprocess.run(
            [*command, "-c", str(servers.scratch / name / "broker.conf")],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert {one["kind"] for one in json.loads(done.stdout)["problems"]} == {"queue", "index", "checkpoint"}
        with servers.broker(Kind.JAVA, name, address, SETTINGS, port) as broker:
            serve_and_compare(java_client, address, topic, before, make_samples)
            end(broker, "stopped")
        with servers.broker(Kind.OURS, name, address, SETTINGS, port):
            seen = java_client.pull_all(address, topic, len(before) + 20)
            assert [one for one in seen if one in before] == before
        java_client.close(address)


@writers
def test_the_other_broker_reads_settings(writer: Kind, servers: Any, java_client: Any, topic: str) -> None:
    """Topics, groups and their settings: the JSON files under store/config."""
    name = f"config-{writer}"
    with servers.namesrv(Kind.JAVA, f"{name}-namesrv") as names:
        address = names.address
        with servers.broker(writer, name, address) as broker:
            topic_settings = ["-t", topic, "-r", "3", "-w", "5", "-p", "4"]
            java_client.admin(address, "updateTopic", "-b", broker.address, *topic_settings)
            java_client.admin(address, "updateSubGroup", "-b", broker.address, "-g", "billing", "-r", "3")
            end(broker, "stopped")
        for file in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
            assert json_like(servers.scratch / name / "store" / "config" / file)
        with servers.broker(OTHER[writer], name, address):
            route = java_client.admin(address, "topicRoute", "-t", topic)
            assert '"readQueueNums":3' in route
            assert '"writeQueueNums":5' in route
            assert '"perm":4' in route
        groups = json.loads((servers.scratch / name / "store" / "config" / "subscriptionGroup.json").read_text())
        assert groups["subscriptionGroupTable"]["billing"]["retryMaxTimes"] == 3
        java_client.close(address)


def json_like(file: Path) -> bool:
    return file.read_text().lstrip().startswith("{")


@writers
def test_torn_tail_is_truncated(writer: Kind, servers: Any, java_client: Any, topic: str, make_samples: Any) -> None:
    """After a crash the log may end in half a record: the new owner truncates it and continues."""
    name = f"torn-{writer}"
    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names:
        address = names.address
        with servers.broker(writer, name, address, SETTINGS) as broker:
            wanted = make_samples(40)
            java_client.send(address, topic, wanted)
            before = java_client.pull_all(address, topic, len(wanted))
            # A topic that is not in the table yet, ours would find in the log, Java's would not.
            java_client.eventually(partial(saved_topic, servers.scratch / name, topic), bool)
            port = int(broker.address.rpartition(":")[2])
            broker.kill()
        last = max(before, key=lambda one: one.physical_offset)
        log = servers.scratch / name / "store" / "commitlog" / f"{0:020}"
        with log.open("r+b") as file:
            file.seek(last.physical_offset + 120)
            file.write(b"\0" * 40)
        # Files derived from the log are behind or ahead of it after a crash; here they are ahead by the torn record.
        with servers.broker(OTHER[writer], name, address, SETTINGS, port):
            kept = [one for one in before if one != last]
            seen = java_client.pull_all(address, topic, len(kept))
            assert seen == kept
            java_client.send(address, topic, make_samples(8, seed=21))
            assert len(java_client.pull_all(address, topic, len(kept) + 8)) == len(kept) + 8
        java_client.close(address)


def test_a_second_owner_is_refused(servers: Any, java_client: Any) -> None:
    """The process that holds the store's lock file keeps it, across languages."""
    for first in Kind:
        name = f"locked-{first}"
        with (
            servers.namesrv(Kind.OURS, f"{name}-namesrv") as names,
            servers.broker(first, name, names.address),
            pytest.raises(ChildError, match="ended before it was ready"),
            servers.broker(OTHER[first], name, names.address),
        ):
            pass


def test_a_copied_store_serves_from_another_place(
    servers: Any, java_client: Any, topic: str, make_samples: Any
) -> None:
    """No path is stored in the files."""
    with servers.namesrv(Kind.OURS, "copied-namesrv") as names:
        with servers.broker(Kind.OURS, "original", names.address) as broker:
            port = int(broker.address.rpartition(":")[2])
            wanted = make_samples(40)
            java_client.send(names.address, topic, wanted)
            before = java_client.pull_all(names.address, topic, len(wanted))
        shutil.copytree(servers.scratch / "original" / "store", servers.scratch / "copy" / "store")
        with servers.broker(Kind.JAVA, "copy", names.address, port=port):
            assert java_client.pull_all(names.address, topic, len(wanted)) == before
        java_client.close(names.address)
