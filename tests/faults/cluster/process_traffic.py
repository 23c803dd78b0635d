"""The load on the real cluster during faults: senders, consumers that commit, and an auditor of committed offsets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import trio
from cluster_audit import Ledger
from cluster_offsets import Key, OffsetLedger
from process_nodes import MASTER, READY_S, Nodes

import triomq
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.offset import QueryConsumerOffsetRequest, QueryConsumerOffsetResponse
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_server.wire import Link, LinkError, open_link

TOPIC = "ledger"
QUEUES = 4
COMMITTED = 1000
"""Consumers commit to queues of these ids, which the topic does not have: then any number may be committed, and stays
whatever messages a power failure or a new master has lost."""
ASK_LIMIT_S = 3.0

More = Callable[[], bool]


def queue(number: int) -> triomq.MessageQueue:
    """One of the topic's queues."""
    return triomq.MessageQueue(TOPIC, MASTER, number)


async def create_topic(nodes: Nodes) -> None:
    """Create the topic and wait for its route. Raises trio.TooSlowError."""
    async with triomq.open_client(nodes.name_servers) as client:
        with trio.fail_after(READY_S):
            while True:
                try:
                    await client.admin.create_topic(TOPIC, queues=QUEUES)
                    await client.admin.route(TOPIC)
                except triomq.MQError:
                    await trio.sleep(0.05)
                else:
                    return


async def send(nodes: Nodes, ledger: Ledger, name: str, seed: int, *, synchronous: bool, more: More) -> None:
    """One sender, one message after the other; every acknowledgement goes to the ledger."""
    chance = random.Random(f"{name} {seed}")
    number = 0
    async with (
        triomq.open_client(nodes.name_servers) as client,
        client.producer("load", send_timeout_s=1.0, compressor=None) as producer,
    ):
        while more():
            number += 1
            body = b"%s-%d " % (name.encode(), number) + bytes(chance.choice((10, 100, 1000, 9000)))
            bodies = [body] if chance.random() < 0.9 else [b"%s-%d.%d " % (name.encode(), number, i) for i in range(5)]
            messages = [triomq.Message(TOPIC, each, keys=f"k{number}") for each in bodies]
            try:
                result = await (producer.send(messages[0]) if len(bodies) == 1 else producer.send_batch(messages))
            except triomq.MQError:
                ledger.refused += 1
                await trio.sleep(0.02)
            else:
                place = (result.queue.queue_id, result.queue_offset)
                ledger.acknowledge(place, bodies, status=result.status.name, synchronous=synchronous, sender=name)
            await trio.sleep(0.002)


async def commit(nodes: Nodes, offsets: OffsetLedger, seed: int, more: More) -> None:
    """Consumers commit to any broker that the SDK finds.

    A commit that fails may still arrive, so its group ends with it; and each group stops early at some queues: a commit
    that is never repeated must not be lost either.
    """
    chance = random.Random(f"commits {seed}")
    async with triomq.open_client(nodes.name_servers) as client:
        number = 0
        while more():
            group = f"committers-{number}"
            number += 1
            async with AsyncExitStack() as stack:
                consumer = await stack.enter_async_context(client.pull_consumer(group))
                reached = dict.fromkeys(range(COMMITTED, COMMITTED + QUEUES), 0)
                while more() and reached:
                    await trio.sleep(chance.uniform(0.01, 0.1))
                    queue_id = chance.choice(list(reached))
                    reached[queue_id] += chance.randint(1, 20)
                    asked_at = trio.current_time()
                    try:
                        await consumer.commit(queue(queue_id), reached[queue_id])
                    except triomq.MQError:
                        await trio.sleep(0.05)
                        break
                    offsets.committed((group, queue_id), reached[queue_id], asked_at, trio.current_time())
                    if chance.random() < 0.1:
                        del reached[queue_id]


async def watch_offsets(nodes: Nodes, offsets: OffsetLedger, name: str, more: More) -> None:
    """Query the groups' offsets from one broker, repeatedly."""
    while more():
        await trio.sleep(0.3)
        await query_offsets(nodes, offsets, name, offsets.newest())


async def query_offsets(nodes: Nodes, offsets: OffsetLedger, name: str, keys: Sequence[Key]) -> dict[Key, int]:
    """The offsets that a broker has for these keys; empty if it does not answer."""
    found: dict[Key, int] = {}
    life = nodes.lives.get(name)
    try:
        with trio.move_on_after(ASK_LIMIT_S):
            async with open_link(nodes.addresses[name]) as link:
                for key in keys:
                    offset = await query_offset(link, *key)
                    if name not in nodes.pids or nodes.lives[name] != life:
                        break  # the answer of a node that was killed meanwhile
                    found[key] = offset or 0
                    offsets.observe(name, key, found[key], trio.current_time())
    except (OSError, LinkError):
        pass
    return found


async def query_offset(link: Link, group: str, queue_id: int) -> int | None:
    """A group's offset at one broker; None if it has none."""
    header = QueryConsumerOffsetRequest(consumer_group=group, topic=TOPIC, queue_id=queue_id)
    answer = await link.request(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header), ASK_LIMIT_S)
    return answer.header(QueryConsumerOffsetResponse).offset if answer.code == ResponseCode.SUCCESS else None


async def log_end(address: str) -> int:
    """The end of a broker's log; -1 if it does not answer."""
    try:
        with trio.fail_after(ASK_LIMIT_S):
            async with open_link(address) as link:
                answer = await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), ASK_LIMIT_S)
                if answer.code != ResponseCode.SUCCESS:  # 4.9 sometimes, while its statistics are empty
                    return -1
                return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
    except (OSError, LinkError, trio.TooSlowError):
        return -1


async def queue_ends(address: str) -> list[int]:
    """The ends of a broker's queues; -1 if it does not answer."""
    try:
        with trio.fail_after(ASK_LIMIT_S):
            async with open_link(address) as link:
                ends = []
                for queue_id in range(QUEUES):
                    fields = {"topic": TOPIC, "queueId": str(queue_id)}
                    answer = await link.request(Command.request(RequestCode.GET_MAX_OFFSET, fields=fields), ASK_LIMIT_S)
                    ends.append(int((answer.fields or {}).get("offset", -1)))
                return ends
    except (OSError, LinkError, trio.TooSlowError):
        return [-1]
