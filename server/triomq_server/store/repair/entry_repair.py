"""Repairs damaged consume queue entries that a pull has met.

An entry that does not point to its record is not served. Until it is repaired the queue ends there for readers: their
pulls are held, as at a queue's real end. A task searches the log between the entry's sound neighbours for the record
with the entry's number, a piece at a time, and writes the entry again. If there is no such record, the entry becomes a
blank, which readers skip. In both cases an arrival is announced, which resumes held pulls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import NoReturn

import trio

from triomq_protocol.record.check import Finding, LogRecord, claimed_size, read_record
from triomq_server.repeats import Repeats
from triomq_server.store.commitlog import CommitLog, enters_queue
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.entry_checks import entry_fits, number_in
from triomq_server.store.entry_layout import BLANK_SIZE
from triomq_server.store.files.segments import Segment
from triomq_server.store.queue_table import ConsumeQueues
from triomq_server.store.repair.damage import next_sound

_log = logging.getLogger(__name__)

QUEUES_WAITING = 1000
"""More queues are not remembered at once; the next pull reports them again."""
_RECORDS_PER_STEP = 1000
_NEIGHBOURS = 200

Search = Generator[None, None, LogRecord | None]


class EntryRepair:
    """Repairs the entries reported to it, in a task.

    Args:
        log, queues: of the store.
        tags_code: the tags code that the entry of a record has.
        arrived: called with queue, number and tags code of each entry that has been repaired.

    Attributes:
        rebuilt, blanked: how many entries were written again, and for how many there was no record.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        tags_code: Callable[[LogRecord], int],
        arrived: Callable[[ConsumeQueue, int, int], None],
    ) -> None:
        self._commitlog = log
        self._queues = queues
        self._tags_code = tags_code
        self._arrived = arrived
        self._reported: dict[tuple[str, int], int] = {}
        self._wanted = trio.Event()
        self._outcomes = Repeats()
        self.rebuilt = 0
        self.blanked = 0

    def report(self, queue: ConsumeQueue, number: int) -> None:
        """This entry does not point to its record: repair it soon."""
        where = queue.topic, queue.queue_id
        if where in self._reported or len(self._reported) < QUEUES_WAITING:
            self._reported[where] = number
            self._wanted.set()

    async def repair_forever(self) -> NoReturn:
        """Task: repair the reported entries."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._reported:
                where, number = next(iter(self._reported.items()))
                del self._reported[where]
                if (queue := self._queues.get(*where)) is not None:
                    await self._repair(queue, number)
                await trio.lowlevel.checkpoint()

    async def _repair(self, queue: ConsumeQueue, number: int) -> None:
        entry = queue.entry(number)
        if entry is None or self._is_sound(queue, number, entry):
            return
        low, high = self._neighbours(queue, number)
        search = self._search(queue, number, low, high)
        while True:
            try:
                next(search)
            except StopIteration as found:
                record: LogRecord | None = found.value
                break
            except FileNotFoundError:
                return  # the file has expired; a pull that meets the entry again reports it again
            await trio.lowlevel.checkpoint()
        if self._queues.get(queue.topic, queue.queue_id) is not queue or queue.entry(number) != entry:
            return  # removed, expired or cut in the meantime
        if record is not None:
            code = self._tags_code(record)
            queue.rewrite(number, record.offset, record.size, code)
            self.rebuilt += 1
            self._say(queue, number, f"built again from the record at log offset {record.offset}")
        elif self._is_numbered_otherwise(queue, number):
            queue.numbered = False
            code = entry[2]
            self._say(queue, number, "its records carry other numbers than their entries have; served by the entries")
        else:
            code = 0
            queue.rewrite(number, max(low - 1, 0), BLANK_SIZE, 0)
            self.blanked += 1
            self._say(queue, number, "there is no sound record for it in the log; readers skip it")
        self._arrived(queue, number, code)

    def _is_sound(self, queue: ConsumeQueue, number: int, entry: tuple[int, int, int]) -> bool:
        return entry[1] == BLANK_SIZE or entry_fits(self._commitlog, queue, number, entry[0], entry[1])

    def _neighbours(self, queue: ConsumeQueue, number: int) -> tuple[int, int]:
        """Between which log offsets the record must be."""
        low, high = self._commitlog.min_offset, self._commitlog.max_offset
        for n in range(number - 1, max(queue.min_offset, number - _NEIGHBOURS) - 1, -1):
            entry = queue.entry(n)
            if entry is not None and entry[1] != BLANK_SIZE and self._is_sound(queue, n, entry):
                low = entry[0] + entry[1]
                break
        for n in range(number + 1, min(queue.max_offset, number + _NEIGHBOURS)):
            entry = queue.entry(n)
            if entry is not None and entry[1] != BLANK_SIZE and self._is_sound(queue, n, entry):
                high = entry[0]
                break
        return low, high

    def _search(self, queue: ConsumeQueue, number: int, low: int, high: int) -> Search:
        """The record of entry `number` among those between two log offsets; None if it is not there."""
        if not queue.numbered:
            return None
        segments = self._commitlog.segments
        segment, at = segments.find(low), 0
        if segment is not None:
            at = low - segment.base
        seen = 0
        while segment is not None and segment.base + at < high:
            end = min(segment.size, self._commitlog.max_offset - segment.base)
            found = read_record(segment.buffer, at, end, segment.base + at, check_crc=False)
            if isinstance(found, LogRecord):
                if number_in(found, queue) == number and enters_queue(found.sys_flag):
                    return found
                at += found.size
            elif found is Finding.BLANK:
                at = segment.size
            else:
                behind = yield from self._behind_damage(segment, at)
                if behind is None:
                    return None
                segment, at = behind
            if at >= segment.size:
                segment, at = segments.find(segment.end), 0
            seen += 1
            if seen % _RECORDS_PER_STEP == 0:
                yield
        return None

    def _behind_damage(self, segment: Segment, at: int) -> Generator[None, None, tuple[Segment, int] | None]:
        items = self._commitlog.segments.items
        if segment not in items:
            return None
        here = items[items.index(segment) :]
        sound = yield from next_sound(here, 0, at, 0)
        return None if sound is None else (here[sound.index], sound.at)

    def _is_numbered_otherwise(self, queue: ConsumeQueue, number: int) -> bool:
        """Whether a sound record of this queue is at the entry's log offset, and the next one's number differs as much.

        RocketMQ gives a record the queue's next entry, whatever number the record has. If only one record's number
        differs from its entry's, that number is damaged.
        """
        here = self._number_of(queue, number)
        following = self._number_of(queue, number + 1)
        return here is not None and (number + 1 == queue.max_offset or following == here + 1)

    def _number_of(self, queue: ConsumeQueue, number: int) -> int | None:
        """The number that an entry's record has; None without a sound record."""
        offset, size, _ = queue.entry(number) or (-1, 0, 0)
        record = self._commitlog.select(offset, size) if size > 0 else None
        if record is None or claimed_size(record, offset) != size:
            return None
        found = read_record(bytes(record), 0, size, offset, check_crc=True)
        return number_in(found, queue) if isinstance(found, LogRecord) else None

    def _say(self, queue: ConsumeQueue, number: int, outcome: str) -> None:
        """Log it now and then: damage may have hit thousands of entries."""
        if due := self._outcomes.add(str(queue)):
            more = f" ({due[0] - 1} more entries since the last such line)" if due[0] > 1 else ""
            fields = {**queue.log_fields, "offset": number}
            _log.error("%s: entry %d was damaged: %s%s", queue, number, outcome, more, extra=fields)
