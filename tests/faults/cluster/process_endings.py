"""The final phase of a schedule with real processes: all nodes restart, or the master's disk is lost and a slave
replaces it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import trio
from cluster_audit import Ledger, differing, missing
from process_nodes import MASTER, Nodes
from process_traffic import COMMITTED, QUEUES, create_topic, log_end, query_offset, query_offsets, queue, queue_ends
from separate_nodes import SeparateNodes

import triomq
from triomq_benchmarks.clusters.servers import Kind
from triomq_server.admin.asking import AdminError
from triomq_server.admin.roles import change_role
from triomq_server.wire import LinkError, open_link

if TYPE_CHECKING:
    from process_schedule import Schedule

CATCH_UP_LIMIT_S = 120.0
INJECTED_LIMIT_S = 20.0
"""With an injected fault a queue may never reach its log's end: when the last record is one of those left out."""
METADATA_LIMIT_S = 60.0
"""Brokers synchronize their metadata every ten seconds, late on a loaded machine."""
RETURNS = 0.15
"""Probability that the master is killed once more in the final phase, which takes two metadata synchronizations."""
OLD_MASTERS_NEW_ID = "3"


async def end(schedule: Schedule, nodes: Nodes) -> None:
    """The schedule's final phase, while the nodes run."""
    if schedule.setting.disk_lost:
        assert isinstance(nodes, SeparateNodes)
        await _lose_the_disk(schedule, nodes)
        return
    await wait_caught_up(schedule, nodes, MASTER, schedule.slaves)
    if schedule.pair.master is Kind.OURS:
        if schedule.pair.slave is Kind.OURS:
            await _check_offsets(schedule, nodes)
        if schedule.chance.random() < RETURNS:
            await _return_of_the_master(schedule, nodes)
            await wait_caught_up(schedule, nodes, MASTER, schedule.slaves)


def audit(schedule: Schedule) -> int:
    """Check the files after all nodes have ended. Returns how many messages are stored."""
    found = {name: schedule.contents(name) for name in (MASTER, *schedule.slaves)}
    if not schedule.setting.disk_lost:
        schedule.faults += schedule.differing(found, MASTER)
        for name, contents in found.items():
            faults = (
                contents.faults
                + schedule.queue_faults(name, contents)
                + missing(schedule.ledger.acks, {name: contents})
            )
            schedule.faults += [f"{name}: {fault}" for fault in faults]
    return len(found[MASTER].bodies)


async def wait_caught_up(schedule: Schedule, nodes: Nodes, master: str, slaves: list[str]) -> None:
    """Inject no faults, and wait until slaves have caught up, and consume queues with the logs."""
    ends: dict[str, int] = {}
    queues: dict[str, list[int]] = {}
    before = None
    limit_s = INJECTED_LIMIT_S if schedule.injected else CATCH_UP_LIMIT_S
    with trio.move_on_after(limit_s):
        while True:
            ends = {name: await log_end(nodes.addresses[name]) for name in (master, *slaves)}
            if len(set(ends.values())) == 1 and -1 not in ends.values():
                queues = {name: await queue_ends(nodes.addresses[name]) for name in (master, *slaves)}
                same = all(each == queues[master] and -1 not in each for each in queues.values())
                if same and before == (ends, queues):
                    return
                before = (ends, queues)
            await trio.sleep(0.05)
    schedule.faults.append(
        f"stuck: after {limit_s:g} seconds without faults the logs end at {ends}, {queues}, pids {nodes.pids}"
    )
    for name in (master, *slaves):
        if schedule.kind(name) is Kind.OURS and not isinstance(nodes, SeparateNodes):
            nodes.signal(name, signal.SIGUSR1)
    await trio.sleep(1)


# -- all nodes run again


async def _check_offsets(schedule: Schedule, nodes: Nodes) -> None:
    """The master has every commit that survived, once it has queried its slaves again."""
    found = {}
    keys = list(schedule.offsets.commits)
    with trio.move_on_after(METADATA_LIMIT_S):
        while schedule.offsets.lacking(found := await query_offsets(nodes, schedule.offsets, MASTER, keys)):  # noqa: ASYNC110
            await trio.sleep(0.3)
    schedule.offsets.check(MASTER, found)


