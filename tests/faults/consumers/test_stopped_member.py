"""Members of push groups that are stopped (SIGSTOP) for longer than the broker waits for them, and go on.

The members are processes: a concurrent and an ordered group of two each. The others take the queues of the stopped
ones over meanwhile and get further; when those go on, they must not move the group's offsets back, nor handle all that
they had pulled before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import push_member
import pytest
import trio

import triomq
from triomq_server.cluster import open_cluster

QUEUES = 4
BACKLOG = 400
"""Messages at the start: more than a stopped member can have handled."""
AT_WORK = 20
"""Handlers of a concurrent member at the same time, the default of `run`."""
WORK_MS = {"concurrent": 800, "ordered": 200}
"""Per message: both groups take as long. A member that goes on handles what it has pulled until it has rejoined, which
takes some tenths of a second, and several times as long on a busy machine."""
IDLE_S = 20
"""When the broker closes a link on which nothing moves; a member that runs pulls again after 15 s at most."""
LOCKS_LIVE_MS = 30_000
WATCHED_S = 12.0
"""How long offsets are watched afterwards: a member persists its own after 5 s."""
PATIENCE_S = 180.0


class Member:
    """A push consumer in a process."""

    def __init__(self, servers: str, group: str, name: str, log: Path) -> None:
        self._log = log
        options = {"name-servers": servers, "group": group, "topic": "T", "instance": name, "work-ms": WORK_MS[group]}
        options["ordered"] = str(group == "ordered").lower()
        argv = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        with log.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, push_member.__file__, *argv], stdout=out)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What it reported, of one kind."""
        whole = self._log.read_bytes().rpartition(b"\n")[0]
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == kind]

    def queues(self) -> set[str]:
        """The topic's queues that are its own now."""
        reported = self.events("queues")
        return {name for name in (reported[-1]["queues"] if reported else ()) if name.startswith("T@")}

    def bodies(self) -> list[str]:
        """What it has handled."""
        return [event["body"] for event in self.events("message")]


class Group:
    """A group of two: one that is stopped, and the other."""

    def __init__(self, name: str, stopped: Member, other: Member) -> None:
        self.name = name
        self.stopped = stopped
        self.other = other
        self.before: set[str] = set()

    def shares_evenly(self) -> bool:
        return len(self.stopped.queues()) == len(self.other.queues()) == QUEUES // 2

    async def stop_one(self) -> None:
        """Stop it as soon as it is at work."""
        await until(lambda: len(self.stopped.bodies()) >= 4)
        os.kill(self.stopped.process.pid, signal.SIGSTOP)
        self.before = set(self.stopped.bodies())

    def handled(self) -> set[str]:
        return self.before | set(self.other.bodies())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, str, str], Member]]:
    members: list[Member] = []

    def start(servers: str, group: str, name: str) -> Member:
        members.append(Member(servers, group, name, tmp_path / f"{group}-{name}.out"))
        return members[-1]

    yield start
    for member in members:
        member.process.kill()
        member.process.wait()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - other processes are waited for
            await trio.sleep(0.05)


async def committed(client: triomq.Client, group: str) -> dict[triomq.MessageQueue, int]:
    """The group's offsets in the topic."""
    return {queue: offset.consumer_offset for queue, offset in (await client.groups.progress(group, "T")).items()}


async def lowest_of(client: triomq.Client, groups: list[Group]) -> dict[str, dict[triomq.MessageQueue, int]]:
    """The lowest offset of each queue that is seen while offsets are watched."""
    lowest: dict[str, dict[triomq.MessageQueue, int]] = {group.name: {} for group in groups}
    with trio.move_on_after(WATCHED_S):
        while True:
            for group in groups:
                for queue, offset in (await committed(client, group.name)).items():
                    lowest[group.name][queue] = min(lowest[group.name].get(queue, offset), offset)
            await trio.sleep(0.05)
    return lowest


@pytest.mark.slow
async def test_members_that_were_stopped_do_not_move_offsets_back(start: Callable[[str, str, str], Member]) -> None:
    settings = {"serverChannelMaxIdleTimeSeconds": str(IDLE_S), "rebalanceLockMaxLiveTime": str(LOCKS_LIVE_MS)}
    async with (
        open_cluster(slaves=0, settings=settings) as cluster,
        triomq.open_client(cluster.name_servers) as client,
    ):
        await client.admin.create_topic("T", queues=QUEUES)
        queues = await client.pull_consumer("reader").fetch_queues("T")
        producer = client.producer("P")
        sent = [f"{number}" for number in range(BACKLOG)]
        servers = cluster.name_servers
        groups = [
            Group(name, start(servers, name, "stopped"), start(servers, name, "other"))
            for name in ("concurrent", "ordered")
        ]
        await until(lambda: all(group.shares_evenly() for group in groups))
        # While messages are still sent: on a busy machine that takes longer than handling them.
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(group.stop_one)
            for number, body in enumerate(sent):
                await producer.send(triomq.Message("T", body.encode()), queue=queues[number % QUEUES])
        for group in groups:
            assert len(group.before) < BACKLOG // 2 - AT_WORK, "it is stopped during its work"

        # The others take their queues over and handle everything that was not committed.
        reached = {}
        for group in groups:
            await until(lambda group=group: len(group.other.queues()) == QUEUES)  # type: ignore[misc]
            await until(lambda group=group: group.handled() == set(sent))  # type: ignore[misc]
            with trio.fail_after(PATIENCE_S):
                while sum((await committed(client, group.name)).values()) < BACKLOG:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            reached[group.name] = await committed(client, group.name)

        for group in groups:
            os.kill(group.stopped.process.pid, signal.SIGCONT)
        assert await lowest_of(client, groups) == reached, "no offset goes back"
        for group in groups:
            await until(lambda group=group: len(group.other.queues()) == QUEUES // 2)  # type: ignore[misc]
            again = [body for body in group.stopped.bodies() if body not in group.before]
            assert len(again) <= 3 * AT_WORK, "what it had only pulled is the others'"

        more = [f"more-{number}" for number in range(40)]
        for number, body in enumerate(more):
            await producer.send(triomq.Message("T", body.encode()), queue=queues[number % QUEUES])
        for group in groups:
            await until(lambda group=group: set(more) <= group.handled() | set(group.stopped.bodies()))  # type: ignore[misc]
            assert set(more) & set(group.stopped.bodies()), "it takes part again"
