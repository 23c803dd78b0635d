"""The audit's checks: defects between the acknowledged and the consumed messages.

Pure, and written once: `ledger_tables.py` runs them on the ledger's files on this machine, `spark/audit.py` as a Spark
job. Both cut the ledger in the same two ways. Cut by message number, each message is joined with all its consumptions;
cut by group and queue, consumptions are in the order in which a worker saw them. Places that were acknowledged more than
once are found separately. Findings of pieces are added up.

There are five kinds of defects. With several consumer groups, each of which consumes everything, each group is checked
by itself.

lost: acknowledged, never consumed.
duplicated: consumed again; each time after the first counts. The same place twice is a second delivery, another place a
  message that is stored twice.
corrupt: consumed with a different CRC-32 than it was sent with, or with a head that cannot be read.
reordered: consumed after a message with a higher offset in its queue; or found only at another place than acknowledged.
unexpected: consumed, never acknowledged: of a send whose answer got lost or that asked for none, or of another run; or
  acknowledged at a place that had been acknowledged for another message: the log went back.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple, TypeAlias, cast

import attrs
import msgspec

EXAMPLES_MAX = 10
UNREADABLE = -1
"""The number of a consumed message whose head cannot be read."""

_WORKER_BITS = 40


class Defect(enum.StrEnum):
    """A defect of a message."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    CORRUPT = "corrupt"
    UNEXPECTED = "unexpected"


class Place(NamedTuple):
    """The place of a stored message."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}/{self.queue_id} at {self.queue_offset}"


Acknowledged: TypeAlias = tuple[int, str, str, int, int, int]
"""Number, topic, broker, queue id, queue offset, CRC-32."""

Consumed: TypeAlias = tuple[int, str, str, int, int, int, str]
"""The same, and the group."""

Given: TypeAlias = tuple[str, str, int, int, list[int]]
"""A place that was acknowledged more than once: topic, broker, queue id, queue offset, the messages' numbers."""

Seen: TypeAlias = tuple[int, int, int]
"""One consumption of a queue: worker, queue offset, number."""


@attrs.frozen(order=True)
class Example:
    """One faulty message, for a person to look up.

    Attributes:
        number: the message's number, `worker << 40 | sequence`; -1 if unreadable.
        group: the group of the consumers that noticed.
        place: topic, broker, queue and offset.
        detail: the expected and the found values.
    """

    number: int
    group: str
    place: str
    detail: str

    @property
    def message(self) -> str:
        """The number in readable form."""
        if self.number == UNREADABLE:
            return "unreadable"
        return f"{self.number >> _WORKER_BITS}:{self.number & (1 << _WORKER_BITS) - 1}"


@attrs.frozen(kw_only=True)
class Findings:
    """The findings of an audit; those of parts are added with `+`.

    Attributes:
        acknowledged: number of acknowledged messages.
        consumed: number of consumptions, over all groups.
        counts: number of occurrences of each defect.
        examples: the first ten of each defect, by message number.
        notes: reasons why the ledger itself is incomplete; with any such note, missing messages cannot be determined.
        given_again: how many of the unexpected are acknowledgements of a place that was another message's.
    """

    acknowledged: int = 0
    consumed: int = 0
    counts: Mapping[Defect, int] = attrs.field(factory=lambda: dict.fromkeys(Defect, 0))
    examples: Mapping[Defect, tuple[Example, ...]] = attrs.field(factory=lambda: dict.fromkeys(Defect, ()))
    notes: tuple[str, ...] = ()
    given_again: int = 0

    @property
    def complete(self) -> bool:
        """Whether every worker's ledger is complete."""
        return not self.notes

    @property
    def clean(self) -> bool:
        """Whether each group consumed every acknowledged message once, in order and unaltered, and nothing else."""
        return self.complete and not any(self.counts.values())

    def is_within(self, repeats: float, unanswered: int) -> bool:
        """Whether the only defects are those that at-least-once delivery permits.

        Args:
            repeats: consumptions that may be repetitions: a send with a late answer is repeated.
            unanswered: messages that may exist without acknowledgement: a send that failed for good may have been
                stored.
        """
        counts = self.counts
        broken = any(counts[defect] for defect in (Defect.LOST, Defect.REORDERED, Defect.CORRUPT)) or self.given_again
        within = counts[Defect.DUPLICATED] <= repeats and counts[Defect.UNEXPECTED] <= unanswered
        return self.complete and not broken and within

    def __str__(self) -> str:
        found = ", ".join(f"{self.counts[defect]} {defect}" for defect in Defect if self.counts[defect])
        again = (
            f"{self.given_again} places acknowledged for two messages: the log went back" if self.given_again else ""
        )
        return "; ".join(filter(None, [found, again, *self.notes])) or "nothing"

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            acknowledged=self.acknowledged + other.acknowledged,
            consumed=self.consumed + other.consumed,
            counts={defect: self.counts[defect] + other.counts[defect] for defect in Defect},
            examples={defect: _first((*self.examples[defect], *other.examples[defect])) for defect in Defect},
            notes=(*self.notes, *(note for note in other.notes if note not in self.notes)),
            given_again=self.given_again + other.given_again,
        )

    def as_dict(self) -> dict[str, object]:
        """Plain data for `audit.json`."""
        return {
            "clean": self.clean,
            "complete": self.complete,
            "acknowledged": self.acknowledged,
            "consumed": self.consumed,
            "counts": {defect.value: self.counts[defect] for defect in Defect},
            "examples": {
                defect.value: [{"message": one.message, **attrs.asdict(one)} for one in self.examples[defect]]
                for defect in Defect
            },
            "notes": list(self.notes),
            "given_again": self.given_again,
        }

    def encode(self) -> bytes:
        """Encode the findings into one value, to pass between processes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Findings:
        """Decode the output of `encode`."""
        return msgspec.msgpack.decode(data, type=cls)


def _first(examples: Iterable[Example]) -> tuple[Example, ...]:
    return tuple(nsmallest(EXAMPLES_MAX, examples))


class _Defects:
    """Counts defects, and keeps only the examples that are needed."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Defect, 0)
        self.examples: dict[Defect, list[Example]] = {defect: [] for defect in Defect}

    def add(self, defect: Defect, number: int, group: str, place: Place, detail: str, times: int = 1) -> None:
        self.counts[defect] += times
        kept = self.examples[defect]
        kept.append(Example(number, group, str(place), detail))
        if len(kept) > 100 * EXAMPLES_MAX:
            kept[:] = _first(kept)

    def findings(self, acknowledged: int, consumed: int) -> Findings:
        examples = {defect: _first(kept) for defect, kept in self.examples.items()}
        return Findings(acknowledged=acknowledged, consumed=consumed, counts=self.counts, examples=examples)


