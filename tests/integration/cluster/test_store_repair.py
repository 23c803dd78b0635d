"""A master's damaged store is repaired from its slave, by the command, and serves all messages again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

import triomq
from triomq_server.cluster import open_cluster

SMALL = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000", "messageDelayLevel": "3s 1h"}
BODIES = [b"message %04d " % n + b"x" * 300 for n in range(400)]
DELAYED = b"a delayed message " + b"y" * 300


def log_of(directory: Path) -> bytes:
    """A log's bytes without the zeros at its end: a broker prepares its next file when it thinks fit."""
    files = sorted((directory / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def flip_in_log(directory: Path, text: bytes) -> None:
    """Change one bit of the body that holds this text."""
    for file in (directory / "commitlog").iterdir():
        data = bytearray(file.read_bytes())
        if (at := data.find(text)) >= 0:
            data[at + len(text) - 1] ^= 1
            file.write_bytes(data)
            return
    raise AssertionError(text)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(120):
        while not await true():  # noqa: ASYNC110 - files and answers have no events
            await trio.sleep(0.02)


async def pulled(client: triomq.Client, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with client.pull_consumer("readers") as consumer:
        for queue in await consumer.fetch_queues(topic):
            offset = 0
            while (result := await consumer.pull(queue, offset=offset, block=False)).next_offset > offset:
                found.update(bytes(message.body) for message in result.messages)
                offset = result.next_offset
    return found


async def repair_in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = partial(
        subprocess.run, [sys.executable, "-m", "triomq_server", "admin", "repair-store", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return await trio.to_thread.run_sync(run)


@pytest.mark.parametrize("damaged", ["broker-a", "broker-a-s"], ids=["master", "slave"])
async def test_a_damaged_broker_is_repaired_from_the_other_one(damaged: str) -> None:
    other = {"broker-a": "broker-a-s", "broker-a-s": "broker-a"}[damaged]
    async with open_cluster(settings=SMALL) as cluster:
        root, source = cluster.directory / damaged, cluster[other].address
        async with triomq.open_client(cluster.name_servers) as client, client.producer("writers") as producer:
            for body in BODIES:
                await producer.send(triomq.Message("T", body))
            await producer.send(triomq.Message("T", DELAYED, delay_level=1))

        async def caught_up() -> bool:
            return log_of(cluster.directory / "broker-a") == log_of(cluster.directory / "broker-a-s")

        await until(caught_up)
        await cluster[damaged].stop()
        for body in (BODIES[3], BODIES[200], BODIES[201], DELAYED):
            flip_in_log(root, body[:18])
        tables = [root / "config" / name for name in ("topics.json", "topics.json.bak")]
        for table in tables:
            table.write_bytes(b"{")

        planned = await repair_in_process(str(root), "--from", source)
        assert planned.returncode == 1, planned.stderr
        assert "nothing has been changed (--yes writes)" in planned.stdout
        assert [table.read_bytes() for table in tables] == [b"{", b"{"]
        done = await repair_in_process(str(root), "--from", source, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert log_of(root)[:-100] == log_of(cluster.directory / other)[: len(log_of(root)) - 100]
        again = await repair_in_process(str(root), "--from", source)
        assert (again.returncode, again.stdout) == (0, "nothing is damaged\n")

        await cluster[damaged].start()
        await cluster[other].stop()
        if damaged == "broker-a":
            async with triomq.open_client(cluster.name_servers) as client:

                async def everything() -> bool:
                    return set(await pulled(client, "T")) == {*BODIES, DELAYED}

                await until(everything)


async def test_what_a_start_has_moved_aside_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """Also a delayed message that was due in between."""
    async with open_cluster(settings=SMALL) as cluster:
        root, source = cluster.directory / "broker-a", cluster["broker-a-s"].address
        async with triomq.open_client(cluster.name_servers) as client:
            async with client.producer("writers") as producer:
                for body in BODIES:
                    await producer.send(triomq.Message("T", body))
                await producer.send(triomq.Message("T", DELAYED, delay_level=1))
                await producer.send(triomq.Message("T", BODIES[0]))

            async def caught_up() -> bool:
                return log_of(root) == log_of(cluster.directory / "broker-a-s")

            await until(caught_up)
            await cluster["broker-a"].stop()
            (root / "abort").touch()  # so that all of the log is checked
            (root / "checkpoint").unlink()
            for body in (BODIES[3], BODIES[200], DELAYED):
                flip_in_log(root, body[:18])
            await cluster["broker-a"].start()

            async def passed() -> bool:
                return "cannot be delivered" in caplog.text

            with trio.move_on_after(10):  # on a very slow machine it was delivered before the damage
                await until(passed)
            found = await pulled(client, "T")
            assert not {BODIES[3], BODIES[200]} & set(found)
            await cluster["broker-a"].stop()
            done = await repair_in_process(str(root), "--from", source, "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
            await cluster["broker-a"].start()

            async def everything() -> bool:
                return set(await pulled(client, "T")) == {*BODIES, DELAYED}

            await until(everything)
            assert "have been repaired and can be read again" in caplog.text
            assert "`triomq admin repair-store` fetches them from another broker of the set" in caplog.text
