"""A ledger with injected defects, for both forms of the audit: each must find exactly these."""

from __future__ import annotations

from pathlib import Path

from triomq_benchmarks.audit.checks import Acknowledged, Defect, Findings
from triomq_benchmarks.figures.ledger import folder_sink, open_ledger

TOPIC, BROKER, QUEUES = "Injected", "broker-a", 3
GROUPS = ("first", "second")
PER_WORKER = 40

# Message numbers, by defect; the last is a message that this run has not sent.
DROPPED, DOUBLED, CORRUPTED, GARBLED, FOREIGN = 3, 8, 22, 26, 1 << 45
STORED_TWICE, MISPLACED = 30, (33, 34)
SWAPPED = (14, 1 << 40 | 14)  # neighbours in their queue


def number_of(worker: int, sequence: int) -> int:
    return worker << 40 | sequence


def crc_of(number: int) -> int:
    return number * 2_654_435_761 & 0xFFFF_FFFF


def place_of(worker: int, sequence: int) -> tuple[str, str, int, int]:
    """Workers send alternately; so offsets interleave."""
    return TOPIC, BROKER, sequence % QUEUES, sequence // QUEUES * 2 + worker


def write_ledger(folder: Path, defects: frozenset[Defect], *, last: bool = True) -> None:
    """Two workers send; the second one's consumers get everything, in both groups. Defects are in worker 0's
    messages."""
    sink = folder_sink(folder)
    sent = [(worker, sequence) for sequence in range(PER_WORKER) for worker in (0, 1)]
    with open_ledger(sink, worker=0, workers=2, groups=GROUPS) as ledger:
        for worker, sequence in sent:
            number = number_of(worker, sequence)
            ledger.acknowledged(number, *place_of(worker, sequence), crc_of(number))
    try:
        with open_ledger(sink, worker=1, workers=2, groups=GROUPS) as ledger:
            for group in GROUPS:
                rows = [(number_of(w, s), *place_of(w, s), crc_of(number_of(w, s))) for w, s in sent]
                # Only one group has the defects: a defect of one is none of the other.
                for row in with_defects(rows, defects) if group == "second" else rows:
                    ledger.consumed(*row, group)
            if not last:
                raise InterruptedError
    except InterruptedError:
        pass


def with_defects(rows: list[Acknowledged], defects: frozenset[Defect]) -> list[Acknowledged]:
    rows = list(rows)

    def at(sequence: int) -> int:
        return next(index for index, row in enumerate(rows) if row[0] == sequence)

    if Defect.LOST in defects:
        del rows[at(DROPPED)]
    if Defect.DUPLICATED in defects:
        rows.insert(at(DOUBLED) + 5, rows[at(DOUBLED)])
        number, topic, broker, queue_id, _offset, crc = rows[at(STORED_TWICE)]
        rows.append((number, topic, broker, queue_id, 10_000, crc))
    if Defect.REORDERED in defects:
        one, other = (at(sequence) for sequence in SWAPPED)
        rows[one], rows[other] = rows[other], rows[one]
        one, other = (at(sequence) for sequence in MISPLACED)
        here, there = rows[one], rows[other]
        rows[one] = (there[0], *here[1:5], there[5])
        rows[other] = (here[0], *there[1:5], here[5])
    if Defect.CORRUPT in defects:
        index = at(CORRUPTED)
        rows[index] = (*rows[index][:5], rows[index][5] ^ 1)
        index = at(GARBLED)
        rows[index] = (-1, *rows[index][1:5], 0)
    if Defect.UNEXPECTED in defects:
        rows.append((FOREIGN, TOPIC, BROKER, 0, 20_000, 1))
        rows.append((-1, TOPIC, BROKER, 0, 20_001, 1))
    return rows


EXPECTED: dict[Defect, tuple[int, ...]] = {
    Defect.LOST: (DROPPED,),
    Defect.DUPLICATED: (DOUBLED, STORED_TWICE),
    Defect.REORDERED: (SWAPPED[0], *MISPLACED),
    Defect.CORRUPT: (CORRUPTED, GARBLED),
    Defect.UNEXPECTED: (-1, FOREIGN),
}


def check_exactly(findings: Findings, defects: frozenset[Defect]) -> None:
    """The injected defects, these messages, nothing else."""
    assert (findings.acknowledged, findings.complete) == (2 * PER_WORKER, True)
    for defect in Defect:
        expected = EXPECTED[defect] if defect in defects else ()
        assert tuple(one.number for one in findings.examples[defect]) == expected, defect
        assert findings.counts[defect] == len(expected), defect
        assert all(one.group == "second" for one in findings.examples[defect])
    assert findings.clean == (not defects)
