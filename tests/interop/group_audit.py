"""What members of a group told of their lives, put into the simulation's ledger and judged: pure, for real processes.

All times are of the one wall clock that the processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from consumer_ledger import Ledger, Queue

ORDERED_TWICE_MAX_S = 5.0
"""The member that locks a queue has it alone, as long as locks live no shorter than the 30 s for which members rely on
them (docs/protocol/consumer.md §9); a Java member looks every 20 ms at what it owns, later when the machine is busy."""
CONCURRENT_TWICE_MAX_S = 25.0
"""Nothing is locked: a notice of the broker may be lost, and then the next round comes after 20 s
(docs/protocol/consumer.md §11)."""


@attrs.frozen
class Life:
    """One member's.

    Attributes:
        name: who.
        events: what it told, in order; see `push_member.py`.
        killed_ms: when it was killed, if it was.
    """

    name: str
    events: Sequence[Mapping[str, Any]]
    killed_ms: int | None = None


def ledger_of(acknowledged: Mapping[str, tuple[Queue, int]], topic: str, lives: Iterable[Life]) -> Ledger:
    """The ledger of a topic.

    Args:
        acknowledged: body -> queue and offset, as the broker told them to the sender.
        topic: whose queues and messages count.
        lives: of all members there ever were.
    """
    ledger = Ledger()
    ledger.acknowledged = {body.encode(): place for body, place in acknowledged.items()}
    for life in lives:
        _note_handlings(ledger, topic, life)
        _note_ownings(ledger, topic, life)
    return ledger


def _note_handlings(ledger: Ledger, topic: str, life: Life) -> None:
    for event in life.events:
        if event["event"] == "message" and event["topic"] == topic:
            place = (event["broker"], event["queue"]), event["offset"]
            handling = ledger.begin(life.name, *place, event["body"].encode(), event["begun"] / 1000)
            handling.end_s, handling.done = event["time"] / 1000, event["success"]


def _note_ownings(ledger: Ledger, topic: str, life: Life) -> None:
    owned: set[Queue] = set()
    for event in life.events:
        now_s = event["time"] / 1000
        if event["event"] == "stopping":
            # It gives everything back from now on; what it handles meanwhile is judged by the handlings.
            ledger.disown(life.name, now_s)
            break
        if event["event"] == "queues":
            parts = [name.rsplit("@", 2) for name in event["queues"]]
            found = {(broker, int(number)) for name, broker, number in parts if name == topic}
            for queue in owned - found:
                ledger.disown(life.name, now_s, queue)
            for queue in found - owned:
                ledger.own(life.name, queue, now_s)
            owned = found
    if life.killed_ms is not None:
        ledger.disown(life.name, life.killed_ms / 1000)


def audit(ledger: Ledger, *, ordered: bool) -> list[str]:
    """Everything that is wrong."""
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
