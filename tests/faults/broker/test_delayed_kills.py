"""SIGKILL while delayed messages wait and are delivered, again and again on the same directory.

Every acknowledged message is delivered, none before its time. A kill may repeat messages that were delivered since
delayOffset.json was last written, and no older ones.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from killed_servers import LIMIT_S, SMALL_FILES, server

import triomq

KILLS = 8
LIFE_MOST_S = 2.5
LEAST_PER_LIFE = 20
"""Number of messages that are acknowledged before each kill."""
TOPIC = "later"
DELAYS_S = {1: 1, 2: 2, 3: 1}
WRITTEN_EVERY_MS = 300
# On a loaded machine a table may be written this much later than due.
PATIENCE_MS = 4000
SETTINGS = {
    **SMALL_FILES,
    "messageDelayLevel": " ".join(f"{delay}s" for delay in DELAYS_S.values()),
    "flushDelayOffsetInterval": str(WRITTEN_EVERY_MS),
}


async def load(client: triomq.Client, acknowledged: dict[bytes, int], chance: random.Random, life: int) -> None:
    """Send delayed messages, some tens at once, until cancelled; what fails meanwhile was not acknowledged."""
    number = 0
    async with client.producer("load") as producer:

        async def send_one(body: bytes, level: int) -> None:
            try:
                await producer.send(triomq.Message(TOPIC, body, delay_level=level))
            except triomq.MQError:
                return
            acknowledged[body] = level

        while True:
            async with trio.open_nursery() as nursery:
                for _ in range(chance.randrange(1, 40)):
                    number += 1
                    nursery.start_soon(send_one, b"%d/%d" % (life, number), chance.choice((1, 2, 3)))
            await trio.sleep(chance.uniform(0, 0.05))


async def until(good: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises trio.TooSlowError."""
    with trio.fail_after(LIMIT_S):
        while not good():  # noqa: ASYNC110 -- the acknowledgements are plain
            await trio.sleep(0.01)


async def everything(client: triomq.Client) -> list[triomq.ReceivedMessage]:
    found: list[triomq.ReceivedMessage] = []
    async with client.pull_consumer("auditor") as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            offset = 0
            while (result := await consumer.pull(queue, offset=offset, block=False)).messages:
                found += result.messages
                offset = result.next_offset
    return found


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_every_delayed_message_is_delivered(
    tmp_path: Path, flush: str, figures: Callable[[str], None], seed: int, ports: tuple[int, int]
) -> None:
    chance = random.Random(f"{seed} delayed {flush}")
    namesrv_port, broker_port = ports
    log = tmp_path / "servers.log"
    settings = SETTINGS | {"flushDiskType": flush, "namesrvAddr": f"127.0.0.1:{namesrv_port}"}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    broker = partial(server, log, "broker", "--port", str(broker_port), "--store", str(tmp_path / "store"), *flags)
    namesrv_flags = ("--set=bindAddress=127.0.0.1", f"--set=kvConfigPath={tmp_path}/kv.json")
    acknowledged: dict[bytes, int] = {}
    kills_ms: list[int] = []
    async with server(log, "namesrv", "--port", str(namesrv_port), *namesrv_flags):
        for life in range(KILLS):
            async with broker() as process, triomq.open_client(f"127.0.0.1:{namesrv_port}") as client:
                if not life:
                    await client.admin.create_topic(TOPIC, queues=2)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(load, client, acknowledged, chance, life)
                    await trio.sleep(chance.uniform(0.3, LIFE_MOST_S))
                    await until(lambda life=life: len(acknowledged) > LEAST_PER_LIFE * (life + 1))
                    os.kill(process.pid, signal.SIGKILL)
                    kills_ms.append(int(time.time() * 1000))
                    nursery.cancel_scope.cancel()
        async with broker(), triomq.open_client(f"127.0.0.1:{namesrv_port}") as client:
            await trio.sleep(max(DELAYS_S.values()) + 1)
            seen = await everything(client)
            with trio.move_on_after(LIMIT_S):
                while acknowledged.keys() - {message.body for message in seen}:
                    await trio.sleep(0.2)
                    seen = await everything(client)
    copies: dict[bytes, list[int]] = defaultdict(list)
    for message in seen:
        copies[message.body].append(message.stored_ms)
        early_ms = message.born_ms + 1000 * DELAYS_S[int(message.properties["DELAY"])] - message.stored_ms
        assert early_ms <= 0, f"{message.body!r} was delivered {early_ms} ms before its time"
    lost = acknowledged.keys() - copies.keys()
    assert not lost, f"{len(lost)} acknowledged messages were never delivered: {sorted(lost)[:10]}"
    repeated = {body: times for body, times in copies.items() if len(times) > 1}
    for body, times in repeated.items():
        recent = [kill_ms for kill_ms in kills_ms if 0 <= kill_ms - times[0] + 50 <= WRITTEN_EVERY_MS + PATIENCE_MS]
        assert recent, f"{body!r} was delivered again although the first delivery was long before any kill"
    figures(
        f"{flush}: {KILLS} kills, {len(acknowledged)} delayed messages acknowledged, {len(copies)} delivered, "
        f"{len(repeated)} of them more than once, 0 lost"
    )
