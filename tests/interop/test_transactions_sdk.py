"""Our SDK's transactions on the real broker and on ours: what it commits is delivered, what it rolls back never is, and
what it left open is decided by its check. Java's producer and ours answer for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
import trio

import triomq
from triomq import TransactionState
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.servers import Kind

# On a slow machine, an end takes seconds to reach a broker that has just started: it must not ask earlier.
CHECKS = {"transactionCheckInterval": 1000, "transactionTimeOut": 5000, "transactionCheckMax": 100}
KINDS = [Kind.JAVA, Kind.OURS, "java5"]


@pytest.fixture(scope="module", params=KINDS)
def checking(request: pytest.FixtureRequest, servers: Any) -> Iterator[SingleBroker]:
    """A cluster whose broker asks about transactions after five seconds."""
    kind = request.param
    if kind == "java5":
        yield request.getfixturevalue("javas_5")
        return
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"{kind}-transactions-namesrv"))
        broker = stack.enter_context(servers.broker(kind, f"{kind}-transactions-broker", names.address, CHECKS))
        yield SingleBroker(kind, names, broker)


@attrs.define
class Bank:
    """A listener that keeps its local transactions in memory, as a database would."""

    states: dict[str, TransactionState] = attrs.field(factory=dict)
    asked: list[bytes] = attrs.field(factory=list)

    async def execute(self, transaction: triomq.Transaction) -> TransactionState:
        word = transaction.message.body.partition(b" ")[0].decode()
        if word == "raise":
            self.states[transaction.transaction_id] = TransactionState.COMMIT
            raise ValueError(word)
        told, _, later = word.partition("-")
        self.states[transaction.transaction_id] = TransactionState[later or told]
        return TransactionState[told]

    async def check(self, message: triomq.ReceivedMessage) -> TransactionState:
        self.asked.append(message.body)
        assert message.transaction_id is not None
        return self.states.get(message.transaction_id, TransactionState.ROLLBACK)


async def until(good: Any, limit_s: float = 120) -> None:
    with trio.fail_after(limit_s):
        while not good():  # noqa: ASYNC110 - another process is waited for
            await trio.sleep(0.1)


async def test_transactions_end_by_their_outcome_or_a_check(checking: Any, java_client: Any, topic: str) -> None:
    servers, bank = checking.namesrv.address, Bank()
    words = ["COMMIT", "ROLLBACK", "UNKNOWN-COMMIT", "UNKNOWN-ROLLBACK"]
    async with triomq.open_client(servers) as client:
        producer = client.producer(f"G-{topic}", transactions=bank, send_timeout_s=60)
        for number in range(5):
            for word in words:
                body = f"{word} {number}".encode()
                done = await producer.send_in_transaction(triomq.Message(topic, body))
                assert done.state is TransactionState[word.partition("-")[0]]
        with pytest.raises(ValueError, match="raise"):
            await producer.send_in_transaction(triomq.Message(topic, b"raise 1"))
        async with producer.transaction(triomq.Message(topic, b"block that ends")):
            pass
        with pytest.raises(ValueError, match="x"):
            async with producer.transaction(triomq.Message(topic, b"block that raises")):
                raise ValueError("x")
        with trio.CancelScope() as scope:
            async with producer.transaction(triomq.Message(topic, b"block that is cancelled")) as transaction:
                bank.states[transaction.transaction_id] = TransactionState.COMMIT
                scope.cancel()
                await trio.sleep_forever()
        checked = {b"raise 1", b"block that is cancelled"}
        checked |= {f"{word} {n}".encode() for word in words if word.startswith("UNKNOWN") for n in range(5)}
        await until(lambda: checked <= set(bank.asked))
        wanted = {b"raise 1", b"block that ends", b"block that is cancelled"}
        wanted |= {f"{word} {n}".encode() for word in words if word.endswith("COMMIT") for n in range(5)}
        seen = await trio.to_thread.run_sync(java_client.pull_all, servers, topic, len(wanted))
        # An end during the broker's check may have been sent twice: a committed message may be delivered twice.
        assert {one.body for one in seen} == wanted
        assert not set(bank.asked) - checked, "what was told is not asked about"


async def test_a_producer_that_has_just_started_answers_for_the_one_before(
    checking: Any, java_client: Any, topic: str
) -> None:
    servers, group, bank = checking.namesrv.address, f"G-{topic}", Bank()
    async with triomq.open_client(servers) as client:
        left_open = client.producer(group, transactions=lambda message: TransactionState.UNKNOWN)
        done = await left_open.send_in_transaction(
            triomq.Message(topic, b"left open"), lambda _: TransactionState.UNKNOWN
        )
        await left_open.aclose()
    bank.states[done.result.message_id] = TransactionState.COMMIT
    async with triomq.open_client(servers) as client:
        client.producer(group, transactions=bank)  # it sends nothing
        await until(lambda: b"left open" in bank.asked)
        seen = await trio.to_thread.run_sync(java_client.pull_all, servers, topic, 1)
    assert {one.body for one in seen} == {b"left open"}


async def test_java_and_python_answer_for_each_other(checking: Any, java_client: Any, topic: str) -> None:
    servers, group, bank = checking.namesrv.address, f"G-{topic}", Bank()
    ids = await trio.to_thread.run_sync(java_client.transact, servers, group, topic, ["UNKNOW java commits"], "UNKNOW")
    bank.states[ids[0]] = TransactionState.COMMIT
    async with triomq.open_client(servers) as client:
        producer = client.producer(group, transactions=bank)
        await until(lambda: b"UNKNOW java commits" in bank.asked)
        done = await producer.send_in_transaction(
            triomq.Message(topic, b"python leaves open"), lambda _: TransactionState.UNKNOWN
        )
        bank.states[done.result.message_id] = TransactionState.UNKNOWN
    # The same group in Java, where every check commits.
    await trio.to_thread.run_sync(
        java_client.transact, servers, group, topic, ["COMMIT_MESSAGE java"], "COMMIT_MESSAGE"
    )
    seen = await trio.to_thread.run_sync(java_client.pull_all, servers, topic, 3)
    assert {one.body for one in seen} == {b"UNKNOW java commits", b"python leaves open", b"COMMIT_MESSAGE java"}
    await trio.to_thread.run_sync(java_client.close, servers)
