"""A topic that is deleted and created again, through changes of the role, with one process per node.

Its numbers go on, whichever broker is master, and nothing of the deleted topic is served in place of what came later.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from triomq_benchmarks.clusters.server_state import ask_blocking
from triomq_protocol.codes import RequestCode

TOPIC = "recreated"
LIMIT_S = 120.0
SERVER = [sys.executable, "-m", "triomq_server"]
CREATE = {
    "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
SEND = {
    "producerGroup": "PG", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "", "reconsumeTimes": "0",
}  # fmt: skip


@contextmanager
def cluster(directory: Path) -> Iterator[dict[str, str]]:
    """Name server, master and slave as processes: address by name."""
    command = [*SERVER, "cluster", "--json", "--directory", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield {node["name"]: node["address"] for node in json.loads(process.stdout.readline())["nodes"]}
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def wait_until(good: Callable[[], bool], what: str) -> None:
    begin = time.monotonic()
    while not good():
        assert time.monotonic() - begin < LIMIT_S, what
        time.sleep(0.1)


def recreate(address: str) -> None:
    assert ask_blocking(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}).code == 0
    assert ask_blocking(address, RequestCode.UPDATE_AND_CREATE_TOPIC, CREATE).code == 0


def bounds(address: str) -> tuple[int, int]:
    """The first and the next number of the queue."""
    fields = {"topic": TOPIC, "queueId": "0"}
    answers = [ask_blocking(address, code, fields) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)]
    low, high = (int((answer.fields or {}).get("offset", "-1")) for answer in answers)
    return low, high


def put(address: str, count: int) -> list[int]:
    """Send messages; their queue offsets. 10 and 11 say that a slave does not have it yet, or that there is none."""
    found = []
    for _ in range(count):
        answer = ask_blocking(address, RequestCode.SEND_MESSAGE, SEND)
        assert answer.code in (0, 10, 11, 12), answer.remark
        found.append(int((answer.fields or {})["queueOffset"]))
    return found


@pytest.mark.slow
def test_offsets_continue_through_changes_of_the_role(
    call: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    with cluster(tmp_path) as address:
        names, first, second = address["namesrv-0"], address["broker-a"], address["broker-a-s"]

        def promote(name: str) -> None:
            wait_until(
                lambda: call("admin", "role", address[name], "master", "-n", names).returncode == 0,
                f"{name} stays slave",
            )

        def node(verb: str, name: str) -> None:
            done = call("admin", "node", verb, name, "--directory", str(tmp_path))
            assert done.returncode == 0, done.stderr

        assert ask_blocking(first, RequestCode.UPDATE_AND_CREATE_TOPIC, CREATE).code == 0
        assert put(first, 5) == [0, 1, 2, 3, 4]
        wait_until(lambda: bounds(second) == (0, 5), "the slave does not follow")
        recreate(first)
        assert put(first, 8) == list(range(5, 13))
        wait_until(lambda: bounds(second) == (5, 13), "the slave does not follow a topic that was created again")

        node("kill", "broker-a")
        promote("broker-a-s")
        assert bounds(second) == (5, 13)
        assert put(second, 1) == [13]
        recreate(second)
        assert put(second, 2) == [14, 15]

        node("start", "broker-a")
        wait_until(lambda: bounds(first) == (14, 16), "the old master does not follow the new one")
        node("kill", "broker-a-s")
        promote("broker-a")
        assert bounds(first) == (14, 16)
        assert put(first, 1) == [16]
        node("restart", "broker-a")
        assert bounds(first) == (14, 17)
        assert put(first, 1) == [17]
