"""A producer of transactions in a process of its own, which a schedule kills.

Its database is a file: one line per local transaction, written before the producer sends the outcome. It outlives the
process, so that the next one can answer for the dead one's transactions.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

import trio

import triomq
from triomq import TransactionState


class Database:
    """The decisions of this process and of those before it.

    Args:
        path: the file.
        life: the number of this process: what it has not decided yet may still come.
        chance: the decisions.
    """

    def __init__(self, path: Path, life: str, chance: random.Random) -> None:
        self._life = life
        self._chance = chance
        self._states = decisions(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def execute(self, transaction: triomq.Transaction) -> TransactionState:
        """Decide, write the outcome down, and send it or leave it to the check."""
        body = transaction.message.body.decode()
        await trio.sleep(self._chance.uniform(0, 0.02))
        state = self._chance.choice([TransactionState.COMMIT, TransactionState.ROLLBACK])
        self._states[body] = state.name
        os.write(self._file, f"{body} {state.name}\n".encode())
        return TransactionState.UNKNOWN if self._chance.random() < 0.3 else state

    async def check(self, message: triomq.ReceivedMessage) -> TransactionState:
        """The outcome in the file; what a dead process never decided is rolled back."""
        body = message.body.decode()
        found = self._states.get(body)
        if found is not None:
            return TransactionState[found]
        undecided = body.startswith(f"{self._life}/")
        return TransactionState.UNKNOWN if undecided else TransactionState.ROLLBACK


def decisions(path: Path) -> dict[str, str]:
    """Body to COMMIT or ROLLBACK; a line whose end is missing was not written."""
    if not path.exists():
        return {}
    whole = path.read_text().rpartition("\n")[0]
    return dict(line.split(" ") for line in whole.splitlines())


async def run(name_servers: str, topic: str, group: str, path: Path, life: str, *, answers_only: bool) -> None:
    """Send in transactions, some at once, until killed; or only answer checks."""
    chance = random.Random(f"{topic} {life}")
    database = Database(path, life, chance)
    async with triomq.open_client(name_servers, route_wait_s=60) as client:
        producer = client.producer(group, transactions=database.check)
        if answers_only:
            await producer.send(triomq.Message(f"{topic}-known", b"so that the broker knows this producer"))
            await trio.sleep_forever()

        async def send_one(body: str) -> None:
            with trio.move_on_after(20):
                try:
                    await producer.send_in_transaction(triomq.Message(topic, body.encode()), database.execute)
                except triomq.MQError:
                    return

        number = 0
        while True:
            async with trio.open_nursery() as nursery:
                for _ in range(chance.randrange(1, 12)):
                    number += 1
                    nursery.start_soon(send_one, f"{life}/{number}")
            await trio.sleep(chance.uniform(0, 0.05))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--name-servers", "--topic", "--group", "--database", "--life"):
        parser.add_argument(option, required=True)
    parser.add_argument("--answers-only", action="store_true")
    given = parser.parse_args()
    trio.run(
        lambda: run(
            given.name_servers,
            given.topic,
            given.group,
            Path(given.database),
            given.life,
            answers_only=given.answers_only,
        )
    )
