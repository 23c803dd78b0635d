"""SIGKILL between half messages and their ends, again and again on the same directory.

What was committed is delivered, once or again; what was rolled back never is; transactions without an outcome are
checked.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from killed_servers import LIMIT_S, SMALL_FILES, server

import triomq
from triomq import TransactionState

KILLS = 6
LEAST_PER_LIFE = 10
"""Number of transactions that are decided before each kill."""
TOPIC, GROUP = "paid", "payments"
SETTINGS = {
    **SMALL_FILES,
    "flushConsumerOffsetInterval": "100",
    "transactionCheckInterval": "200",
    "transactionTimeOut": "100",
    "transactionCheckMax": "100000",
}


@attrs.define
class Ledger:
    """The database: which local transactions were made. It survives all kills of the broker.

    Attributes:
        states: by body, from the moment at which the local transaction is decided.
        left_open: bodies whose outcome was not sent to the broker.
        asked: bodies about which the broker asked.
        life: how often the broker has been killed.
    """

    chance: random.Random
    states: dict[bytes, TransactionState] = attrs.field(factory=dict)
    left_open: set[bytes] = attrs.field(factory=set)
    asked: Counter[bytes] = attrs.field(factory=Counter)
    life: int = 0

    async def execute(self, transaction: triomq.Transaction) -> TransactionState:
        body = transaction.message.body
        await trio.sleep(self.chance.uniform(0, 0.05))
        self.states[body] = self.chance.choice([TransactionState.COMMIT, TransactionState.ROLLBACK])
        if self.chance.random() < 0.3:
            self.left_open.add(body)
            return TransactionState.UNKNOWN
        return self.states[body]

    async def check(self, message: triomq.ReceivedMessage) -> TransactionState:
        self.asked[message.body] += 1
        state = self.states.get(message.body)
        if state is None:
            # Perhaps it is not decided yet. In a later life it never will be: its send failed, or it was cancelled.
            now = int(message.body.partition(b"/")[0]) == self.life
            return TransactionState.UNKNOWN if now else TransactionState.ROLLBACK
        return state

    def committed(self) -> set[bytes]:
        return {body for body, state in self.states.items() if state is TransactionState.COMMIT}


async def load(producer: triomq.Producer, ledger: Ledger, life: int) -> None:
    """Send in transactions, some at once, until cancelled."""
    number = 0

    async def send_one(body: bytes) -> None:
        with trio.move_on_after(20):
            try:
                await producer.send_in_transaction(triomq.Message(TOPIC, body), ledger.execute)
            except triomq.MQError:
                return

    while True:
        async with trio.open_nursery() as nursery:
            for _ in range(ledger.chance.randrange(1, 20)):
                number += 1
                nursery.start_soon(send_one, b"%d/%d" % (life, number))
        await trio.sleep(ledger.chance.uniform(0, 0.05))


async def until(good: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises trio.TooSlowError."""
    with trio.fail_after(LIMIT_S):
        while not good():  # noqa: ASYNC110 -- the ledger is plain
            await trio.sleep(0.01)


async def everything(client: triomq.Client) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with client.pull_consumer("auditor") as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            offset = 0
            while (result := await consumer.pull(queue, offset=offset, block=False)).messages:
                found.update(message.body for message in result.messages)
                offset = result.next_offset
    return found


@pytest.mark.slow
async def test_committed_messages_are_delivered_and_no_others(
    tmp_path: Path, figures: Callable[[str], None], seed: int, ports: tuple[int, int]
) -> None:
    ledger = Ledger(random.Random(f"{seed} transactions"))
    namesrv_port, broker_port = ports
    log = tmp_path / "servers.log"
    settings = SETTINGS | {"namesrvAddr": f"127.0.0.1:{namesrv_port}"}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    broker = partial(server, log, "broker", "--port", str(broker_port), "--store", str(tmp_path / "store"), *flags)
    namesrv_flags = ("--set=bindAddress=127.0.0.1", f"--set=kvConfigPath={tmp_path}/kv.json")
    async with server(log, "namesrv", "--port", str(namesrv_port), *namesrv_flags):
        for ledger.life in range(KILLS):
            life = ledger.life
            async with broker() as process, triomq.open_client(f"127.0.0.1:{namesrv_port}") as client:
                if not life:
                    await client.admin.create_topic(TOPIC, queues=2)
                producer = client.producer(GROUP, transactions=ledger.check)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(load, producer, ledger, life)
                    await until(lambda life=life: len(ledger.states) > LEAST_PER_LIFE * (life + 1))
                    await trio.sleep(ledger.chance.uniform(0, 1))
                    os.kill(process.pid, signal.SIGKILL)
                    nursery.cancel_scope.cancel()
        ledger.life = KILLS
        async with broker(), triomq.open_client(f"127.0.0.1:{namesrv_port}") as client:
            client.producer(GROUP, transactions=ledger.check)
            await until(lambda: ledger.left_open <= ledger.asked.keys())
            seen = await everything(client)
            with trio.move_on_after(LIMIT_S):
                while ledger.committed() - seen.keys():
                    await trio.sleep(0.2)
                    seen = await everything(client)
    committed = ledger.committed()
    lost = committed - seen.keys()
    assert not lost, f"{len(lost)} committed messages were never delivered: {sorted(lost)[:10]}"
    false = seen.keys() - committed
    assert not false, f"{len(false)} messages were delivered that were not committed: {sorted(false)[:10]}"
    repeated = sum(count > 1 for count in seen.values())
    assert len(committed) < len(ledger.states)
    figures(
        f"transactions: {KILLS} kills, {len(committed)} committed and delivered, {repeated} of them more than once, "
        f"{len(ledger.states) - len(committed)} rolled back and never seen, {len(ledger.left_open)} left to the check"
    )