async def _return_of_the_master(schedule: Schedule, nodes: Nodes) -> None:
    """While the master is down consumers commit to a slave, and one is reset there if it is ours: both survive the
    master's restart."""
    slave = schedule.slaves[0]
    first, second = COMMITTED, COMMITTED + 1
    expected = {first: 9, second: 7}
    if schedule.pair.slave is Kind.JAVA:
        del expected[second]  # it does not report that a group was reset
    async with triomq.open_client(nodes.name_servers) as client, client.pull_consumer("patients") as consumer:
        await _until_registered(client, {nodes.addresses[name] for name in (MASTER, *schedule.slaves)})
        await _commit(consumer, {first: 5, second: 50})
        await _until_offsets(schedule, nodes, slave, {first: 5, second: 50})
        schedule.events.append("the master is down for a while")
        await schedule.kill(nodes, MASTER)
        await _commit(consumer, expected)
        await schedule.start(nodes, MASTER)
        found = await _offsets(nodes, MASTER, expected)
        if found != expected:
            schedule.faults.append(f"rolled back: the restarted master has {found}, not {expected}")
        await _until_offsets(schedule, nodes, slave, expected)
        found = await _offsets(nodes, MASTER, expected)
        if found != expected:
            schedule.faults.append(f"rolled back: the master ends with {found}, not {expected}")


async def _until_registered(client: triomq.Client, wanted: set[str]) -> None:
    """A restarted name server receives 4.9 brokers only with their next registration."""
    with trio.fail_after(CATCH_UP_LIMIT_S):
        while True:
            try:
                table = (await client.admin.cluster_info()).broker_addr_table or {}
            except triomq.MQError:
                table = {}
            if wanted <= {address for each in table.values() for address in (each.broker_addrs or {}).values()}:
                return
            await trio.sleep(0.2)


async def _commit(consumer: triomq.PullConsumer, offsets: dict[int, int]) -> None:
    for queue_id, offset in offsets.items():
        with trio.fail_after(CATCH_UP_LIMIT_S):
            while True:
                try:
                    await consumer.commit(queue(queue_id), offset)
                except triomq.MQError:
                    await trio.sleep(0.1)
                else:
                    break


async def _offsets(nodes: Nodes, name: str, queue_ids: dict[int, int]) -> dict[int, int | None]:
    async with open_link(nodes.addresses[name]) as link:
        return {queue_id: await query_offset(link, "patients", queue_id) for queue_id in queue_ids}


async def _until_offsets(schedule: Schedule, nodes: Nodes, name: str, expected: dict[int, int]) -> None:
    """Wait until a slave has copied its master's offsets."""
    found: dict[int, int | None] = {}
    with trio.move_on_after(METADATA_LIMIT_S):
        while True:
            try:
                found = await _offsets(nodes, name, expected)
            except (OSError, LinkError):
                pass
            if found == expected:
                return
            await trio.sleep(0.1)
    schedule.faults.append(f"rolled back: {name} has {found} and never gets {expected}")


# -- the master's disk is lost


async def _lose_the_disk(schedule: Schedule, nodes: SeparateNodes) -> None:
    """Every message acknowledged as replicated is in the slaves' logs, and can be read when one of them is the
    master."""
    schedule.events.append("the master's disk is lost")
    await schedule.kill(nodes, MASTER)
    nodes.lose_disk(MASTER)
    schedule.offsets.disk_lost(MASTER)
    if schedule.setting.returns:
        await _master_returns_empty(schedule, nodes)
    successor = max(schedule.slaves, key=lambda name: schedule.contents(name).end)
    await _promote(schedule, nodes, successor)
    later = await _send_to_successor(schedule, nodes)
    schedule.events.append("the old master restarts as a slave, with an empty disk")
    role = {
        "brokerRole": "SLAVE",
        "brokerId": OLD_MASTERS_NEW_ID,
        "haMasterAddress": f"127.0.0.1:{schedule.proxy.port + 1}",
    }
    nodes.settings[MASTER] |= role
    await schedule.start(nodes, MASTER)
    others = [name for name in (MASTER, *schedule.slaves) if name != successor]
    await wait_caught_up(schedule, nodes, successor, others)
    replicated = [ack for ack in schedule.ledger.acks if ack.replicated] + later.acks
    read = await _read_all(nodes)
    lost = [ack for ack in replicated if read.get(ack.place) != ack.body]
    schedule.faults += [f"lost: {ack.body[:12]!r} at {ack.place} cannot be read from {successor}" for ack in lost]
    schedule.faults += later.own_faults()
    for name in (*others, successor):
        await nodes.stop(name)
    found = {name: schedule.contents(name) for name in (successor, *others)}
    schedule.faults += schedule.differing(found, successor)
    for name, contents in found.items():
        faults = contents.faults + schedule.queue_faults(name, contents) + missing(replicated, {name: contents})
        schedule.faults += [f"{name}: {fault}" for fault in faults]


