"""The ledger outside of the cluster, and the audit of what the nodes' files hold against it.

Files are read as bytes, by the protocol's own reader of records: no code of the store under test is used. The
same audit serves simulated disks and real directories.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

import attrs

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_protocol.record.layout import MARK
from triomq_protocol.record.view import RecordView

Place = tuple[int, int]
"""Queue id and queue offset."""

ENTRY = struct.Struct(">qiq")


class Files(Protocol):
    """The part of a disk that the audit reads."""

    def list(self, path: str) -> list[str]:
        """Names in a directory."""

    def read(self, path: str) -> bytes:
        """All bytes of a file."""

    def exists(self, path: str) -> bool:
        """Whether a file exists."""


@attrs.frozen
class Ack:
    """One acknowledged message.

    Attributes:
        place: the position that the broker answered.
        body: what was sent.
        replicated: the broker acknowledged it as replicated to a slave.
        sender: who sent it; one sender sends one message after the other.
    """

    place: Place
    body: bytes
    replicated: bool
    sender: str


@attrs.define
class Ledger:
    """Everything that was acknowledged, in the order in which senders received the answers."""

    acks: list[Ack] = attrs.Factory(list)
    refused: int = 0
    statuses: Counter[str] = attrs.Factory(Counter)

    def acknowledge(
        self, place: Place, bodies: Iterable[bytes], *, status: str, synchronous: bool, sender: str
    ) -> None:
        """A send was answered: `bodies` are stored from `place` on."""
        self.statuses[status] += 1
        queue_id, offset = place
        for index, body in enumerate(bodies):
            self.acks.append(Ack((queue_id, offset + index), body, synchronous and status == "SEND_OK", sender))

    def own_faults(self) -> list[str]:
        """Faults visible without the nodes' files: places assigned twice, a sender's messages out of order."""
        faults: list[str] = []
        seen: set[Place] = set()
        last: dict[tuple[str, int], int] = {}
        for ack in self.acks:
            if ack.place in seen:
                faults.append(f"duplicated: {ack.place} was acknowledged twice")
            seen.add(ack.place)
            line = (ack.sender, ack.place[0])
            if ack.place[1] <= last.get(line, -1):
                faults.append(f"order: {ack.sender} was answered {ack.place} after offset {last[line]}")
            last[line] = ack.place[1]
        return faults


@attrs.frozen
class Contents:
    """What one node's log holds of a topic.

    Attributes:
        bodies: by place.
        faults: gaps, repetitions, and damaged records.
        log: the log's bytes up to its end, by the offset of the file's start.
        end: the log's end.
        last: where the last record begins.
        places: where each message's record begins.
    """

    bodies: Mapping[Place, bytes]
    faults: list[str]
    log: Mapping[int, bytes]
    end: int
    last: int
    places: Mapping[int, Place]


def read_log(files: Files, root: str, topic: str) -> Contents:
    """Walk the commit log of a store directory from its start to its end."""
    bodies: dict[Place, bytes] = {}
    faults: list[str] = []
    log: dict[int, bytes] = {}
    places: dict[int, Place] = {}
    expected: dict[int, int] = defaultdict(int)
    folder = f"{root}/commitlog"
    names = files.list(folder)
    end = last = int(names[0]) if names else 0
    for name in names:
        start = int(name)
        data = files.read(f"{folder}/{name}")
        if start > end:
            if any(data):
                faults.append(f"log: a gap from {end} to {start}")
            break
        records, size, is_end = _read_file(data, start)
        for at, record_topic, place, body in records:
            last = at
            if record_topic == topic:
                if place in bodies:
                    faults.append(f"duplicated: {place} is twice in the log")
                elif place[1] != expected[place[0]]:
                    faults.append(f"order: {place} follows offset {expected[place[0]] - 1}")
                expected[place[0]] = place[1] + 1
                bodies[place] = body
                places[at] = place
        log[start] = data[:size]
        end = start + size
        if not is_end:
            faults.append(f"log: bytes that are not a record at {end}")
    return Contents(bodies, faults, log, end, last, places)


@lru_cache(maxsize=64)
def _read_file(data: bytes, start: int) -> tuple[list[tuple[int, str, Place, bytes]], int, bool]:
    """The records of a log file, where they end, and whether nothing follows. Nodes of a cluster have equal files."""
    records = []
    at = 0
    while at < len(data):
        found = read_record(data, at, len(data), start + at, check_crc=True)
        if isinstance(found, Finding) and found is not Finding.BLANK:
            break
        if isinstance(found, LogRecord):
            record = RecordView(data, at)
            records.append((start + at, record.topic, (record.queue_id, record.queue_offset), record.body))
        at += MARK.unpack_from(data, at)[0]
    return records, at, not any(data[at:])


def queue_faults(
    files: Files, root: str, topic: str, contents: Contents, *, count: Mapping[int, int] | None = None
) -> list[str]:
    """Compare the consume queues of a store with its log: the same messages at the same offsets.

    Args:
        files: where the store is.
        root: its directory.
        topic: whose queues.
        contents: of its log.
        count: the entries that a queue must have at least, if not one for each message.
    """
    faults: list[str] = []
    messages = Counter(place[0] for place in contents.bodies)
    for queue_id in sorted(messages):
        folder = f"{root}/consumequeue/{topic}/{queue_id}"
        data = b"".join(files.read(f"{folder}/{name}") for name in files.list(folder))
        entries = [entry for entry in ENTRY.iter_unpack(data) if entry[1] > 0]
        most = messages[queue_id]
        if not (most if count is None else count.get(queue_id, 0)) <= len(entries) <= most:
            faults.append(f"queue {queue_id} has {len(entries)} entries, the log {most} messages")
        for offset, (physical, _size, _tag) in enumerate(entries):
            place = contents.places.get(physical)
            if place is None:
                faults.append(f"queue {queue_id} points at {offset} to no record of it at {physical}")
            elif place != (queue_id, offset):
                faults.append(f"queue {queue_id} points at {offset} to another message")
    return faults


def restart_faults(
    files: Files, root: str, topic: str, before: Contents, *, may_be_torn: bool, is_growing: bool
) -> tuple[Contents, list[str]]:
    """What a start has done wrong: it keeps every record up to the first damage, and drops what lies behind.

    Args:
        files, root, topic: the store.
        before: what its log held before the start.
        may_be_torn: the last record may lack its last bytes, and then it is dropped.
        is_growing: a master's bytes may have arrived since the start.

    Returns:
        What the log holds now, and the faults.
    """
    found = read_log(files, root, topic)
    faults = [] if is_growing else list(found.faults)
    kept = before.last if may_be_torn else before.end
    for start, data in before.log.items():
        data = data[: max(0, kept - start)]
        if found.log.get(start, b"")[: len(data)] != data:
            faults.append(f"lost: the log was sound up to {before.end}, and ends at {found.end} after the start")
    surviving = [place for place in before.bodies if place in found.bodies]
    count = Counter(place[0] for place in surviving) if is_growing else None
    return found, faults + queue_faults(files, root, topic, found, count=count)


def missing(acks: Iterable[Ack], holders: Mapping[str, Contents]) -> list[str]:
    """Acknowledged messages that none of these nodes holds at their place."""
    faults = []
    for ack in acks:
        if not any(contents.bodies.get(ack.place) == ack.body for contents in holders.values()):
            there = {name: contents.bodies.get(ack.place, b"nothing")[:12] for name, contents in holders.items()}
            faults.append(f"lost: {ack.body[:12]!r} at {ack.place} is on none of {there}")
    return faults


def differing(one: Contents, other: Contents) -> list[str]:
    """Differences between logs, which must be equal bytes wherever both have any."""
    faults = []
    for start in one.log.keys() & other.log.keys():
        both = min(len(one.log[start]), len(other.log[start]))
        if one.log[start][:both] != other.log[start][:both]:
            faults.append(f"logs differ in the file that starts at {start}")
    return faults
