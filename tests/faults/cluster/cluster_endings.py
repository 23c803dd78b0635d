"""How a simulated schedule ends, and what must hold then: everybody comes back, a slave takes over, or a disk is
gone."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio
from cluster_audit import Contents, Ledger, differing, missing, queue_faults, read_log
from cluster_traffic import ask_offset, look_at_offsets, read_to_end
from cluster_world import MASTER, NAME_SERVER, PORTS, TOPIC, World

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_server.commands.admin import AdminError, OpenLink, change_role, cut
from triomq_server.wire import LinkError, open_link

SETTLE_S = 90.0
METADATA_S = 12.0
"""Slaves ask their master every ten seconds."""


def contents_of(world: World, name: str) -> Contents:
    return read_log(world.nodes[name].disk, "/store", TOPIC)


def check_slaves(world: World) -> None:
    """The master is gone, perhaps for ever: what it promised to be on a slave must be there now."""
    if world.setting.synchronous:
        promised = [ack for ack in world.ledger.acks if ack.replicated]
        faults = missing(promised, {name: contents_of(world, name) for name in world.slaves})
        world.faults += [f"{fault} (at {trio.current_time():.3f}, the master just gone)" for fault in faults]


async def log_end(world: World, name: str) -> int:
    try:
        with trio.fail_after(5):
            async with open_link(f"127.0.0.1:{PORTS[name]}", dial=world.network.host("auditor").dial) as link:
                answer = await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 3)
                return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
    except (OSError, LinkError, trio.TooSlowError):
        return -1


async def settle(world: World) -> None:
    """Everything runs and nothing disturbs: slaves catch up."""
    for node in world.nodes.values():
        node.start()
    with trio.move_on_after(SETTLE_S if not world.setting.power else SETTLE_S / 3):
        while True:
            ends = {name: await log_end(world, name) for name in (MASTER, *world.slaves)}
            if len(set(ends.values())) == 1 and -1 not in ends.values():
                return
            await trio.sleep(0.5)
    if not world.setting.power:
        world.faults.append(f"stuck: after {SETTLE_S:g} quiet seconds the logs end at {ends}")


async def check_offsets(world: World) -> None:
    """After a round of metadata every broker has every commit that survived."""
    await trio.sleep(METADATA_S)
    for name in (MASTER, *world.slaves):
        # A slave that its master's loss of power has left ahead takes nothing from it.
        if name == MASTER or not world.setting.power:
            world.offsets.check(name, await look_at_offsets(world, name, list(world.offsets.commits)))


async def return_of_the_master(world: World) -> None:
    """While the master is away consumers go on at a slave, and one is set back there: both hold when the master is
    back."""
    ahead, back = (triomq.MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in (0, 1))

    async def commit(consumer: triomq.PullConsumer, offsets: dict[triomq.MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            with trio.fail_after(60):
                while True:
                    try:
                        await consumer.commit(queue, offset)
                    except triomq.MQError:
                        await trio.sleep(0.2)
                    else:
                        break

    async def check(name: str, when: str) -> None:
        with trio.move_on_after(60):
            while set(found := await _offsets_of(world, name, "patients")) != {0, 1}:  # noqa: ASYNC110 -- a broker that starts
                await trio.sleep(0.02)
        if found != {0: 9, 1: 7}:
            world.faults.append(f"rolled back: {name} has {found} {when}, not 9 as committed and 7 as ordered")

    async with world.client("patient") as client, client.pull_consumer("patients") as consumer:
        await commit(consumer, {ahead: 5, back: 50})
        await trio.sleep(METADATA_S)
        world.note("the master is away for a while")
        world.nodes[MASTER].kill()
        await trio.sleep(1)
        await commit(consumer, {ahead: 9, back: 7})
        world.nodes[MASTER].start()
        await check(MASTER, "as soon as it is back")
        await trio.sleep(2 * METADATA_S)
        for name in (MASTER, *world.slaves):
            await check(name, "when all is quiet again")


async def _offsets_of(world: World, name: str, group: str) -> dict[int, int]:
    found = {}
    with suppress(OSError, LinkError, trio.TooSlowError), trio.fail_after(5):
        async with open_link(f"127.0.0.1:{PORTS[name]}", dial=world.network.host("auditor").dial) as link:
            for queue_id in (0, 1):
                offset = await ask_offset(link, group, queue_id)
                if offset is not None:
                    found[queue_id] = offset
    return found


async def audit_all(world: World) -> int:
    """Stop in order and look at every node's files; returns the number of messages stored."""
    names = (MASTER, *world.slaves)
    for name in reversed((*world.nodes,)):
        await world.nodes[name].stop()
    contents = {name: contents_of(world, name) for name in names}
    for name in names:
        found = contents[name].faults + queue_faults(world.nodes[name].disk, "/store", TOPIC, contents[name])
        histories = differing(contents[MASTER], contents[name])
        if not world.setting.power or name == MASTER:
            found += histories + missing(world.ledger.acks, {name: contents[name]})
        elif not histories and contents[name].end < contents[MASTER].end:
            # A slave that has what its master lost must not follow; every other one must.
            found.append(f"stuck: it ends at {contents[name].end} with its master's history")
        world.faults += [f"{name}: {fault}" for fault in found]
    check_slaves(world)
    return len(contents[MASTER].bodies)


