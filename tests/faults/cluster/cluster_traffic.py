"""The load on the simulated cluster during faults: senders, a reader that compares, and consumers that commit."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress

import trio
from cluster_later import TOPIC as LATER
from cluster_offsets import Key
from cluster_world import COMMITTED, MASTER, PORTS, QUEUES, TOPIC, World

import triomq
import triomq.plugins
from triomq import TransactionState
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.offset import (
    ConsumerOffsetTable,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
)
from triomq_protocol.wire.command import Command
from triomq_server.wire import Link, LinkError, open_link

THINK_S = 0.35
LATER_THINK_S = (0.1, 0.8)
LOOK_S = 0.7
QUERY_LIMIT_S = 2.0
QUERIED = 12
"""Offsets that are queried one by one, too."""
IDLE_ROUNDS = 10
"""Rounds over all queues without a message after which a reader has reached the end."""
READ_LIMIT_S = 300.0


async def send(world: World, name: str) -> None:
    chance = random.Random(f"load {name} {world.seed}")
    number = 0
    async with world.client(name) as client, client.producer("load") as producer:
        while world.sending:
            number += 1
            # No zeros, which a page has that never came to the disk.
            body = b"%s-%d " % (name.encode(), number) + chance.choice((10, 100, 1000, 3000)) * b"."
            bodies = [body] if chance.random() < 0.9 else [b"%s-%d.%d " % (name.encode(), number, i) for i in range(5)]
            messages = [triomq.Message(TOPIC, each, keys=f"k{number}") for each in bodies]
            try:
                result = await (producer.send(messages[0]) if len(bodies) == 1 else producer.send_batch(messages))
            except triomq.MQError:
                world.ledger.refused += 1
            else:
                world.acknowledge(
                    (result.queue.queue_id, result.queue_offset),
                    bodies,
                    status=result.status.name,
                    synchronous=world.setting.synchronous,
                    sender=name,
                )
                if len(bodies) == 1:
                    world.check_copies(body, result)
            await world.network.clock.sleep(chance.uniform(0, THINK_S))


async def send_later(world: World) -> None:
    """Send delayed messages, and some in transactions; answer checks of those until the end.

    No send is repeated: a repeated one may be stored twice.
    """
    chance = random.Random(f"later {world.seed}")
    later, number = world.later, 0

    async def execute(transaction: triomq.Transaction) -> TransactionState:
        body = transaction.message.body
        state = later.states[body] = chance.choice((TransactionState.COMMIT, TransactionState.ROLLBACK))
        # Sometimes so slowly that the broker checks meanwhile, and gets two answers.
        await trio.sleep(chance.uniform(1, 4) if chance.random() < 0.2 else 0)
        return state if chance.random() < 0.7 else TransactionState.UNKNOWN

    async def check(message: triomq.ReceivedMessage) -> TransactionState:
        await trio.lowlevel.checkpoint()
        return later.states.get(message.body, TransactionState.UNKNOWN)

    async with (
        world.client("sender-of-later") as client,
        client.producer("later", retry=triomq.plugins.Retries(attempts=1), transactions=check) as producer,
    ):
        while world.sending:
            number += 1
            is_delayed = chance.random() < 0.5
            message = triomq.Message(LATER, b"%d" % number, delay_level=int(is_delayed))
            later.sent[message.body] = world.nodes[MASTER].lives, world.nodes[MASTER].kills
            try:
                if is_delayed:
                    result = await producer.send(message)
                else:
                    result = (await producer.send_in_transaction(message, execute)).result
            except triomq.MQError:
                pass
            else:
                later.safe[message.body] = world.setting.synchronous and result.status is triomq.SendStatus.SEND_OK
                world.answered()
            if not is_delayed:
                later.states.setdefault(message.body, TransactionState.ROLLBACK)
            await world.network.clock.sleep(chance.uniform(*LATER_THINK_S))
        await trio.sleep_forever()


async def read(world: World, name: str) -> None:
    """Pull from the suggested brokers; a place that was read once must never hold another message later."""
    async with world.client(name) as client, client.pull_consumer("readers") as consumer:
        await read_to_end(world, consumer, lambda: world.sending)


async def read_to_end(world: World, consumer: triomq.PullConsumer, more: Callable[[], bool]) -> None:
    queues = [triomq.MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUES)]
    positions = dict.fromkeys(queues, 0)
    latest = trio.current_time() + READ_LIMIT_S
    idle_rounds = 0
    while more() or idle_rounds < IDLE_ROUNDS:
        idle_rounds += 1
        if trio.current_time() > latest:
            break
        for queue in queues:
            try:
                result = await consumer.pull(queue, offset=positions[queue])
            except triomq.MQError:
                await trio.sleep(0.2)
                continue
            idle_rounds = 0 if result.messages else idle_rounds
            for message in result.messages:
                place = (queue.queue_id, message.queue_offset)
                if message.queue_offset != positions[queue]:
                    world.faults.append(f"order: the reader got {place} at offset {positions[queue]}")
                if world.read.setdefault(place, message.body) != message.body and not world.setting.power:
                    world.faults.append(f"changed: the reader got another message from {place} than before")
                positions[queue] = message.queue_offset + 1
            if not result.messages and result.next_offset != positions[queue]:
                # A message that was read before it was acknowledged may be lost with the master's power.
                if not world.setting.power:
                    world.faults.append(f"order: the reader was sent from {positions[queue]} to {result.next_offset}")
                positions[queue] = result.next_offset
        await trio.sleep(0.3)


async def commit(world: World) -> None:
    """Consumers read on and commit, through the SDK, to any broker that it finds.

    A commit that fails may still arrive, whenever a network lets it, so its group ends with it and another one begins.
    Each group stops early at some queues: a commit that is never repeated must not be lost either.
    """
    chance = random.Random(f"commits {world.seed}")
    async with world.client("committer") as client:
        number = 0
        while world.sending:
            group = f"committers-{number}"
            number += 1
            async with AsyncExitStack() as stack:
                consumer = await stack.enter_async_context(client.pull_consumer(group))
                queues = [triomq.MessageQueue(TOPIC, "broker-a", COMMITTED + n) for n in range(QUEUES)]
                offsets = dict.fromkeys(queues, 0)
                while queues and world.sending:
                    await trio.sleep(chance.uniform(0.05, 0.5))
                    queue = chance.choice(queues)
                    offsets[queue] += chance.randint(1, 20)
                    asked_at = trio.current_time()
                    try:
                        await consumer.commit(queue, offsets[queue])
                    except triomq.MQError:
                        break
                    world.offsets.committed((group, queue.queue_id), offsets[queue], asked_at, trio.current_time())
                    if chance.random() < 0.1:
                        queues.remove(queue)


async def watch_offsets(world: World) -> None:
    """Query the groups' offsets from every broker, repeatedly."""
    async with trio.open_nursery() as nursery:
        for name in (MASTER, *world.slaves):
            nursery.start_soon(_watch_offsets_of, world, name)


