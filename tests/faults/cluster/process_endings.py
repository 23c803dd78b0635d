"""How a schedule with real processes ends: everybody comes back, or the master's disk is lost and a slave takes its
place."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import trio
from cluster_audit import Ledger, differing, missing
from process_nodes import MASTER, Nodes
from process_traffic import QUEUES, ask_offset, create_topic, log_end, look_at_offsets, queue, queue_ends
from separate_nodes import SeparateNodes

import triomq
from triomq_benchmarks.clusters.servers import Kind
from triomq_server.commands.admin import AdminError, change_role
from triomq_server.wire import LinkError, open_link

if TYPE_CHECKING:
    from process_trial import Trial

SETTLE_S = 60.0
METADATA_S = 13.0
"""Brokers ask each other every ten seconds."""
RETURNS = 0.15
"""How often a master is sent away once more at the end, which takes two rounds of metadata."""
OLD_MASTERS_NEW_ID = "3"


async def end(trial: Trial, nodes: Nodes) -> None:
    """The schedule's last chapter, while the nodes run."""
    if trial.setting.disk_lost:
        assert isinstance(nodes, SeparateNodes)
        await _lose_the_disk(trial, nodes)
        return
    await settle(trial, nodes, MASTER, trial.slaves)
    if trial.pair.master is Kind.OURS:
        if trial.pair.slave is Kind.OURS:
            await _check_offsets(trial, nodes)
        if trial.chance.random() < RETURNS:
            await _return_of_the_master(trial, nodes)
            await settle(trial, nodes, MASTER, trial.slaves)


def audit(trial: Trial) -> int:
    """Everybody is gone: what the files hold. Returns how many messages are stored."""
    found = {name: trial.contents(name) for name in (MASTER, *trial.slaves)}
    if not trial.setting.disk_lost:
        trial.faults += trial.differing(found, MASTER)
        for name, contents in found.items():
            faults = contents.faults + trial.queue_faults(name, contents) + missing(trial.ledger.acks, {name: contents})
            trial.faults += [f"{name}: {fault}" for fault in faults]
    return len(found[MASTER].bodies)


async def settle(trial: Trial, nodes: Nodes, master: str, slaves: list[str]) -> None:
    """Nothing disturbs: slaves catch up, and queues with the logs."""
    ends: dict[str, int] = {}
    queues: dict[str, list[int]] = {}
    before = None
    with trio.move_on_after(SETTLE_S):
        while True:
            ends = {name: await log_end(nodes.addresses[name]) for name in (master, *slaves)}
            if len(set(ends.values())) == 1 and -1 not in ends.values():
                queues = {name: await queue_ends(nodes.addresses[name]) for name in (master, *slaves)}
                same = all(each == queues[master] and -1 not in each for each in queues.values())
                if same and before == (ends, queues):
                    return
                before = (ends, queues)
            await trio.sleep(0.05)
    trial.faults.append(f"stuck: after {SETTLE_S:g} quiet seconds the logs end at {ends}, {queues}, pids {nodes.pids}")
    for name in (master, *slaves):
        if trial.kind(name) is Kind.OURS and not isinstance(nodes, SeparateNodes):
            nodes.signal(name, signal.SIGUSR1)
    await trio.sleep(1)


# -- everybody is back


async def _check_offsets(trial: Trial, nodes: Nodes) -> None:
    """The master has every commit that survived, once it has asked its slaves again."""
    found = {}
    keys = list(trial.offsets.commits)
    with trio.move_on_after(METADATA_S):
        while trial.offsets.lacking(found := await look_at_offsets(nodes, trial.offsets, MASTER, keys)):  # noqa: ASYNC110
            await trio.sleep(0.3)
    trial.offsets.check(MASTER, found)


async def _return_of_the_master(trial: Trial, nodes: Nodes) -> None:
    """While the master is away consumers go on at a slave, and one of ours is set back there: both hold when it is
    back."""
    slave = trial.slaves[0]
    expected = {0: 9, 1: 7}
    if trial.pair.slave is Kind.JAVA:
        del expected[1]  # it cannot tell that a group was reset
    async with triomq.open_client(nodes.name_servers) as client, client.pull_consumer("patients") as consumer:
        await _until_registered(client, {nodes.addresses[name] for name in (MASTER, *trial.slaves)})
        await _commit(consumer, {0: 5, 1: 50})
        await _until_offsets(trial, nodes, slave, {0: 5, 1: 50})
        trial.events.append("the master is away for a while")
        await trial.kill(nodes, MASTER)
        await _commit(consumer, expected)
        await trial.start(nodes, MASTER)
        found = await _offsets(nodes, MASTER, expected)
        if found != expected:
            trial.faults.append(f"rolled back: the returned master has {found}, not {expected}")
        await _until_offsets(trial, nodes, slave, expected)
        found = await _offsets(nodes, MASTER, expected)
        if found != expected:
            trial.faults.append(f"rolled back: the master ends with {found}, not {expected}")


async def _until_registered(client: triomq.Client, wanted: set[str]) -> None:
    """A restarted name server learns of 4.9 brokers only at their next registration."""
    with trio.fail_after(SETTLE_S):
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
        with trio.fail_after(SETTLE_S):
            while True:
                try:
                    await consumer.commit(queue(queue_id), offset)
                except triomq.MQError:
                    await trio.sleep(0.1)
                else:
                    break


