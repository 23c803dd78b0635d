"""The times of offset resets, so that a merge of offsets can distinguish a reset from an old value.

Between two brokers of a set the larger offset is normally the newer one, since consumers only advance, unless an
operator has reset an offset or deleted the group. So each queue's offset has a second number, the time of its last
reset, and offsets are compared by (time, offset). RocketMQ has no such time: the master's value wins, even if the
master was offline and is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager

from triomq_protocol.errors import BodyError
from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.wire import fastjson
from triomq_server.disk.config_files import ConfigFile, damaged
from triomq_server.wire import to_the_end

FIELD = "triomqResets"
"""Header field of our answers to code 43 that carries the times; RocketMQ's brokers ignore it."""
REMOVED = -1
"""The offset of a queue that a group no longer has."""

REMEMBERED_MS = 7 * 24 * 3_600_000
"""How long the deletion of a group or topic is remembered: a broker that was offline for longer may bring its offsets
back."""

Offsets = dict[str, dict[int, int]]

KEYS_PER_SLICE = 4096
"""Keys of a table that are examined before other tasks get their turn; or queues, if those are examined."""
MERGED_PER_SLICE = 2048
"""Queues of another broker that are compared with ours before others have their turn; a key counts as one more."""
KEY_BYTES = 300
"""Approximate memory of a key besides its text; `QUEUE_BYTES` that of each of its queues."""
QUEUE_BYTES = 64
GONE_SHARE = 4
"""Times of deleted offsets may take a quarter of the memory that offsets may take."""
UNLIMITED_BYTES = 1 << 62


def cost_bytes(key: str, queues: int) -> int:
    """Approximate memory of a key with this many queues in a table of offsets or of times."""
    return KEY_BYTES + len(key) + queues * QUEUE_BYTES


class Snapshot:
    """A table's content at one moment, to be read in slices while the table changes.

    Args:
        table: before the queues of a key change, its owner calls `keep`.
    """

    def __init__(self, table: Offsets) -> None:
        self._table = table
        self._keys = list(table)
        self._kept: Offsets = {}

    def keep(self, key: str) -> None:
        """The queues of this key are about to change or to go."""
        if key not in self._kept:
            self._kept[key] = dict(self._table.get(key, ()))

    def items(self) -> Iterator[tuple[str, dict[int, int]]]:
        """Key and queues as they were; once only."""
        for key in self._keys:
            queues = self._kept.get(key)
            yield key, self._table[key] if queues is None else queues


class Snapshots:
    """The snapshots of one table that are being read."""

    def __init__(self, table: Callable[[], Offsets]) -> None:
        self._table = table
        self._open: list[Snapshot] = []

    def keep(self, key: str) -> None:
        """The queues of this key are about to change or to go."""
        for snapshot in self._open:
            snapshot.keep(key)

    @contextmanager
    def opened(self) -> Iterator[Snapshot]:
        """A snapshot of this moment, which holds for the block."""
        snapshot = Snapshot(self._table())
        self._open.append(snapshot)
        try:
            yield snapshot
        finally:
            self._open.remove(snapshot)


