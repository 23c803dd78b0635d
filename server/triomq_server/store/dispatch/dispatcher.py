"""Dispatch: makes a record's queue entry, index entries and arrival (docs/protocol/store.md §12).

Own appends arrive as objects; the commit log has already written their queue entries. Bytes from a master are read back
by `follow`. Recovery passes the records it finds to `dispatch`. Index entries and arrivals are collected and handled in
batches, so that no answer waits for them. Answers to `ReputMessageService` and the dispatchers of `DefaultMessageStore`.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import NoReturn

import trio

from triomq_protocol.filters.tags import tags_code
from triomq_protocol.java_text import natural_number
from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.properties import get_property
from triomq_protocol.record.batch import Element
from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_protocol.record.layout import TRANSACTION_ROLLBACK
from triomq_server.compiled import USED as COMPILED
from triomq_server.store.commitlog import CommitLog, enters_queue
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.store.dispatch.key_hashes import index_hashes
from triomq_server.store.dispatch.replay import KEYS_MARK, TAGS_MARK, UNIQUE_KEY_MARK, Key, Replay
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.files.segments import Segment
from triomq_server.store.index import HASHED_KEY, Index
from triomq_server.store.placement import put_entry
from triomq_server.store.queue_table import ConsumeQueues, UnusableTopic
from triomq_server.store.values import AppendResult, Arrival, NewBatch, NewRecord

if COMPILED:
    from triomq_server.compiled import replay as compiled_replay

_log = logging.getLogger(__name__)

DELAY_MARK = "DELAY\x01"

_INDEXED_AT_ONCE = 1 << 12
"""Keys that are indexed before other tasks have their turn, however many wait: long ones take 10 ms to hash, and their
senders wait when too many do."""
_INDEXED_TOGETHER = 1 << 6
"""Hashed keys that may be left waiting at the end of a receive: a key that is indexed alone costs ten times as much as
one in a batch."""
_INDEX_WAIT_S = 0.01
"""How long fewer wait."""
_INT64_MOST = (1 << 63) - 1
_FOLLOWED_AT_ONCE = 1 << 30
"""Calls of `follow` for no more than this end early where records have many keys; those for more want all."""
_FOLLOWED_PART = 1 << 16
"""Bytes of a master's records after which their keys are counted."""
MANY_KEYS_CHARACTERS = 256
"""Longer keys of a message are read in portions: there may be 16,000 of them, and many such messages in a receive."""
_FAR_BEHIND = 1 << 18
"""Keys of usual messages that may wait before their senders have to wait too."""
_CODES_AT_ONCE = 32
"""Tags codes of one queue that are announced one by one; beyond that, one arrival stands for any tags code."""


def property_of(text: str, mark: str) -> str | None:
    """The value behind one of the `..._MARK`s in a property string: `get_property` for names known here."""
    at = text.rfind(mark)
    if at < 0:
        return None
    start = at + len(mark)
    if (at and text[at - 1] != "\x02") or text[start : start + 1] in ("", "\x02"):
        return get_property(text, mark[:-1])  # part of another name or value, or empty: search property by property
    end = text.find("\x02", start)
    return text[start:] if end < 0 else text[start:end]


