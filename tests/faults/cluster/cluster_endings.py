"""The final phase of a simulated schedule and its checks: all nodes restart, a slave takes over, or a disk is lost."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio
from cluster_audit import Contents, Ledger, differing, missing, queue_faults, read_log
from cluster_later import delivered
from cluster_traffic import query_offset, query_offsets, read_to_end
from cluster_world import COMMITTED, MASTER, NAME_SERVER, PORTS, TOPIC, World

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_server.admin.asking import AdminError
from triomq_server.admin.roles import change_role, cut
from triomq_server.wire import LinkError, OpenLink, open_link

CATCH_UP_LIMIT_S = 90.0
METADATA_S = 12.0
"""Slaves ask their master every ten seconds."""
PATIENTS = (COMMITTED, COMMITTED + 1)
"""The queues of a group that commits while the master is down."""


def contents_of(world: World, name: str) -> Contents:
    return read_log(world.nodes[name].disk, "/store", TOPIC)


def check_later(world: World, name: str) -> None:
    """The cluster was whole for a while, and this broker the master: all that could be delivered is in its log."""
    found = delivered(world.nodes[name].disk, "/store")
    master, is_other = world.nodes[MASTER], name != MASTER
    world.faults += world.later.faults(found, replicated=is_other, kills=master.kills, starts=master.lives + is_other)


def check_slaves(world: World) -> None:
    """A broker is down, perhaps for good: what the master acknowledged as replicated must be on a slave now."""
    if world.setting.synchronous:
        replicated = [ack for ack in world.ledger.acks if ack.replicated]
        faults = missing(replicated, {name: contents_of(world, name) for name in world.slaves})
        world.faults += [f"{fault} (at {trio.current_time():.3f}, just after a broker was killed)" for fault in faults]


async def log_end(world: World, name: str) -> int:
    try:
        with trio.fail_after(5):
            async with open_link(f"127.0.0.1:{PORTS[name]}", dial=world.network.host("auditor").dial) as link:
                answer = await link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 3)
                return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
    except (OSError, LinkError, trio.TooSlowError):
        return -1


async def wait_caught_up(world: World) -> None:
    """Start every node, inject no faults, and wait until the slaves have caught up."""
    for node in world.nodes.values():
        node.start()
    with trio.move_on_after(CATCH_UP_LIMIT_S if not world.setting.power else CATCH_UP_LIMIT_S / 3):
        while True:
            ends = {name: await log_end(world, name) for name in (MASTER, *world.slaves)}
            if len(set(ends.values())) == 1 and -1 not in ends.values():
                return
            await trio.sleep(0.5)
    if not world.setting.power:
        world.faults.append(f"stuck: after {CATCH_UP_LIMIT_S:g} seconds without faults the logs end at {ends}")


async def check_offsets(world: World) -> None:
    """After a metadata synchronization every broker has every commit that survived."""
    await trio.sleep(METADATA_S)
    for name in (MASTER, *world.slaves):
        # A slave that is ahead of its master after the master's loss of power takes nothing from it.
        if name == MASTER or not world.setting.power:
            world.offsets.check(name, await query_offsets(world, name))


async def return_of_the_master(world: World) -> None:
    """While the master is down consumers commit to a slave, and one is reset there: both survive the master's
    restart."""
    ahead, back = (triomq.MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in PATIENTS)

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
            while set(found := await _offsets_of(world, name, "patients")) != set(PATIENTS):  # noqa: ASYNC110 -- a broker that starts
                await trio.sleep(0.02)
        if found != dict(zip(PATIENTS, (9, 7), strict=True)):
            world.faults.append(f"rolled back: {name} has {found} {when}, not 9 as committed and 7 as reset")

    async with world.client("patient") as client, client.pull_consumer("patients") as consumer:
        await commit(consumer, {ahead: 5, back: 50})
        await trio.sleep(METADATA_S)
        world.note("the master is down for a while")
        world.nodes[MASTER].kill()
        await trio.sleep(1)
        await commit(consumer, {ahead: 9, back: 7})
        world.nodes[MASTER].start()
        await check(MASTER, "just after its restart")
        await trio.sleep(2 * METADATA_S)
        for name in (MASTER, *world.slaves):
            await check(name, "after two synchronizations")


async def _offsets_of(world: World, name: str, group: str) -> dict[int, int]:
    found = {}
    with suppress(OSError, LinkError, trio.TooSlowError), trio.fail_after(5):
        async with open_link(f"127.0.0.1:{PORTS[name]}", dial=world.network.host("auditor").dial) as link:
            for queue_id in PATIENTS:
                offset = await query_offset(link, group, queue_id)
                if offset is not None:
                    found[queue_id] = offset
    return found


async def audit_all(world: World) -> int:
    """Shut down cleanly and check every node's files; returns the number of messages stored."""
    names = (MASTER, *world.slaves)
    for name in reversed((*world.nodes,)):
        await world.nodes[name].stop()
    contents = {name: contents_of(world, name) for name in names}
    for name in names:
        found = contents[name].faults + queue_faults(world.nodes[name].disk, "/store", TOPIC, contents[name])
        differences = differing(contents[MASTER], contents[name])
        if not world.setting.power or name == MASTER:
            found += differences + missing(world.ledger.acks, {name: contents[name]})
        elif not differences and contents[name].end < contents[MASTER].end:
            # A slave that has messages which its master lost must not follow; every other one must.
            found.append(f"stuck: it ends at {contents[name].end} without having diverged from its master")
        world.faults += [f"{name}: {fault}" for fault in found]
    check_slaves(world)
    check_later(world, MASTER)
    return len(contents[MASTER].bodies)


