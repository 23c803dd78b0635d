"""A consumer group under faults, in one process: members join, leave and are killed, brokers restart, on a virtual
clock.

A seed decides everything. Every acknowledgement, every call of a handler and every assignment goes into a ledger; in
the end every acknowledged message is handled, ordered groups have kept each queue's order, no queue had two owners for
longer than the rules allow, and every queue is committed to its end.

    python tests/faults/consumers/consumer_simulation.py --count 500      # seeds 0 to 499
    python tests/faults/consumers/consumer_simulation.py --first 47 -v    # one seed, with its events
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import trio

if __name__ == "__main__":
    sys.path += [str(Path(__file__).parents[1] / "cluster"), str(Path(__file__).parents[2] / "memory")]

from consumer_world import GROUP, TOPIC, Setting, World
from seeded_run import seeded_run

import triomq

EVENTS = (6, 12)
GAP_S = (0.1, 6.0)
MEMBERS_MAX = 5
HANDLED_LIMIT_S = 240.0
"""Maximum time until all messages are handled: a silent member expires after 120 s, its locks after 60 s."""
OWNED_TWICE_MAX_S = 25.0
"""If a notification is lost, the next rebalance comes after 20 s."""
COMMITTED_S = 120.0
"""Maximum time until all handled messages are committed for good: a lock that was not released lasts 60 s."""
STEADY_S = 11.0
"""Offsets are committed every 5 s, first after 10 s: a member that took over a queue before the last commit of its
previous owner starts at an earlier offset, and has committed that by then."""
LEAST_ACKS = 20
SENDING_MAX_S = 30.0
"""A restarted broker accepts messages again long before."""


@attrs.frozen
class Outcome:
    """The result of a seed."""

    seed: int
    setting: Setting
    acknowledged: int
    handled: int
    repeats: int
    doubled_s: float
    virtual_s: float
    events: list[str]
    faults: list[str]


async def _send(world: World) -> None:
    """Send numbered messages to every queue, and record those that were acknowledged."""
    number = 0
    async with world.client("sender", world.network.host("sender")) as client, client.producer("senders") as producer:
        while world.sending:
            await trio.sleep(world.chance.choice((0.01, 0.05, 0.2, 1.0)))
            for _ in range(world.chance.choice((1, 1, 4, 12))):
                number += 1
                try:
                    queues = await producer.queues(TOPIC)
                    queue = world.chance.choice(sorted(queues))
                    result = await producer.send(triomq.Message(TOPIC, b"%d" % number), queue=queue)
                except triomq.MQError:
                    continue
                place = (result.queue.broker_name, result.queue.queue_id)
                world.ledger.acknowledged[b"%d" % number] = (place, result.queue_offset)


async def _disturb(world: World) -> None:
    chance = world.chance
    async with trio.open_nursery() as nursery:
        for _ in range(chance.randint(*EVENTS)):
            await trio.sleep(chance.uniform(*GAP_S))
            present = world.present
            kinds = ["join"] if len(present) < MEMBERS_MAX else []
            kinds += ["leave", "kill"] if len(present) > 1 else []
            kind = chance.choice(
                [*kinds, "restart broker", "kill broker"] if chance.random() < 0.5 else kinds or ["join"]
            )
            if kind == "join":
                world.join()
                world.note(f"{world.members[-1].name} joins")
            elif kind in ("leave", "kill"):
                member = chance.choice(present)
                world.note(f"{member.name}: {kind}")
                member.leave() if kind == "leave" else member.kill()
            else:
                nursery.start_soon(_restart, world, chance.choice([n for n in world.nodes if n != "namesrv"]), kind)


async def _restart(world: World, name: str, kind: str) -> None:
    node = world.nodes[name]
    if not node.up:
        return
    lasting_s = world.chance.choice((0.05, 1.0, 5.0))
    world.note(f"{kind} {name} for {lasting_s} s")
    if kind == "kill broker":
        node.kill()
    else:
        await node.stop()
    await trio.sleep(lasting_s)
    node.start()


async def _create_topic(world: World) -> None:
    async with world.client("operator", world.network.host("operator")) as client:
        with trio.fail_after(30):
            while True:
                try:
                    await client.admin.create_topic(TOPIC, queues=world.setting.queues)
                    route = await client.admin.route(TOPIC)
                    if len(route.queue_datas or []) == world.setting.brokers:
                        return
                except triomq.MQError:
                    pass
                await trio.sleep(0.1)


async def _wait_all_handled(world: World) -> None:
    """Inject no more faults, and wait until every message is handled and every queue has exactly one owner."""
    wanted = {(name, number) for name in world.nodes if name != "namesrv" for number in range(world.setting.queues)}
    with trio.move_on_after(HANDLED_LIMIT_S):
        while True:
            owners = world.ledger.owners(trio.current_time())
            if not world.ledger.unhandled() and owners.keys() == wanted and all(len(o) == 1 for o in owners.values()):
                return
            await trio.sleep(0.5)
    lost = world.ledger.unhandled()
    if lost:
        places = sorted(world.ledger.acknowledged[key] for key in lost)
        world.faults.append(
            f"lost: {len(lost)} messages were not handled in {HANDLED_LIMIT_S:g} seconds without faults, {places[:5]}"
        )
    owners = world.ledger.owners(trio.current_time())
    for queue in sorted(wanted):
        if len(owners.get(queue, [])) != 1:
            world.faults.append(f"owners: {queue} has {owners.get(queue, [])}")


async def _behind(world: World, client: triomq.Client) -> list[str]:
    """Queues whose committed offset is not their end."""
    progress = await client.groups.progress(GROUP, TOPIC)
    faults = [f"committed: {q} {o}" for q, o in progress.items() if o.consumer_offset != o.broker_offset]
    wanted = world.setting.brokers * world.setting.queues
    return faults if len(progress) == wanted else [f"committed: offsets in {len(progress)} queues of {wanted}"]


async def _leave_all(world: World) -> None:
    """Every remaining member commits all messages in time and leaves; no committed offset decreases."""
    async with world.client("auditor", world.network.host("auditor")) as client:
        with trio.move_on_after(COMMITTED_S):
            checks = 0
            while checks < 2:
                checks = 0 if await _behind(world, client) else checks + 1
                await trio.sleep(STEADY_S)
        for member in world.present:
            member.leave()
            await member.ended.wait()
        world.faults += await _behind(world, client)


async def _run(seed: int) -> Outcome:
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery)
        for name, node in world.nodes.items():
            node.start()
            await trio.sleep(0.2 if name == "namesrv" else 0.05)
        await _create_topic(world)
        async with trio.open_nursery() as traffic:
            traffic.start_soon(_send, world)
            for _ in range(world.chance.randint(1, 3)):
                world.join()
            await _disturb(world)
            # A schedule that kept the broker down for most of its time continues until there is something to audit.
            with trio.move_on_after(SENDING_MAX_S):
                while len(world.ledger.acknowledged) < LEAST_ACKS:  # noqa: ASYNC110 - acknowledgements set no event
                    await trio.sleep(0.5)
            world.sending = False
        world.note("no more faults")
        world.faultless = True
        await _wait_all_handled(world)
        await _leave_all(world)
        virtual_s = trio.current_time()
        nursery.cancel_scope.cancel()
    ledger = world.ledger
    if world.setting.kind == "ordered":
        world.faults += ledger.order_faults() + ledger.overlap_faults()
    doubled_s = ledger.doubled_s()
    if doubled_s > OWNED_TWICE_MAX_S:
        world.faults.append(f"doubled: a queue had two owners for {doubled_s:.1f} s")
    if len(ledger.acknowledged) < LEAST_ACKS:
        world.faults.append(f"idle: only {len(ledger.acknowledged)} messages were acknowledged, which proves nothing")
    return Outcome(
        seed,
        world.setting,
        len(ledger.acknowledged),
        len(ledger.handlings),
        ledger.repeats(),
        doubled_s,
        virtual_s,
        world.events,
        world.faults,
    )


def simulate(seed: int) -> Outcome:
    """Run one seed from its start to the audit."""
    return seeded_run(seed, _run, seed)


def kinds(faults: list[str]) -> Counter[str]:
    """How many faults of each kind."""
    return Counter(fault.split(":")[0] if ":" in fault else "other" for fault in faults)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="show events, and what is logged")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL, format="%(name)s: %(message)s")
    logging.getLogger("trio").setLevel(logging.CRITICAL)
    begin = time.perf_counter()
    found: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    longest_s = 0.0
    for seed in range(options.first, options.first + options.count):
        outcome = simulate(seed)
        found += kinds(outcome.faults)
        longest_s = max(longest_s, outcome.doubled_s)
        totals += Counter(
            schedules=1, events=len(outcome.events), acknowledged=outcome.acknowledged, handled=outcome.handled,
            repeats=outcome.repeats, failed=bool(outcome.faults),
        )  # fmt: skip
        totals[outcome.setting.kind] += 1
        if options.verbose:
            print(*outcome.events, sep="\n")
        if outcome.faults or options.verbose or options.count == 1:
            print(
                f"seed {seed} {outcome.setting}: {outcome.acknowledged} acknowledged, {outcome.handled} handled, "
                f"{outcome.repeats} repeats, {outcome.doubled_s:.2f} s doubled, {outcome.virtual_s:.1f} virtual s, "
                f"{len(outcome.faults)} faults"
            )
            print(*(f"    {fault}" for fault in outcome.faults[:10]), sep="\n")
    print(
        f"{totals['schedules']} schedules ({totals['concurrent']} concurrent, {totals['ordered']} ordered, {totals['lite']} lite), "
        f"{totals['events']} events, {totals['acknowledged']} acknowledged, {totals['handled']} handled, "
        f"{totals['repeats']} repeats: lost {found['lost']}, order violations {found['order']}, doubled {found['doubled']}, "
        f"others {sum(found.values()) - found['lost'] - found['order'] - found['doubled']}; longest double ownership "
        f"{longest_s:.2f} s; {totals['failed']} failed; {time.perf_counter() - begin:.1f} s"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