async def _watch_offsets_of(world: World, name: str) -> None:
    """Over one connection as long as it answers: opening one for each look took a fifth of a simulation's time."""
    while world.sending:
        await world.network.clock.sleep(LOOK_S)
        with suppress(OSError, LinkError, trio.TooSlowError):
            async with _open_auditor(world, name) as link:
                while not link.closed and world.sending:
                    with trio.move_on_after(QUERY_LIMIT_S) as limit:
                        await _observe_all(world, name, link)
                    if limit.cancelled_caught:
                        break
                    await trio.sleep(LOOK_S)


async def _observe_all(world: World, name: str, link: Link) -> dict[Key, int]:
    """Observe a broker's offsets, by the request of slaves; none if it was killed meanwhile."""
    life = world.nodes[name].lives
    answer = await link.request(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET), QUERY_LIMIT_S)
    if not world.nodes[name].up or world.nodes[name].lives != life:
        return {}
    table = ConsumerOffsetTable.decode(answer.body).offset_table
    found = {key: table.get(f"{TOPIC}@{key[0]}", {}).get(key[1], 0) for key in world.offsets.commits}
    for key, offset in found.items():
        world.offsets.observe(name, key, offset, trio.current_time())
    return found


async def query_offsets(world: World, name: str) -> dict[Key, int]:
    """The committed offsets that a broker has; empty if it does not answer. Consumers get the same ones."""
    found: dict[Key, int] = {}
    with trio.move_on_after(QUERY_LIMIT_S), suppress(OSError, LinkError, trio.TooSlowError):
        async with _open_auditor(world, name) as link:
            found = await _observe_all(world, name, link)
            for key in list(found)[-QUERIED:]:
                if (await query_offset(link, *key) or 0) != found[key]:
                    world.faults.append(f"changed: {name} gives slaves {found[key]} for {key}, and consumers not")
    return found


def _open_auditor(world: World, name: str) -> AbstractAsyncContextManager[Link]:
    async def dial(address: str) -> trio.abc.Stream:
        with trio.fail_after(QUERY_LIMIT_S):
            return await world.network.host("auditor").dial(address)

    return open_link(f"127.0.0.1:{PORTS[name]}", dial=dial)


async def query_offset(link: Link, group: str, queue_id: int) -> int | None:
    """A group's offset at one broker; None if it has none."""
    header = QueryConsumerOffsetRequest(consumer_group=group, topic=TOPIC, queue_id=queue_id)
    answer = await link.request(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header), 2)
    return answer.header(QueryConsumerOffsetResponse).offset if answer.code == ResponseCode.SUCCESS else None