class Dispatcher:
    """Dispatches what is appended at the log's end.

    Attributes:
        dispatched_offset: everything below has its queue entry.
        arrival_listeners, append_listeners: called by `notify`.
        watched: the queues whose arrivals the listeners want; None: all.
        pending: own appends that have not been indexed and announced yet.
        index_full: called when the disk has no space for the index.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
        delay_levels_ms: list[int],
        *,
        exact_repeats: bool,
        checkpoints_early: bool = False,
    ) -> None:
        self._commitlog = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._delays = delay_levels_ms
        self._exact_repeats = exact_repeats
        self._checkpoints_early = checkpoints_early
        self.dispatched_offset = 0
        self.arrival_listeners: list[Callable[[Arrival], None]] = []
        self.watched: Collection[tuple[str, int]] | None = None
        self.append_listeners: list[Callable[[int], None]] = []
        self.index_full: Callable[[], None] = lambda: None
        self.pending: list[tuple[NewRecord, AppendResult, int]] = []
        self._arrivals: list[Arrival] = []
        # In log order: first the hashed keys, then those not hashed yet, since hashing many at once costs less.
        self._hashes = bytearray()  # packed as HASHED_KEY
        self._keys: list[Key] = []
        # Behind those: the keys of large batches and long ones, which are read in portions, and whatever came later or
        # behind many keys that are not hashed.
        self._behind: deque[tuple[Iterator[Key] | bytearray, int]] = deque()  # and each one's keys of usual messages
        self._behind_taken = 0  # how many of those have been read to their end
        self._usual_behind = 0  # the keys of usual messages of all
        self._more_to_index = trio.Event()
        self._replay = Replay(queues.table, frozenset({SCHEDULE_TOPIC}), index=index is not None)
        self._announced_offset = 0
        self._dispatched_timestamp = self._dispatched_until = 0
        """The store time of the last record that has its queue entry, and where it ends."""
        self._reported_offset = -1

    # ---- own appends

    def delay_ms(self, topic: str, level: int) -> int:
        """The delay of a level, or of the highest one there is, if the record belongs to the schedule topic, else -1."""
        if topic != SCHEDULE_TOPIC or level <= 0:
            return -1
        return self._delays[min(level, len(self._delays)) - 1]

    def batch_appended(self, b: NewBatch, result: AppendResult, elements: list[Element]) -> None:
        """Collect a stored batch's index entries and arrivals."""
        self.collect()  # index entries are kept in log order
        self._dispatched_timestamp, self._dispatched_until = result.store_timestamp, result.end_offset
        topic, timestamp = b.topic, result.store_timestamp
        if self._index is not None:
            self._add_keys(list(_keys_of_batch(topic, timestamp, result, elements)))
        if self.is_watched(topic, b.queue_id):
            following = enumerate(elements, result.queue_offset + 1)
            self._arrivals += [Arrival(topic, b.queue_id, n, element[5], timestamp) for n, element in following]

    def large_batch_appended(
        self, b: NewBatch, result: AppendResult, elements: list[Element], last_of_code: dict[int, int]
    ) -> None:
        """`batch_appended` for any number of elements: their keys are read later, in portions."""
        self.collect()
        self._dispatched_timestamp, self._dispatched_until = result.store_timestamp, result.end_offset
        topic, timestamp = b.topic, result.store_timestamp
        if self._index is not None:
            self._put_behind(_keys_of_batch(topic, timestamp, result, elements), 0)
        if self.is_watched(topic, b.queue_id):
            following = result.queue_offset + 1
            codes = last_of_code.items()
            if len(codes) > _CODES_AT_ONCE:
                self._arrivals.append(Arrival(topic, b.queue_id, result.queue_offset + len(elements), None, timestamp))
            else:
                self._arrivals += [Arrival(topic, b.queue_id, following + n, code, timestamp) for code, n in codes]

    def run_appended(self, timestamp: int, hashes: bytearray, arrivals: list[Arrival]) -> None:
        """Take over the index entries and arrivals of records that were encoded elsewhere."""
        self.collect()  # index entries are kept in log order
        self._dispatched_timestamp, self._dispatched_until = timestamp, self._commitlog.max_offset
        self._add_hashes(hashes)
        self._arrivals += arrivals

    def is_watched(self, topic: str, queue_id: int) -> bool:
        """Whether the arrivals of a queue are wanted."""
        if not self.arrival_listeners:
            return False
        return self.watched is None or (topic, queue_id) in self.watched

    def _collect_keys(self, topic: str, unique_key: str | None, keys: str | None, offset: int, timestamp: int) -> None:
        if unique_key:
            self._keys.append((topic, unique_key, offset, timestamp))
        if keys:
            self._keys += [(topic, key, offset, timestamp) for key in keys.split(" ") if key]

    def _add_keys(self, keys: list[Key]) -> None:
        """Add keys of own appends after all waiting keys."""
        if self._behind and keys:
            self._put_behind(iter(keys), len(keys))
        else:
            self._keys += keys

    def _add_hashes(self, hashes: bytearray) -> None:
        """Add hashes of keys after all waiting keys."""
        if self._behind or len(self._keys) > _INDEXED_AT_ONCE:
            self._put_behind(hashes, len(hashes) // HASHED_KEY.size)
        else:
            self._hash_keys(len(self._keys))
            self._hashes += hashes

    def _put_behind(self, source: Iterator[Key] | bytearray, usual_keys: int) -> None:
        self._behind.append((source, usual_keys))
        self._usual_behind += usual_keys

    def _drop_first_behind(self) -> None:
        _, usual_keys = self._behind.popleft()
        self._behind_taken += 1
        self._usual_behind -= usual_keys

    def _hash_keys(self, most: int) -> None:
        """Hash this many of the waiting keys."""
        if most and self._keys:
            self._hashes += index_hashes(self._keys[:most])
            del self._keys[:most]

    def _take_waiting(self, most: int) -> bool:
        """Have about this many hashes ready, or all; returns whether there are any."""
        while (ready := self._hashes_ready) < most and (self._keys or self._behind):
            if self._keys:
                self._hash_keys(most - ready)
            elif isinstance(first := self._behind[0][0], bytearray):
                self._hashes += first
                self._drop_first_behind()
            else:
                self._keys += islice(first, most - ready)
                if not self._keys:
                    self._drop_first_behind()
        return bool(self._hashes)

    def collect(self) -> None:
        """Add the keys of all appends so far to the waiting keys, and their arrivals to those to announce."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        if self._index is not None:
            self._collect_keys_of(pending)
        watched = self.watched
        if self.arrival_listeners and (watched is None or watched):
            self._arrivals += [
                Arrival(r.topic, r.queue_id, result.queue_offset + 1, code, result.store_timestamp)
                for r, result, code in pending
                if enters_queue(r.sys_flag) and (watched is None or (r.topic, r.queue_id) in watched)
            ]
        last = pending[-1][1]
        self._dispatched_timestamp, self._dispatched_until = last.store_timestamp, last.end_offset

    def _collect_keys_of(self, pending: list[tuple[NewRecord, AppendResult, int]]) -> None:
        found: list[Key] = []
        add_key = found.append
        for r, result, _ in pending:
            if r.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
                continue
            if r.uniq_key:
                add_key((r.topic, r.uniq_key, result.physical_offset, result.store_timestamp))
            keys = r.keys
            if not keys:
                continue
            if len(keys) > MANY_KEYS_CHARACTERS:
                self._add_keys(found)
                found = []
                add_key = found.append
                self._put_behind(_split(r.topic, keys, result.physical_offset, result.store_timestamp), 0)
                continue
            for key in keys.split(" ") if " " in keys else (keys,):
                if key:
                    add_key((r.topic, key, result.physical_offset, result.store_timestamp))
        self._add_keys(found)

    # ---- records read back

    def follow(self, most_bytes: int) -> bool:
        """Dispatch records that a master has sent: all that are complete, or about `most_bytes`. OSError if full.

        Returns:
            Whether there may be more to do.
        """
        log = self._commitlog
        if self.dispatched_offset < log.min_offset:
            self.dispatched_offset = log.min_offset  # expired before it was dispatched
        until = self.dispatched_offset + most_bytes
        most_keys = self._waiting_keys + (_INDEXED_AT_ONCE if most_bytes <= _FOLLOWED_AT_ONCE else sys.maxsize)
        segment = log.segments.find(self.dispatched_offset)
        while segment is not None and self.dispatched_offset < log.max_offset:
            if self.dispatched_offset >= until or self._waiting_keys >= most_keys:
                return True
            at = self.dispatched_offset - segment.base
            end = min(log.max_offset - segment.base, segment.size)
            part = min(until, self.dispatched_offset + _FOLLOWED_PART)
            if self._follow_run(segment, at, end, part - segment.base):
                if self.dispatched_offset == segment.end:
                    segment = log.segments.find(self.dispatched_offset)
                continue
            record = read_record(segment.buffer, at, end, self.dispatched_offset, check_crc=False)
            if isinstance(record, LogRecord):
                self.dispatch(record, fill=True, announce=True)
                self._record_copied_time(record.store_timestamp)
                self.dispatched_offset += record.size
            elif record is Finding.BLANK:
                if segment.end > log.max_offset:
                    return False  # the mark has come, the rest of the filler has not
                self.dispatched_offset = segment.end
            else:
                self._report(record)
                return False
            if self.dispatched_offset == segment.end:
                segment = log.segments.find(self.dispatched_offset)
        return False

    def _follow_run(self, segment: Segment, at: int, end: int, until: int) -> bool:
        """Dispatch the ordinary records that come next; false if the next one is not ordinary."""
        if self._index is not None and not self.index_is_behind and self.dispatched_offset <= self._index.end_offset:
            return False  # after a crash the index may have these already; `dispatch` checks that
        watched = self.watched
        arrivals = self._arrivals if self.arrival_listeners and (watched is None or watched) else None
        behind = at
        if COMPILED:
            hashes = None if self._index is None else bytearray()
            behind, store_timestamp = compiled_replay.run(
                segment.buffer, segment.base, at, end, until, self._queues.table, SCHEDULE_TOPIC, hashes, arrivals, watched,
                Arrival,
            )  # fmt: skip
            if hashes:
                self._add_hashes(hashes)
        if behind == at:
            behind, store_timestamp = self._replay.run(
                segment.buffer, segment.base, at, end, self._keys, arrivals, watched, until
            )
        if behind == at:
            return False
        self.dispatched_offset = segment.base + behind
        self._dispatched_timestamp, self._dispatched_until = store_timestamp, self.dispatched_offset
        self._record_copied_time(store_timestamp)
        return True

    def _record_copied_time(self, store_timestamp: int) -> None:
        """Take over a copied record's store time: the next flush writes it to the checkpoint, as for an own append.

        RocketMQ 4.9 does so before anything is on disk.
        """
        if store_timestamp < self._commitlog.store_timestamp:
            self._checkpoint.went_back(store_timestamp)
        self._commitlog.store_timestamp = store_timestamp
        if self._checkpoints_early:
            self._checkpoint.physic_timestamp = store_timestamp

    def _report(self, finding: Finding) -> None:
        if finding is Finding.INCOMPLETE or self._reported_offset == self.dispatched_offset:
            return
        if finding is Finding.NOTHING and self._commitlog.max_offset - self.dispatched_offset < 8:
            return
        self._reported_offset = self.dispatched_offset
        _log.error(
            "the log holds %s at offset %d: nothing behind it can be served", finding.value, self.dispatched_offset
        )

    def next_to_dispatch(self) -> LogRecord | Finding | None:
        """What the log holds behind the last dispatched record; None if it ends there."""
        log, at = self._commitlog, self.dispatched_offset
        segment = log.segments.find(at)
        if segment is None or at >= log.max_offset:
            return None
        end = min(log.max_offset - segment.base, segment.size)
        return read_record(segment.buffer, at - segment.base, end, at, check_crc=False)

    def foreign_bytes(self) -> Finding | None:
        """Describes what follows the last dispatched record; None if it is, or may still become, a whole record or a blank."""
        found = self.next_to_dispatch()
        if isinstance(found, LogRecord) or found in (Finding.BLANK, Finding.INCOMPLETE):
            return None
        return found

    def restart_at(self, end: int) -> None:
        """Forget everything after `end`, at which the log has been truncated."""
        self.dispatched_offset = end
        self._dispatched_timestamp = min(self._dispatched_timestamp, self._commitlog.store_timestamp)
        self._dispatched_until = min(self._dispatched_until, end)
        self._take_waiting(sys.maxsize)
        kept = [key for key in HASHED_KEY.iter_unpack(self._hashes) if key[1] < end]
        self._hashes = bytearray(b"".join([HASHED_KEY.pack(*key) for key in kept]))
        self._arrivals.clear()
        self._announced_offset = end

    def dispatch(self, record: LogRecord, *, fill: bool, announce: bool = False) -> None:
        """Give one record its queue entry and its index entries, unless it has them. QueueGap, OSError."""
        text = str(record.properties, "utf-8", "replace")
        queue = self._queue_of(record) if enters_queue(record.sys_flag) else None
        if queue is not None:
            code = self._tags_code(record, text)
            if put_entry(queue, record.offset, record.size, code, record.queue_offset, fill=fill) and announce:
                self._arrivals.append(
                    Arrival(record.topic, record.queue_id, record.queue_offset + 1, code, record.store_timestamp)
                )
            self._dispatched_timestamp, self._dispatched_until = record.store_timestamp, record.offset + record.size
        self.index_record(record, text)

    def skipped(self, store_timestamp: int, until: int) -> None:
        """Records up to one of this store time, which ends at this log offset, have been found to lack nothing."""
        self._dispatched_timestamp, self._dispatched_until = store_timestamp, until

    def _queue_of(self, record: LogRecord) -> ConsumeQueue | None:
        """The record's queue; None if a master has accepted a topic that cannot have one here."""
        try:
            return self._queues.obtain(record.topic, record.queue_id)
        except UnusableTopic as error:
            _log.error("the record at log offset %d gets no queue: %s", record.offset, error)
            return None

    def tags_code(self, record: LogRecord) -> int:
        """The tags code that a record's entry has."""
        return self._tags_code(record, str(record.properties, "utf-8", "replace"))

    def entry_repaired(self, queue: ConsumeQueue, number: int, code: int) -> None:
        """Announce an entry that readers could not be given before."""
        self._arrivals.append(Arrival(queue.topic, queue.queue_id, number + 1, code, self._commitlog.store_timestamp))
        self.notify()

    def _tags_code(self, record: LogRecord, text: str) -> int:
        if record.topic == SCHEDULE_TOPIC:
            level = property_of(text, DELAY_MARK)
            number = natural_number(level, 32) if level else None
            delay = self.delay_ms(record.topic, number) if number is not None else -1
            if delay >= 0:
                return min(record.store_timestamp + delay, _INT64_MOST)  # the checksum does not cover the store time
        return tags_code(property_of(text, TAGS_MARK))

    def index_record(self, record: LogRecord, text: str | None = None) -> None:
        """Index one record that was read back, unless it is in the index already."""
        index = self._index
        if index is None or record.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
            return
        if record.offset < self._indexed_until(index):
            return
        is_first = not self.index_is_behind
        if text is None:
            text = str(record.properties, "utf-8", "replace")
        unique_key, keys = property_of(text, UNIQUE_KEY_MARK), property_of(text, KEYS_MARK)
        self._collect_keys(record.topic, unique_key, keys, record.offset, record.store_timestamp)
        if record.offset == index.end_offset and index.files and is_first and self._exact_repeats:
            # The index may hold some keys of the last record before a crash, in the order in which they come here.
            del self._keys[: index.entries_of_last_record()]

    # ---- index and arrivals

    def _indexed_until(self, index: Index) -> int:
        """The start of the last record whose keys were collected, or the end of the index."""
        if self._keys:
            return self._keys[-1][2]
        if not self._hashes:
            return index.end_offset
        _, offset, _ = HASHED_KEY.unpack_from(self._hashes, len(self._hashes) - HASHED_KEY.size)
        return int(offset)

    def update_index(self) -> None:
        """Write all collected keys to the index."""
        while self.index_some() and self.index_is_behind:
            pass

    def index_some(self) -> bool:
        """Write `_INDEXED_AT_ONCE` of the collected keys, or all, to the index; false if it has no space for them."""
        self.collect()
        if self._index is None:
            self._take_waiting(sys.maxsize)
            self._hashes.clear()
        elif self._take_waiting(_INDEXED_AT_ONCE):
            entries = self._hashes[: _INDEXED_AT_ONCE * HASHED_KEY.size]
            done = self._index.add(entries) * HASHED_KEY.size
            del self._hashes[:done]
            if done < len(entries):
                self.index_full()
                return False
        # Only now, so that after a crash recovery begins no later than the first record that has not been indexed.
        if self._dispatched_timestamp and not self.index_is_behind:
            self._checkpoint.logics_timestamp = self._dispatched_timestamp
            self._checkpoint.logics_offset = self._dispatched_until
        return True

    async def index_forever(self) -> NoReturn:
        """Task: index the keys that `notify` has left, in turns with other tasks."""
        while True:
            await self._more_to_index.wait()
            self._more_to_index = trio.Event()
            if self._only_few_wait:
                await trio.sleep(_INDEX_WAIT_S)
            while self.index_is_behind and self.index_some():
                await trio.lowlevel.checkpoint()

    @property
    def _only_few_wait(self) -> bool:
        """Whether there are keys that wait to be indexed, hashed all of them and not many."""
        few = 0 < len(self._hashes) < _INDEXED_TOGETHER * HASHED_KEY.size
        return few and not (self.pending or self._keys or self._behind)

    @property
    def is_far_behind(self) -> bool:
        """Whether the keys of ordinary messages have piled up so far that senders should wait.

        Keys of large batches and of messages with many keys do not count: their own senders wait for them.
        """
        return self._waiting_keys > _FAR_BEHIND

    @property
    def _waiting_keys(self) -> int:
        """Keys of usual messages that are not in the index yet."""
        return self._hashes_ready + len(self._keys) + self._usual_behind

    @property
    def _hashes_ready(self) -> int:
        return len(self._hashes) // HASHED_KEY.size

    @property
    def mark(self) -> int:
        """A position for `has_read_to`: everything collected so far."""
        self.collect()
        return self._behind_taken + len(self._behind)

    def has_read_to(self, mark: int) -> bool:
        """Whether the keys of large batches and the long ones that were collected at this mark have been read."""
        return self._behind_taken >= mark

    @property
    def index_is_behind(self) -> bool:
        """Whether entries wait, for their turn or for space on the disk."""
        return bool(self._hashes or self._keys or self._behind)

    def announce_end(self) -> None:
        """Call `append_listeners` with the log's new end, before anything else: a sender may be waiting for a slave."""
        end = self._commitlog.max_offset
        if end != self._announced_offset:
            self._announced_offset = end
            for listener in self.append_listeners:
                listener(end)

    def notify(self, *, few_may_wait: bool = False) -> None:
        """Call `append_listeners`; index some or all of the collected keys; call `arrival_listeners`.

        Args:
            few_may_wait: leave a few hashed keys to `index_forever`, which waits a while for more.
        """
        self.announce_end()
        if (few_may_wait and self._only_few_wait) or (self.index_some() and self.index_is_behind):
            self._more_to_index.set()
        if self._arrivals:
            arrivals, self._arrivals = self._arrivals, []
            if len(arrivals) > _CODES_AT_ONCE:
                arrivals = _last_of_each(arrivals)
            for listener in self.arrival_listeners:
                for arrival in arrivals:
                    listener(arrival)

    def start_at_end(self) -> None:
        """After recovery: count everything in the log as dispatched, without announcing arrivals."""
        self.update_index()
        self._arrivals.clear()
        self._announced_offset = self._commitlog.max_offset


def _split(topic: str, keys: str, offset: int, timestamp: int) -> Iterator[Key]:
    """The keys of one message."""
    for key in keys.split(" "):
        if key:
            yield topic, key, offset, timestamp


def _keys_of_batch(topic: str, timestamp: int, result: AppendResult, elements: list[Element]) -> Iterator[Key]:
    """The keys of a stored batch's elements."""
    for offset, (_, _, _, unique_key, keys, _) in zip(result.physical_offsets, elements, strict=True):
        if unique_key:
            yield topic, unique_key, offset, timestamp
        if keys:
            for key in keys.split(" ") if " " in keys else (keys,):
                if key:
                    yield topic, key, offset, timestamp


def _last_of_each(arrivals: list[Arrival]) -> list[Arrival]:
    """The last arrival of each queue and tags code; for a queue with many codes, one arrival with any code."""
    queues: dict[tuple[str, int], dict[int | None, Arrival]] = {}
    for arrival in arrivals:
        queues.setdefault((arrival.topic, arrival.queue_id), {})[arrival.tags_code] = arrival
    last: list[Arrival] = []
    for codes in queues.values():
        if len(codes) > _CODES_AT_ONCE:
            last.append(max(codes.values(), key=lambda arrival: arrival.next_offset)._replace(tags_code=None))
        else:
            last += codes.values()
    return last