class Resets:
    """The time, in ms, at which each `topic@group` and queue was last set back or removed.

    Args:
        file: `triomq/offsetResets.json`; None keeps the times in memory only.
        clock: wall clock in ms.
        limit_bytes: memory that offsets may take; the times of deleted offsets may take a quarter of it.
    """

    def __init__(
        self, file: ConfigFile | None, clock: Callable[[], int], *, limit_bytes: int = UNLIMITED_BYTES
    ) -> None:
        self._file = file
        self._clock = clock
        self._gone_most_bytes = limit_bytes // GONE_SHARE
        self.table: Offsets = {}
        self.changed = False
        self.snapshots = Snapshots(lambda: self.table)

    def note(self, key: str, queue_id: int) -> None:
        """The queue was set back now; that is later than whatever is known of it, also if another broker's clock is
        ahead."""
        self.snapshots.keep(key)
        queues = self.table.setdefault(key, {})
        queues[queue_id] = max(self._clock(), queues.get(queue_id, 0) + 1)
        self.changed = True

    def time_of(self, key: str, queue_id: int) -> int:
        """When the queue was last set back, 0 if never."""
        queues = self.table.get(key)
        return 0 if queues is None else queues.get(queue_id, 0)

    def merge_into(
        self,
        offsets: Offsets,
        received: Mapping[str, Mapping[int, int]],
        times: Mapping[str, Mapping[int, int]] | None,
        keep: Callable[[str], None],
    ) -> Generator[None, None, None]:
        """Take over the offsets of another broker that are newer than ours. In slices; both sides may change in between.

        Args:
            offsets: ours; changed in place, queue by queue.
            received: theirs.
            times: their resets, from `decode_times`; None if they have none: then the larger offset wins.
            keep: called with a key before its offsets are changed.
        """
        count = 0
        for key, queues in received.items():
            count += 1
            for queue_id, offset in queues.items():
                self._take(offsets, key, queue_id, offset, times, keep)
                count += 1
                if count >= MERGED_PER_SLICE:
                    count = 0
                    yield
        for key, times_of_queues in (times or {}).items():
            count += 1
            known = received.get(key, ())
            for queue_id in times_of_queues:
                if queue_id not in known:
                    self._take(offsets, key, queue_id, REMOVED, times, keep)
                count += 1
                if count >= MERGED_PER_SLICE:
                    count = 0
                    yield

    def _take(
        self,
        offsets: Offsets,
        key: str,
        queue_id: int,
        offset: int,
        theirs: Mapping[str, Mapping[int, int]] | None,
        keep: Callable[[str], None],
    ) -> None:
        own_time = self.time_of(key, queue_id)
        own = offsets.get(key, {}).get(queue_id, REMOVED)
        time = own_time if theirs is None else theirs.get(key, {}).get(queue_id, 0)
        if (time, offset) <= (own_time, own):
            return
        if time != own_time:
            self.snapshots.keep(key)
            self.table.setdefault(key, {})[queue_id] = time
            self.changed = True
        keep(key)
        if offset != REMOVED:
            offsets.setdefault(key, {})[queue_id] = offset
        elif own != REMOVED:
            del offsets[key][queue_id]
            if not offsets[key]:
                del offsets[key]

    def forget_long_gone(self, offsets: Offsets) -> Generator[None, None, None]:
        """Drop the times of queues that have had no offset for REMEMBERED_MS, so that the table does not grow for
        ever; and the oldest times of deleted groups and topics if these take too much memory. In slices."""
        oldest = self._clock() - REMEMBERED_MS
        count = gone_bytes = 0
        gone: list[tuple[int, str]] = []
        for key in list(self.table):
            times, known = self.table.get(key, {}), offsets.get(key, {})
            if times.keys() - known.keys():
                kept = {queue: time for queue, time in times.items() if queue in known or time > oldest}
                self.snapshots.keep(key)
                if kept:
                    self.table[key] = kept
                else:
                    del self.table[key]
                if kept and not known:
                    gone.append((max(kept.values()), key))
                    gone_bytes += cost_bytes(key, len(kept))
            count += 1 + len(times)
            if count > KEYS_PER_SLICE:
                count = 0
                yield
        if gone_bytes > self._gone_most_bytes:
            yield from self._forget_oldest(gone, gone_bytes, offsets)

    def _forget_oldest(
        self, gone: list[tuple[int, str]], gone_bytes: int, offsets: Offsets
    ) -> Generator[None, None, None]:
        gone.sort()
        for number, (time, key) in enumerate(gone, 1):
            if gone_bytes <= self._gone_most_bytes:
                break
            times = self.table.get(key)
            if times is not None and key not in offsets and max(times.values()) == time:
                gone_bytes -= cost_bytes(key, len(times))
                self.snapshots.keep(key)
                del self.table[key]
            if not number % KEYS_PER_SLICE:
                yield

    # -- file and wire

    def encode(self) -> str:
        """FIELD's text."""
        return fastjson.dumps(self.table).decode()

    def text_in_slices(self) -> Generator[None, None, bytes]:
        """The file's text as of now, made in slices."""
        with self.snapshots.opened() as snapshot:
            return (yield from fastjson.number_maps_in_slices("resets", snapshot.items(), pretty=True))

    def load(self) -> None:
        """Read the file; a missing one is not an error. OSError, ConfigFileDamaged."""
        data = self._file.load() if self._file is not None else None
        if self._file is not None and isinstance(data, Mapping):
            try:
                self.table = _table_of(data.get("resets"))
            except (AttributeError, TypeError, ValueError, OverflowError) as error:
                raise damaged(self._file.path, f"does not hold what it should: {error}") from error

    def persist(self) -> None:
        """Write the file if anything has changed; if the disk fails, it logs an error and the next call tries again."""
        if self._file is None or not self.changed:
            return
        try:
            self._file.save(fastjson.dumps_pretty({"resets": self.table}))
        except OSError as error:
            self._file.log_failure(error)
        else:
            self.changed = False

    async def save(self, text: bytes) -> bool:
        """Write the file in the background; returns whether it is written: if the disk fails, it logs an error."""
        if self._file is None:
            return True
        written = False
        try:
            await self._file.save_in_background(text)
            written = True
        except OSError as error:
            self._file.log_failure(error)
        finally:
            if not written:  # also at a cancel
                self.changed = True
        return written


def decode_times(text: str) -> Offsets:
    """Read FIELD. Raises BodyError."""
    try:
        return to_the_end(ConsumerOffsetTable.decode_in_slices(b'{"offsetTable":%b}' % text.encode())).offset_table
    except (BodyError, UnicodeEncodeError) as error:
        raise BodyError(FIELD, "not a table of times by queue") from error


def _table_of(data: object) -> Offsets:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise TypeError("not a table of times by queue")
    return {str(key): {int(queue): int(time) for queue, time in queues.items()} for key, queues in data.items()}
