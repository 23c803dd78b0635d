"""A whole cluster in one process: name server, master, slaves, senders and a reader, on a virtual clock, in-memory
network and disks.

A seed decides everything: how the cluster is set up, what is sent, and which nodes are killed, stopped, muted, cut off
or slowed down, and when. Every acknowledgement goes into a ledger outside; afterwards the nodes' files are read and
compared with it. The same seed does the same again, down to the order of tasks.

    python tests/faults/cluster/cluster_simulation.py --count 1000      # seeds 0 to 999
    python tests/faults/cluster/cluster_simulation.py --first 4711 -v   # one seed, with its events
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2] / "memory"))

from cluster_endings import (
    audit_all,
    check_offsets,
    check_slaves,
    lose_the_master,
    return_of_the_master,
    succeed,
    wait_caught_up,
)
from cluster_setting import Outcome, counts, kinds
from cluster_traffic import commit, read, read_to_end, send, send_later, watch_offsets
from cluster_world import MASTER, SimNode, World, begin
from seeded_run import seeded_run

EVENTS = (8, 14)
GAP_S = (0.05, 1.5)
LEAST_ACKS = 10
KINDS = ("kill", "kill", "kill", "stop", "mute", "mute", "cut", "slow")
POWER_KINDS = ("kill", "kill", "kill", "kill", "kill", "kill", "stop", "mute", "cut", "slow")
RIGHT_AFTER = 0.7
"""Probability that a node is killed as soon as a sender has an acknowledgement: what it promises must be true by then."""
RETURNS = 0.4
"""Probability that the master is killed once more in the final phase."""


# -- faults ------------------------------------------------------------------------------------------------------------


async def disturb(world: World) -> None:
    chance = world.chance
    async with trio.open_nursery() as nursery:
        for _ in range(chance.randint(*EVENTS)):
            await trio.sleep(chance.uniform(*GAP_S))
            kind = chance.choice(POWER_KINDS if world.setting.power else KINDS)
            lasting_s = chance.choice((0.05, 0.5, 2.0, 5.0, 25.0 if kind in ("mute", "cut") else 1.0)) * chance.uniform(
                0.5, 1.5
            )
            masters = 4 if world.setting.power else 2
            name = chance.choice([MASTER] * masters + [*world.slaves, *world.slaves, "namesrv"])
            nursery.start_soon(_FAULTS[kind], world, name, lasting_s)


async def _kill(world: World, name: str, lasting_s: float) -> None:
    node = world.nodes[name]
    if not node.up:
        return
    # A slave acknowledges before it flushes, so it loses no power where its acknowledgement counts.
    may_lose_power = world.setting.power if name == MASTER else name in world.slaves and not world.setting.synchronous
    power = may_lose_power and world.chance.random() < 0.7
    if world.chance.random() < RIGHT_AFTER:
        await _acknowledgement(world, node, power=power)
        if not node.up:
            return
    world.note(f"kill {name}{' by loss of power' if power else ''} for {lasting_s:.2f} s")
    node.kill(power=power)
    if name != "namesrv":
        check_slaves(world)
    await trio.sleep(lasting_s)
    world.note(f"start {name}")
    node.start()


async def _acknowledgement(world: World, node: SimNode, *, power: bool) -> None:
    """Wait for an acknowledgement; before a loss of power, for one that comes while log bytes are not on the disk."""
    with trio.move_on_after(2):
        await world.acknowledged.wait()
        while power and node.up and not node.disk.unforced("/store/commitlog/"):
            await world.acknowledged.wait()


async def _stop(world: World, name: str, lasting_s: float) -> None:
    node = world.nodes[name]
    if node.up:
        world.note(f"stop {name} for {lasting_s:.2f} s")
        await node.stop()
        await trio.sleep(lasting_s)
        world.note(f"start {name}")
        node.start()


async def _mute(world: World, name: str, lasting_s: float) -> None:
    world.note(f"mute {name} for {lasting_s:.2f} s")
    end = world.network.mute_node(name)
    await trio.sleep(lasting_s)
    world.note(f"unmute {name}")
    end()


async def _between(world: World, name: str, lasting_s: float, *, how: str) -> None:
    other = world.chance.choice([each for each in (*world.nodes, "sender-0") if each != name])
    world.note(f"{how} {name} and {other} for {lasting_s:.2f} s")
    network = world.network
    end = (
        network.cut_pair(name, other)
        if how == "cut"
        else network.slow_pair(name, other, world.chance.choice((0.05, 1.0)))
    )
    await trio.sleep(lasting_s)
    end()


_FAULTS: dict[str, Callable[[World, str, float], Any]] = {
    "kill": _kill,
    "stop": _stop,
    "mute": _mute,
    "cut": partial(_between, how="cut"),
    "slow": partial(_between, how="slow"),
}


async def _run(seed: int) -> Outcome:
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery)
        await begin(world)
        nursery.start_soon(send_later, world)
        async with trio.open_nursery() as traffic:
            for number in range(3):
                traffic.start_soon(send, world, f"sender-{number}")
            traffic.start_soon(read, world, "reader")
            traffic.start_soon(commit, world)
            traffic.start_soon(watch_offsets, world)
            await trio.sleep(1)
            await disturb(world)
            world.network.heal()
            if world.setting.succession and world.chance.random() < 0.6:
                world.note("the slaves are cut off")
                for name in world.slaves:
                    world.network.cut_pair(MASTER, name)
                await trio.sleep(1.5)
            world.sending = False
        world.note("no more faults")
        world.faults += world.ledger.own_faults()
        if world.setting.disk_lost:
            stored = await lose_the_master(world)
        elif world.setting.succession:
            stored = await succeed(world)
        else:
            await wait_caught_up(world)
            world.read.clear()
            async with world.client("last-reader") as client, client.pull_consumer("last-readers") as consumer:
                await read_to_end(world, consumer, lambda: False)
            for ack in world.ledger.acks:
                if world.read.get(ack.place) != ack.body:
                    world.faults.append(f"lost: {ack.body[:12]!r} at {ack.place} cannot be read")
            await check_offsets(world)
            if not world.setting.power and world.chance.random() < RETURNS:
                await return_of_the_master(world)
            stored = await audit_all(world)
        world.faults += world.offsets.faults
        if len(world.ledger.acks) < LEAST_ACKS:
            world.faults.append(f"idle: only {len(world.ledger.acks)} messages were acknowledged, which proves nothing")
        virtual_s = trio.current_time()
        nursery.cancel_scope.cancel()
    picture = repr((world.events, world.faults, [(a.place, a.body, a.sender) for a in world.ledger.acks], virtual_s))
    return Outcome(
        seed,
        world.setting,
        len(world.ledger.acks),
        world.ledger.refused,
        world.ledger.statuses,
        stored,
        len(world.read),
        virtual_s,
        world.events,
        world.faults,
        world.offsets.count,
        hashlib.sha256(picture.encode()).hexdigest()[:16],
    )


def simulate(seed: int) -> Outcome:
    """Run one seed from its start to the audit."""
    return seeded_run(seed, _run, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="show events, and what the nodes log")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL, format="%(name)s: %(message)s")
    logging.getLogger("trio").setLevel(logging.CRITICAL)
    begin = time.perf_counter()
    failed = acknowledged = events = commits = 0
    found: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        outcome = simulate(seed)
        acknowledged += outcome.acknowledged
        commits += outcome.commits
        events += len(outcome.events)
        found += kinds(outcome.faults)
        if options.verbose:
            print(*outcome.events, sep="\n")
        if outcome.faults or options.verbose or options.count == 1:
            print(
                f"seed {seed} {outcome.setting}: {outcome.acknowledged} acknowledged {dict(outcome.statuses)}, "
                f"{outcome.refused} refused, {outcome.stored} stored, {outcome.read} read, "
                f"{outcome.virtual_s:.1f} virtual s, digest {outcome.digest}, {len(outcome.faults)} faults"
            )
            print(*(f"    {fault}" for fault in outcome.faults[:10]), sep="\n")
        failed += bool(outcome.faults)
        done = seed + 1 - options.first
        if done % 100 and done < options.count:
            continue
        spent_s = time.perf_counter() - begin
        print(
            f"{done} schedules, {events} events, {acknowledged} acknowledged, {commits} commits: {counts(found)}; "
            f"{failed} failed; {spent_s:.1f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