async def _offsets(nodes: Nodes, name: str, queue_ids: dict[int, int]) -> dict[int, int | None]:
    async with open_link(nodes.addresses[name]) as link:
        return {queue_id: await ask_offset(link, "patients", queue_id) for queue_id in queue_ids}


async def _until_offsets(trial: Trial, nodes: Nodes, name: str, expected: dict[int, int]) -> None:
    """A slave copies its master's offsets in a while."""
    found: dict[int, int | None] = {}
    with trio.move_on_after(2 * METADATA_S):
        while True:
            try:
                found = await _offsets(nodes, name, expected)
            except (OSError, LinkError):
                pass
            if found == expected:
                return
            await trio.sleep(0.1)
    trial.faults.append(f"rolled back: {name} has {found} and never gets {expected}")


# -- the master's disk is lost


async def _lose_the_disk(trial: Trial, nodes: SeparateNodes) -> None:
    """Everything that was promised is on the slaves: as bytes, and to be read when one of them is the master."""
    trial.events.append("the master's disk is lost")
    await trial.kill(nodes, MASTER)
    nodes.burn(MASTER)
    trial.offsets.burnt(MASTER)
    if trial.setting.returns:
        await _master_returns_empty(trial, nodes)
    heir = max(trial.slaves, key=lambda name: trial.contents(name).end)
    await _promote(trial, nodes, heir)
    later = await _send_to_heir(trial, nodes)
    trial.events.append("the old master comes back as a slave, with an empty disk")
    role = {
        "brokerRole": "SLAVE",
        "brokerId": OLD_MASTERS_NEW_ID,
        "haMasterAddress": f"127.0.0.1:{trial.proxy.port + 1}",
    }
    nodes.settings[MASTER] |= role
    await trial.start(nodes, MASTER)
    others = [name for name in (MASTER, *trial.slaves) if name != heir]
    await settle(trial, nodes, heir, others)
    promised = [ack for ack in trial.ledger.acks if ack.replicated] + later.acks
    read = await _read_all(nodes)
    lost = [ack for ack in promised if read.get(ack.place) != ack.body]
    trial.faults += [f"lost: {ack.body[:12]!r} at {ack.place} cannot be read from {heir}" for ack in lost]
    trial.faults += later.own_faults()
    for name in (*others, heir):
        await nodes.stop(name)
    found = {name: trial.contents(name) for name in (heir, *others)}
    trial.faults += trial.differing(found, heir)
    for name, contents in found.items():
        faults = contents.faults + trial.queue_faults(name, contents) + missing(promised, {name: contents})
        trial.faults += [f"{name}: {fault}" for fault in faults]


async def _master_returns_empty(trial: Trial, nodes: SeparateNodes) -> None:
    """It may not promise anything, and its slaves keep what they have."""
    trial.events.append("it comes back as the master, with an empty disk")
    before = {name: trial.contents(name) for name in trial.slaves}
    await trial.start(nodes, MASTER)
    async with (
        triomq.open_client(nodes.name_servers) as client,
        client.producer("probes", send_timeout_s=5.0) as producer,
    ):
        for number in range(3):
            # A 4.9 slave looks for a lost master every five seconds.
            await trio.sleep(2.0 if trial.pair.slave is Kind.JAVA else 0.5)
            try:
                result = await producer.send(triomq.Message("probes", b"%d" % number))
            except triomq.MQError:
                continue
            if result.status is triomq.SendStatus.SEND_OK:
                trial.faults.append("lost: an empty master counts a slave that has another history")
    for name, held in before.items():
        now = trial.contents(name)
        if now.end < held.end or differing(now, held):
            trial.faults.append(f"cut: {name} ended at {held.end}, now at {now.end}, and nobody has ordered it")
    await trial.kill(nodes, MASTER)
    nodes.burn(MASTER)
    trial.offsets.burnt(MASTER)


async def _promote(trial: Trial, nodes: SeparateNodes, heir: str) -> None:
    """By order while it runs, which only ours can; or by a restart."""
    role = "SYNC_MASTER" if trial.setting.synchronous else "ASYNC_MASTER"
    at_run_time = nodes.kinds[heir] is Kind.OURS and trial.chance.random() < 0.5
    trial.events.append(f"{heir} becomes the master {'while it runs' if at_run_time else 'by a restart'}")
    nodes.settings[heir] |= {"brokerRole": role, "brokerId": "0"}
    del nodes.settings[heir]["haMasterAddress"]
    if at_run_time:
        try:
            await change_role(nodes.name_servers, nodes.addresses[heir], role, force=True)
        except AdminError as error:
            trial.faults.append(f"{heir} does not become the master: {error}")
    else:
        await nodes.stop(heir)
        await trial.start(nodes, heir)
    trial.proxy.lead_to(nodes.addresses[heir])
    trial.proxy.cut()
    trial.proxy.heal()


async def _send_to_heir(trial: Trial, nodes: SeparateNodes) -> Ledger:
    """Topics that a 4.9 heir took over from an empty master are created anew."""
    await create_topic(nodes)
    later = Ledger()
    async with (
        triomq.open_client(nodes.name_servers) as client,
        client.producer("heirs-load", send_timeout_s=2.0) as producer,
    ):
        number = 0
        with trio.move_on_after(SETTLE_S):
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
        trial.faults.append(f"stuck: the new master took only {len(later.acks)} messages")
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
