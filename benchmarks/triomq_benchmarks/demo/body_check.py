"""Compares received with acknowledged messages, by a digest of the body for every place in every queue.

A place is a queue and an offset in it. Eight bytes per message are kept, so that a few hundred thousand cost a few
megabytes, and missing, changed, duplicated and misplaced bodies are found.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

import attrs

_NOTHING = 0


def digest(body: bytes | memoryview) -> int:
    """Eight bytes that distinguish bodies; never the number that marks an empty place."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "big") or 1


@attrs.frozen
class Comparison:
    """The comparison of sent and received messages.

    Attributes:
        acknowledged: number of messages with an acknowledgement.
        received: number of messages read back.
        missing: acknowledged, but not received.
        differing: received with a body other than the one acknowledged for that place.
        repeated: received more than once from the same place.
        unknown: received from places that were never acknowledged; a retried send may leave one.
    """

    acknowledged: int
    received: int
    missing: int
    differing: int
    repeated: int
    unknown: int

    @property
    def clean(self) -> bool:
        """Whether every acknowledged message was received once and unaltered, and nothing else."""
        return not (self.missing or self.differing or self.repeated or self.unknown)


class BodyCheck:
    """Two columns, acknowledged and received, compared place by place."""

    def __init__(self) -> None:
        self._acknowledged: dict[object, array[int]] = {}
        self._received: dict[object, array[int]] = {}
        self._repeated = 0
        self._collisions = 0

    def acknowledge(self, queue: object, offset: int, body_digest: int) -> None:
        """Record that a send of this body was acknowledged with this place."""
        if not _put(self._acknowledged, queue, offset, body_digest):
            self._collisions += 1

    def receive(self, queue: object, offset: int, body_digest: int) -> None:
        """Record that this body was received from this place."""
        if not _put(self._received, queue, offset, body_digest):
            self._repeated += 1

    def ends(self) -> dict[object, int]:
        """The offset after the last acknowledged message, by queue."""
        return {queue: len(column) for queue, column in self._acknowledged.items()}

    def compare(self) -> Comparison:
        """Compare the columns. An acknowledgement for a place that was given away already counts as a missing
        message."""
        missing, differing, unknown, acknowledged, received = self._collisions, 0, 0, self._collisions, 0
        for sent, came in self._places():
            acknowledged += sent != _NOTHING
            received += came != _NOTHING
            if sent and not came:
                missing += 1
            elif came and not sent:
                unknown += 1
            elif sent != came:
                differing += 1
        return Comparison(acknowledged, received + self._repeated, missing, differing, self._repeated, unknown)

    def _places(self) -> Iterator[tuple[int, int]]:
        nothing: array[int] = array("Q")
        for queue in self._acknowledged.keys() | self._received.keys():
            sent, came = self._acknowledged.get(queue, nothing), self._received.get(queue, nothing)
            both = min(len(sent), len(came))
            yield from zip(sent[:both], came[:both], strict=True)
            yield from ((value, _NOTHING) for value in sent[both:])
            yield from ((_NOTHING, value) for value in came[both:])


def _put(columns: dict[object, array[int]], queue: object, offset: int, value: int) -> bool:
    """Write into a place; False if something stood there already."""
    column = columns.get(queue)
    if column is None:
        column = columns[queue] = array("Q")
    if offset >= len(column):
        column.frombytes(bytes(8 * (offset + 1 - len(column))))
    elif column[offset] != _NOTHING:
        return False
    column[offset] = value
    return True
