"""Checks the events that members of a group report, by the simulation's ledger. Pure, for real processes.

All times are of the one wall clock that the processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from consumer_ledger import Ledger, Queue

ORDERED_TWICE_MAX_S = 5.0
"""The member that locks a queue has it alone, as long as locks live no shorter than the 30 s for which members rely on
them (docs/protocol/consumer.md §9); a Java member checks every 20 ms which queues it owns, later on a loaded
machine."""
CONCURRENT_TWICE_MAX_S = 25.0
"""Nothing is locked: if a notification of the broker is lost, the next rebalance comes after 20 s
(docs/protocol/consumer.md §11)."""


@attrs.frozen
class MemberRun:
    """One run of one member.

    Attributes:
        name: the member's name.
        events: what it reported, in order; see `push_member.py`.
        killed_ms: when it was killed, if it was.
    """

    name: str
    events: Sequence[Mapping[str, Any]]
    killed_ms: int | None = None


def ledger_of(acknowledged: Mapping[str, tuple[Queue, int]], topic: str, members: Iterable[MemberRun]) -> Ledger:
    """The ledger of a topic.

    Args:
        acknowledged: body -> queue and offset, as the broker answered them to the sender.
        topic: whose queues and messages count.
        members: all members that ever ran.
    """
    ledger = Ledger()
    ledger.acknowledged = {body.encode(): place for body, place in acknowledged.items()}
    for member in members:
        _record_handlings(ledger, topic, member)
        _record_ownings(ledger, topic, member)
    return ledger


def _record_handlings(ledger: Ledger, topic: str, member: MemberRun) -> None:
    for event in member.events:
        if event["event"] == "message" and event["topic"] == topic:
            place = (event["broker"], event["queue"]), event["offset"]
            handling = ledger.begin(member.name, *place, event["body"].encode(), event["begun"] / 1000)
            handling.end_s, handling.done = event["time"] / 1000, event["success"]


def _record_ownings(ledger: Ledger, topic: str, member: MemberRun) -> None:
    owned: set[Queue] = set()
    for event in member.events:
        now_s = event["time"] / 1000
        if event["event"] == "stopping":
            # It releases its queues from now on; what it handles meanwhile is checked as handlings.
            ledger.disown(member.name, now_s)
            break
        if event["event"] == "queues":
            parts = [name.rsplit("@", 2) for name in event["queues"]]
            found = {(broker, int(number)) for name, broker, number in parts if name == topic}
            for queue in owned - found:
                ledger.disown(member.name, now_s, queue)
            for queue in found - owned:
                ledger.own(member.name, queue, now_s)
            owned = found
    if member.killed_ms is not None:
        ledger.disown(member.name, member.killed_ms / 1000)


def audit(ledger: Ledger, *, ordered: bool) -> list[str]:
    """All faults of a group's run."""
    faults = []
    lost = sorted(ledger.acknowledged[key] for key in ledger.unhandled())
    if lost:
        faults.append(f"lost: {len(lost)} of {len(ledger.acknowledged)} messages were not handled, such as {lost[:5]}")
    faults += [
        f"place: {each.member} found {each.key!r} in {each.queue} at {each.offset}"
        for each in ledger.handlings
        if ledger.acknowledged.get(each.key, (each.queue, each.offset)) != (each.queue, each.offset)
    ]
    if ordered:
        faults += ledger.order_faults() + ledger.overlap_faults()
    doubled_s, most_s = ledger.doubled_s(), ORDERED_TWICE_MAX_S if ordered else CONCURRENT_TWICE_MAX_S
    if doubled_s > most_s:
        faults.append(f"doubled: a queue had two owners for {doubled_s:.1f} s")
    return faults
