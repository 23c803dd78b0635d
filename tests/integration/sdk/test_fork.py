"""A forked child of a process with a synchronous client, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import triomq

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="forking a process with threads is a warning since Python 3.12"
)


@pytest.fixture
def name_servers() -> Iterator[str]:
    """A cluster in processes of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "triomq_server", "cluster", "--json", "--slaves", "0", "--log-level", "error"],
        stdout=subprocess.PIPE,
    )
    with process:
        yield json.loads(process.stdout.readline())["name_servers"]
        process.send_signal(signal.SIGINT)
        process.wait(120)


def sockets() -> int:
    """How many sockets this process has open."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith("socket:") for link in links)


def test_parent_and_child_go_on_with_links_of_their_own(name_servers: str) -> None:
    with triomq.blocking.open_client(name_servers) as client:
        producer = client.producer("P")
        queue = producer.send(triomq.Message("forked", b"parent")).queue
        before = sockets()
        child = os.fork()
        if not child:
            code = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(120)
            try:
                # Name server and broker: two links less than the parent has, and those that earlier tests may have left.
                assert sockets() <= before - 2
                for number in range(50):
                    producer.send(triomq.Message("forked", b"child %d" % number), queue=queue)
                client.close()
                code = 0
            except BaseException:  # noqa: BLE001 - the child must not go on with pytest
                traceback.print_exc()
            finally:
                os._exit(code)
        for number in range(50):
            producer.send(triomq.Message("forked", b"parent %d" % number), queue=queue)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send(triomq.Message("forked", b"parent, last"), queue=queue)
        consumer = client.pull_consumer("C")
        bodies = []
        while (result := consumer.pull(queue)).status is not triomq.PullStatus.NO_NEW_MESSAGE:
            bodies += [(message.body, message.message_id) for message in result.messages]
    assert len(bodies) == len(dict(bodies)) == len({message_id for _, message_id in bodies}) == 102


def test_a_client_of_the_parents_loop_is_refused(name_servers: str, tmp_path: Path) -> None:
    report = tmp_path / "report"

    async def main() -> None:
        async with triomq.open_client(name_servers) as client, client.producer("P") as producer:
            await producer.send(triomq.Message("forked", b"parent"))
            child = os.fork()
            if not child:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(120)
                try:
                    await producer.send(triomq.Message("forked", b"child"))
                except triomq.MQError as error:
                    report.write_text(f"{type(error).__name__}: {error}")
                finally:
                    os._exit(0)
            await trio.to_thread.run_sync(os.waitpid, child, 0)
            await producer.send(triomq.Message("forked", b"parent, last"))

    trio.run(main)
    assert report.read_text().startswith(
        "InvalidCall: this process is a fork, and the client was opened in its parent;"
    )