async def _promote(world: World) -> str:
    """The master is gone: the slave with the longest log takes its place. Returns its name."""
    check_slaves(world)
    await trio.sleep(5)  # what the master had sent is still under way
    heir = max(world.slaves, key=lambda name: contents_of(world, name).end)
    world.note(f"{heir} becomes the master")
    await world.nodes[heir].stop()
    world.roles[heir] = "ASYNC_MASTER"
    world.nodes["namesrv"].start()
    world.nodes[heir].start()
    await trio.sleep(15)
    return heir


async def lose_the_master(world: World) -> int:
    """The master's machine burns down; its best slave becomes master, and the SDK reads what was promised."""
    world.note("the master's disk is lost")
    world.nodes[MASTER].kill()
    world.nodes[MASTER].burn()
    heir = await (_master_returns_empty if world.setting.returns else _promote)(world)
    async with world.client("heirs-reader") as client, client.pull_consumer("heirs-readers") as consumer:
        world.read.clear()
        await read_to_end(world, consumer, lambda: False)
    for ack in world.ledger.acks:
        if ack.replicated and world.read.get(ack.place) != ack.body:
            world.faults.append(f"lost: {ack.body[:12]!r} at {ack.place} cannot be read from {heir}")
    if world.setting.returns:
        try:
            dropped = await cut(NAME_SERVER, f"127.0.0.1:{PORTS[MASTER]}", _as_operator(world))
            world.note(f"by order, {dropped} bytes of the old master are dropped")
        except AdminError as error:
            world.faults.append(f"stuck: the old master cannot be cut: {error}")
    else:
        world.roles[MASTER] = "SLAVE"
        world.nodes[MASTER].start()
    await trio.sleep(30)
    names = (*world.slaves, MASTER)
    for name in names:
        await world.nodes[name].stop()
    found = {name: contents_of(world, name) for name in names}
    for name in names:
        faults = found[name].faults + differing(found[name], found[heir])
        if found[name].end != found[heir].end:
            faults.append(f"stuck: it ends at {found[name].end}, {heir} at {found[heir].end}")
        world.faults += [f"{name}: {fault}" for fault in faults]
    return len(found[heir].bodies)


def _as_operator(world: World) -> OpenLink:
    return partial(open_link, dial=world.network.host("operator").dial)


async def _master_returns_empty(world: World) -> str:
    """It must promise nothing on behalf of slaves that have more than it, and they must keep what they have."""
    check_slaves(world)
    before = {name: contents_of(world, name) for name in world.slaves}
    world.nodes["namesrv"].start()
    world.nodes[MASTER].start()
    await trio.sleep(10)
    async with world.client("prober") as client, client.producer("probes", send_timeout_s=10) as producer:
        for number in range(5):
            result = await producer.send(triomq.Message("probes", b"%d" % number))
            if result.status is triomq.SendStatus.SEND_OK:
                world.faults.append("lost: an empty master counts a slave that has another history")
    await trio.sleep(METADATA_S)
    for name in world.slaves:
        now = contents_of(world, name)
        if now.end < before[name].end or differing(now, before[name]):
            world.faults.append(f"cut: {name} ended at {before[name].end}, now at {now.end}, and nobody has ordered it")
    heir = max(world.slaves, key=lambda name: contents_of(world, name).end)
    world.note(f"by order, {heir} becomes the master")
    await change_role(NAME_SERVER, f"127.0.0.1:{PORTS[MASTER]}", "SLAVE", open_link=_as_operator(world))
    await change_role(NAME_SERVER, f"127.0.0.1:{PORTS[heir]}", "SYNC_MASTER", open_link=_as_operator(world))
    await trio.sleep(40)
    return heir


async def succeed(world: World) -> int:
    """The master is gone, a slave takes its place and messages; then the old master comes back as a slave.

    If it has nothing of its own it follows. If it has, it must not lose it without an order: it stays as it is.
    """
    world.nodes[MASTER].kill()
    world.network.heal()
    before = contents_of(world, MASTER)
    heir = await _promote(world)
    later = Ledger()
    async with world.client("heirs-sender") as client, client.producer("heirs-load") as producer:
        # Enough to outgrow what the old master has of its own: a slave that does not compare would go on from there.
        for number in range(40):
            body = b"later-%d " % number + bytes(2000)
            result = await producer.send(triomq.Message(TOPIC, body))
            place = (result.queue.queue_id, result.queue_offset)
            later.acknowledge(place, [body], status="SEND_OK", synchronous=True, sender="later")
    world.note("the old master comes back as a slave")
    world.roles[MASTER] = "SLAVE"
    world.nodes[MASTER].start()
    await trio.sleep(30)
    names = (heir, *(name for name in world.slaves if name != heir), MASTER)
    for name in reversed(names):
        await world.nodes[name].stop()
    contents = {name: contents_of(world, name) for name in names}
    promised = [ack for ack in world.ledger.acks if ack.replicated] + later.acks
    faults = [f"{name}: {fault}" for name in names for fault in contents[name].faults]
    faults += missing(promised, {heir: contents[heir]}) + missing(world.ledger.acks, {MASTER: contents[MASTER]})
    for start, data in before.log.items():
        if contents[MASTER].log.get(start, b"")[: len(data)] != data:
            faults.append(f"cut: the old master's log file {start} has lost bytes, and nobody has ordered it")
    followers = [name for name in names if name not in (heir, MASTER)]
    if not differing(before, contents[heir]) and before.end <= contents[heir].end:
        followers.append(MASTER)
    for name in followers:
        if contents[name].end != contents[heir].end or differing(contents[name], contents[heir]):
            faults.append(f"stuck: {name} ends at {contents[name].end}, {heir} at {contents[heir].end}")
    world.faults += faults
    return len(contents[heir].bodies)