def check_messages(
    acknowledged: Iterable[Acknowledged], consumed: Iterable[Consumed], groups: Sequence[str]
) -> Findings:
    """Check some messages, each with all its consumptions.

    Args:
        acknowledged: acknowledgements of these messages.
        consumed: consumptions of these messages, by any group. One with an unreadable head has the number of the
            message that was acknowledged for its place, or -1 if there is none.
        groups: groups that must consume everything.
    """
    sent = {row[0]: row for row in acknowledged}
    first: dict[str, dict[int, Acknowledged]] = {group: {} for group in groups}
    again: defaultdict[tuple[str, int], list[Acknowledged]] = defaultdict(list)
    consumptions = 0
    for *row, group in consumed:
        one = cast("Acknowledged", tuple(row))
        consumptions += 1
        if first.setdefault(group, {}).setdefault(one[0], one) is not one:
            again[group, one[0]].append(one)
    defects = _Defects()
    for group, got in first.items():
        for number, one in sent.items():
            came = got.get(number)
            # Nearly always this is the whole check, so it is first.
            if came != one or (group, number) in again:
                _check_message(defects, group, one, [came, *again.get((group, number), ())] if came else [])
        for number in got.keys() - sent.keys():
            why = "is not of this run" if number == UNREADABLE else "was never acknowledged"
            for each in (got[number], *again.get((group, number), ())):
                defects.add(Defect.UNEXPECTED, number, group, _place(each), why)
    return defects.findings(len(sent), consumptions)


def _place(row: Acknowledged) -> Place:
    return Place(*row[1:5])


def _check_message(defects: _Defects, group: str, sent: Acknowledged, came: list[Acknowledged]) -> None:
    number, place, crc = sent[0], _place(sent), sent[5]
    if not came:
        defects.add(Defect.LOST, number, group, place, "acknowledged, never consumed")
        return
    found = Counter(map(_place, came))
    if len(came) > 1:
        detail = ", ".join(f"{times} times from {where}" for where, times in found.items())
        defects.add(Defect.DUPLICATED, number, group, place, f"consumed {detail}", len(came) - 1)
    changed = [each[5] for each in came if each[5] != crc]
    if changed:
        defects.add(Defect.CORRUPT, number, group, place, f"CRC {crc:08x} became {changed[0]:08x}", len(changed))
    if place not in found:
        defects.add(Defect.REORDERED, number, group, place, f"acknowledged there, but found in {_place(came[0])}")


def check_places(given: Iterable[Given]) -> Findings:
    """Report the places that were acknowledged for more than one message; each message after the first counts.

    Args:
        given: places that were acknowledged more than once.
    """
    defects = _Defects()
    for topic, broker, queue_id, queue_offset, numbers in given:
        first, *others = sorted(set(numbers))
        for number in others:
            detail = f"acknowledged there, as message {Example(first, '', '', '').message} was: the log went back"
            defects.add(Defect.UNEXPECTED, number, "", Place(topic, broker, queue_id, queue_offset), detail)
    found = defects.findings(0, 0)
    return attrs.evolve(found, given_again=found.counts[Defect.UNEXPECTED])


def check_order(seen: Iterable[Seen], group: str, topic: str, broker: str, queue_id: int) -> Findings:
    """Check the order in which one group consumed one queue.

    A queue changes its owner when consumers join and leave, and a new owner starts at the last committed offset; so
    each worker's order is checked separately, and an offset that the worker has already seen is a repetition, not
    disorder.

    Args:
        seen: consumptions by worker, each worker's in the order of consumption.
        group: the consumer group.
        topic: the queue's topic.
        broker: the queue's broker.
        queue_id: the queue's id.
    """
    defects = _Defects()
    worker, highest, passed = None, -1, set[int]()
    for by, queue_offset, number in seen:
        if by != worker:
            worker, highest, passed = by, -1, set()
        if queue_offset > highest:
            highest = queue_offset
        elif queue_offset not in passed:
            place = Place(topic, broker, queue_id, queue_offset)
            defects.add(Defect.REORDERED, number, group, place, f"consumed after offset {highest} by worker {by}")
        passed.add(queue_offset)
    return defects.findings(0, 0)