async def _promote(world: World) -> str:
    """Make the slave with the longest log the master, after the master was killed. Returns its name."""
    check_slaves(world)
    await trio.sleep(5)  # what the master had sent is still in transit
    successor = max(world.slaves, key=lambda name: contents_of(world, name).end)
    world.note(f"{successor} becomes the master")
    await world.nodes[successor].stop()
    world.roles[successor] = "ASYNC_MASTER"
    world.nodes["namesrv"].start()
    world.nodes[successor].start()
    await trio.sleep(15)
    return successor


async def lose_the_master(world: World) -> int:
    """The master loses its disk; the slave with the longest log becomes master, and the SDK reads what was
    acknowledged."""
    world.note("the master's disk is lost")
    world.nodes[MASTER].kill()
    world.nodes[MASTER].lose_disk()
    successor = await (_master_returns_empty if world.setting.returns else _promote)(world)
    async with world.client("successor-reader") as client, client.pull_consumer("successor-readers") as consumer:
        world.read.clear()
        await read_to_end(world, consumer, lambda: False)
    for ack in world.ledger.acks:
        if ack.replicated and world.read.get(ack.place) != ack.body:
            world.faults.append(f"lost: {ack.body[:12]!r} at {ack.place} cannot be read from {successor}")
    if world.setting.returns:
        try:
            dropped = await cut(NAME_SERVER, f"127.0.0.1:{PORTS[MASTER]}", _as_operator(world))
            world.note(f"on command, {dropped} bytes of the old master are dropped")
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
        faults = found[name].faults + differing(found[name], found[successor])
        if found[name].end != found[successor].end:
            faults.append(f"stuck: it ends at {found[name].end}, {successor} at {found[successor].end}")
        world.faults += [f"{name}: {fault}" for fault in faults]
    check_later(world, successor)
    return len(found[successor].bodies)


def _as_operator(world: World) -> OpenLink:
    return partial(open_link, dial=world.network.host("operator").dial)


async def _master_returns_empty(world: World) -> str:
    """It must acknowledge nothing as replicated to slaves whose logs are longer, and these must keep their logs."""
    check_slaves(world)
    before = {name: contents_of(world, name) for name in world.slaves}
    world.nodes["namesrv"].start()
    world.nodes[MASTER].start()
    await trio.sleep(10)
    async with world.client("prober") as client, client.producer("probes", send_timeout_s=10) as producer:
        for number in range(5):
            result = await producer.send(triomq.Message("probes", b"%d" % number))
            if result.status is triomq.SendStatus.SEND_OK:
                world.faults.append("lost: an empty master counts a slave whose log has diverged")
    await trio.sleep(METADATA_S)
    for name in world.slaves:
        now = contents_of(world, name)
        if now.end < before[name].end or differing(now, before[name]):
            world.faults.append(f"cut: {name} ended at {before[name].end}, now at {now.end}, without a command")
    successor = max(world.slaves, key=lambda name: contents_of(world, name).end)
    world.note(f"on command, {successor} becomes the master")
    await change_role(NAME_SERVER, f"127.0.0.1:{PORTS[MASTER]}", "SLAVE", open_link=_as_operator(world))
    await change_role(NAME_SERVER, f"127.0.0.1:{PORTS[successor]}", "SYNC_MASTER", open_link=_as_operator(world))
    await trio.sleep(40)
    return successor


async def succeed(world: World) -> int:
    """A slave replaces the killed master and accepts messages; then the old master restarts as a slave.

    If it has no messages that its successor lacks, it follows. If it has, it must not truncate them without a command.
    """
    world.nodes[MASTER].kill()
    world.network.heal()
    before = contents_of(world, MASTER)
    successor = await _promote(world)
    later = Ledger()
    async with world.client("successor-sender") as client, client.producer("successor-load") as producer:
        # Enough for the log to become longer than the old master's: a slave that does not compare would continue there.
        for number in range(40):
            body = b"later-%d " % number + bytes(2000)
            result = await producer.send(triomq.Message(TOPIC, body))
            place = (result.queue.queue_id, result.queue_offset)
            later.acknowledge(place, [body], status="SEND_OK", synchronous=True, sender="later")
    world.note("the old master restarts as a slave")
    world.roles[MASTER] = "SLAVE"
    world.nodes[MASTER].start()
    await trio.sleep(30)
    names = (successor, *(name for name in world.slaves if name != successor), MASTER)
    for name in reversed(names):
        await world.nodes[name].stop()
    contents = {name: contents_of(world, name) for name in names}
    replicated = [ack for ack in world.ledger.acks if ack.replicated] + later.acks
    faults = [f"{name}: {fault}" for name in names for fault in contents[name].faults]
    faults += missing(replicated, {successor: contents[successor]}) + missing(
        world.ledger.acks, {MASTER: contents[MASTER]}
    )
    for start, data in before.log.items():
        if contents[MASTER].log.get(start, b"")[: len(data)] != data:
            faults.append(f"cut: the old master's log file {start} has lost bytes, without a command")
    followers = [name for name in names if name not in (successor, MASTER)]
    if not differing(before, contents[successor]) and before.end <= contents[successor].end:
        followers.append(MASTER)
    for name in followers:
        if contents[name].end != contents[successor].end or differing(contents[name], contents[successor]):
            faults.append(f"stuck: {name} ends at {contents[name].end}, {successor} at {contents[successor].end}")
    world.faults += faults
    check_later(world, successor)
    return len(contents[successor].bodies)
