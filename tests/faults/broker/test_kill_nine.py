"""SIGKILL under load, twenty times in a row, always on the same directory.

Messages acknowledged with synchronous flush must be stored afterwards. So must those with asynchronous flush, since the
kernel keeps the written pages of a killed process: only a loss of power may lose the last flush interval. Queue offsets
have neither gaps nor repetitions. Log and queue files are tiny, so that kills hit roll-overs too.
"""

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from killed_servers import LIMIT_S, SMALL_FILES, server

import triomq

KILLS = 20
EARLY_EVERY = 5
"""Every so many kills, one comes before the load has got far."""
LOAD_LEAST, LOAD_MOST = 80, 250
"""Number of messages that are acknowledged before another kill."""
EARLY_MOST_S = 0.05
TOPIC = "ledger"
QUEUES = 4
SETTINGS = SMALL_FILES


class Ledger:
    """What the broker has acknowledged: place -> body."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.refused = 0
        self.verified = dict.fromkeys(range(QUEUES), 0)

    def acknowledge(self, result: triomq.SendResult, bodies: list[bytes]) -> None:
        assert result.status is triomq.SendStatus.SEND_OK
        for index, body in enumerate(bodies):
            place = (result.queue.queue_id, result.queue_offset + index)
            assert place not in self.bodies, f"{place} was assigned twice"
            self.bodies[place] = body

    async def grown_by(self, count: int) -> None:
        """Wait until so many more messages have been acknowledged. Raises trio.TooSlowError."""
        wanted = len(self.bodies) + count
        with trio.fail_after(LIMIT_S):
            while len(self.bodies) < wanted:  # noqa: ASYNC110 -- the ledger is plain
                await trio.sleep(0.002)

    async def verify(self, client: triomq.Client) -> None:
        """Read on from the end of the last check: every offset exists, every acknowledged body is at its offset."""
        async with client.pull_consumer("auditor") as consumer:
            for queue in await consumer.fetch_queues(TOPIC):
                offset = self.verified[queue.queue_id]
                while True:
                    result = await consumer.pull(queue, offset=offset, block=False)
                    for message in result.messages:
                        assert message.queue_offset == offset, f"{queue}: {message.queue_offset} follows {offset - 1}"
                        acknowledged = self.bodies.get((queue.queue_id, offset))
                        assert acknowledged in (None, message.body), f"{queue} holds another body at {offset}"
                        offset += 1
                    if not result.messages:
                        break
                self.verified[queue.queue_id] = offset
        missing = [place for place in self.bodies if place[1] >= self.verified[place[0]]]
        assert not missing, f"{len(missing)} acknowledged messages are lost: {missing[:10]}"


async def create_topic(client: triomq.Client) -> None:
    """Create the topic and wait until its route is on the name servers."""
    await client.admin.create_topic(TOPIC, queues=QUEUES)
    with trio.fail_after(LIMIT_S):
        while True:
            try:
                await client.admin.route(TOPIC)
            except triomq.RouteError:
                await trio.sleep(0.01)
            else:
                return


class Acknowledged:
    def __init__(self, ledger: Ledger, body: bytes) -> None:
        self.ledger = ledger
        self.body = body

    def on_success(self, result: triomq.SendResult) -> None:
        self.ledger.acknowledge(result, [self.body])

    def on_exception(self, error: triomq.MQError) -> None:
        self.ledger.refused += 1


async def load(client: triomq.Client, ledger: Ledger, chance: random.Random) -> None:
    """Send single messages and batches of all sizes until cancelled; what fails meanwhile was not acknowledged."""
    number = 0
    async with client.producer("load", max_in_flight=256) as producer:
        while True:
            number += 1
            body = b"%d " % number + chance.randbytes(chance.choice((20, 200, 2000, 12_000)))
            try:
                if number % 50:
                    await producer.send(triomq.Message(TOPIC, body, keys=f"key-{number}"), Acknowledged(ledger, body))
                else:
                    bodies = [body[:100] + b"%d" % index for index in range(8)]
                    result = await producer.send_batch([triomq.Message(TOPIC, body) for body in bodies])
                    ledger.acknowledge(result, bodies)
            except triomq.MQError:
                ledger.refused += 1
                await trio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("flush", "pure"), [("SYNC_FLUSH", "0"), ("ASYNC_FLUSH", "0"), ("ASYNC_FLUSH", "1")])
async def test_nothing_acknowledged_is_lost(
    tmp_path: Path,
    flush: str,
    pure: str,
    figures: Callable[[str], None],
    seed: int,
    ports: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With synchronous flush Python stores the messages; else the compiled modules do, unless they are not wanted."""
    monkeypatch.setenv("TRIOMQ_PURE", pure)
    chance = random.Random(f"{seed} {flush}")
    namesrv_port, broker_port = ports
    log = tmp_path / "servers.log"
    settings = SETTINGS | {"flushDiskType": flush, "namesrvAddr": f"127.0.0.1:{namesrv_port}"}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    broker = partial(server, log, "broker", "--port", str(broker_port), "--store", str(tmp_path / "store"), *flags)
    ledger = Ledger()
    namesrv_flags = ("--set=bindAddress=127.0.0.1", f"--set=kvConfigPath={tmp_path}/kv.json")
    async with server(log, "namesrv", "--port", str(namesrv_port), *namesrv_flags):
        for kill in range(KILLS):
            async with broker() as process, triomq.open_client(f"127.0.0.1:{namesrv_port}") as client:
                if not kill:
                    await create_topic(client)
                await ledger.verify(client)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(load, client, ledger, chance)
                    if kill % EARLY_EVERY:
                        await ledger.grown_by(chance.randint(LOAD_LEAST, LOAD_MOST))
                    await trio.sleep(chance.uniform(0, EARLY_MOST_S))
                    os.kill(process.pid, signal.SIGKILL)
                    nursery.cancel_scope.cancel()
        async with broker(), triomq.open_client(f"127.0.0.1:{namesrv_port}") as client:
            await ledger.verify(client)
    stored, acknowledged = sum(ledger.verified.values()), len(ledger.bodies)
    figures(
        f"{flush}, pure {pure}: {KILLS} kills, {acknowledged} acknowledged, {stored} stored, {ledger.refused} without answer, 0 lost"
    )
    assert acknowledged > 50 * KILLS, "too little load to prove anything"


async def test_the_ledger_detects_a_loss(tmp_path: Path, ports: tuple[int, int]) -> None:
    """The same ledger with an extra acknowledgement, and with one body changed."""
    port, broker_port = ports
    log = tmp_path / "servers.log"
    flags = [f"--set={key}={value}" for key, value in (SETTINGS | {"namesrvAddr": f"127.0.0.1:{port}"}).items()]
    async with (
        server(log, "namesrv", "--port", str(port), f"--set=kvConfigPath={tmp_path}/kv.json"),
        server(log, "broker", "--port", str(broker_port), "--store", str(tmp_path / "store"), *flags),
        triomq.open_client(f"127.0.0.1:{port}") as client,
    ):
        await create_topic(client)
        ledger = Ledger()
        async with client.producer("load") as producer:
            result = await producer.send(triomq.Message(TOPIC, b"one"))
        ledger.acknowledge(result, [b"one"])
        await ledger.verify(client)
        ledger.bodies[0, 77] = b"two"
        with pytest.raises(AssertionError, match="1 acknowledged messages are lost"):
            await ledger.verify(client)
        changed = Ledger()
        changed.acknowledge(result, [b"another"])
        with pytest.raises(AssertionError, match="another body"):
            await changed.verify(client)