async def _master_returns_empty(schedule: Schedule, nodes: SeparateNodes) -> None:
    """It may acknowledge nothing as replicated, and its slaves must keep their logs."""
    schedule.events.append("it restarts as the master, with an empty disk")
    before = {name: schedule.contents(name) for name in schedule.slaves}
    await schedule.start(nodes, MASTER)
    async with (
        triomq.open_client(nodes.name_servers) as client,
        client.producer("probes", send_timeout_s=5.0) as producer,
    ):
        for number in range(3):
            # A 4.9 slave looks for a lost master every five seconds.
            await trio.sleep(2.0 if schedule.pair.slave is Kind.JAVA else 0.5)
            try:
                result = await producer.send(triomq.Message("probes", b"%d" % number))
            except triomq.MQError:
                continue
            if result.status is triomq.SendStatus.SEND_OK:
                schedule.faults.append("lost: an empty master counts a slave whose log has diverged")
    for name, held in before.items():
        now = schedule.contents(name)
        if now.end < held.end or differing(now, held):
            schedule.faults.append(f"cut: {name} ended at {held.end}, now at {now.end}, without a command")
    await schedule.kill(nodes, MASTER)
    nodes.lose_disk(MASTER)
    schedule.offsets.disk_lost(MASTER)


async def _promote(schedule: Schedule, nodes: SeparateNodes, successor: str) -> None:
    """Promote a slave on command without a restart, which only ours supports, or by a restart."""
    role = "SYNC_MASTER" if schedule.setting.synchronous else "ASYNC_MASTER"
    at_run_time = nodes.kinds[successor] is Kind.OURS and schedule.chance.random() < 0.5
    schedule.events.append(f"{successor} becomes the master {'while it runs' if at_run_time else 'by a restart'}")
    nodes.settings[successor] |= {"brokerRole": role, "brokerId": "0"}
    del nodes.settings[successor]["haMasterAddress"]
    if at_run_time:
        try:
            await change_role(nodes.name_servers, nodes.addresses[successor], role, force=True)
        except AdminError as error:
            schedule.faults.append(f"{successor} does not become the master: {error}")
    else:
        await nodes.stop(successor)
        await schedule.start(nodes, successor)
    schedule.proxy.lead_to(nodes.addresses[successor])
    schedule.proxy.cut()
    schedule.proxy.heal()


async def _send_to_successor(schedule: Schedule, nodes: SeparateNodes) -> Ledger:
    """Send to the new master. Topics that a 4.9 slave copied from an empty master are created again."""
    await create_topic(nodes)
    later = Ledger()
    async with (
        triomq.open_client(nodes.name_servers) as client,
        client.producer("successor-load", send_timeout_s=2.0) as producer,
    ):
        number = 0
        with trio.move_on_after(CATCH_UP_LIMIT_S):
            while len(later.acks) < 20:
                number += 1
                body = b"later-%d" % number
                try:
                    result = await producer.send(triomq.Message("ledger", body))
                except triomq.MQError:
                    await trio.sleep(0.1)
                else:
                    place = (result.queue.queue_id, result.queue_offset)
                    later.acknowledge(place, [body], status="SEND_OK", synchronous=True, sender="later")
    if len(later.acks) < 20:
        schedule.faults.append(f"stuck: the new master took only {len(later.acks)} messages")
    return later


async def _read_all(nodes: Nodes) -> dict[tuple[int, int], bytes]:
    """Through the SDK, from the broker that serves it."""
    read: dict[tuple[int, int], bytes] = {}
    async with triomq.open_client(nodes.name_servers) as client, client.pull_consumer("last-readers") as consumer:
        for queue_id in range(QUEUES):
            offset, tries = 0, 0
            while tries < 20:
                try:
                    result = await consumer.pull(queue(queue_id), offset)
                except triomq.MQError:
                    tries += 1
                    await trio.sleep(0.2)
                    continue
                for message in result.messages:
                    read[queue_id, message.queue_offset] = message.body
                tries = 0 if result.messages else tries + 1
                offset = result.next_offset
                if not result.messages:
                    if offset >= result.max_offset > 0:
                        break
                    await trio.sleep(0.1)
    return read
