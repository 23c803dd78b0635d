"""The committed offset of each consumer group in each queue, and the merge of offsets between the brokers of a set.

`OffsetTable` keeps `consumerOffset.json`, byte for byte as RocketMQ writes it (docs/protocol/store.md §21). It answers
to `ConsumerOffsetManager`; the requests are in `requests.offsets` and `admin.offsets`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress

import trio

from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.wire import fastjson
from triomq_server.broker.tables.offsets.resets import (
    KEYS_PER_SLICE,
    MERGED_PER_SLICE,
    QUEUE_BYTES,
    UNLIMITED_BYTES,
    Resets,
    Snapshots,
    cost_bytes,
    decode_times,
)
from triomq_server.disk.config_files import ConfigFile, damaged
from triomq_server.repeats import Repeats
from triomq_server.wire import to_the_end

_log = logging.getLogger(__name__)

CHANGED_PER_SLICE = 1024
"""Queues whose reset is noted before others have their turn, when a group's offsets are copied or removed; a topic, which
may have many queues, counts as one more."""

MOST_UNEXPECTED = 10_000
"""Offsets of unknown groups, topics or queues: else any client could fill the memory and the file."""

UNKNOWN_OFFSET = -1
"""The result of `OffsetTable.query` for a queue that the group has never committed."""

FULL_REMARK = (
    "the broker keeps no more offsets (consumerOffsetsLimitBytes); an administrator can remove groups that are not used"
)

QueueEnd = Callable[[str, int], int | None]
"""Topic and queue id to the queue offset of the next message there; None if it is not known, see `queue_end`."""


def queue_end(end: int, *, is_there: bool, is_in_topic: bool) -> int | None:
    """The queue offset of a queue's next message, None if the broker does not know the queue.

    Args:
        end: the end of the queue, or the next offset of a removed queue; 0 if there is neither.
        is_there: whether one of the two exists.
        is_in_topic: whether the topic is known and has a queue of that id: its first message gets the number 0. Nothing
            is known of a deleted topic, or a topic of another broker.
    """
    return end if is_there or is_in_topic else None


class OffsetTable:
    """Committed offsets of all groups, in memory and in `consumerOffset.json`.

    A commit only changes memory; `persist_in_background` is called every flushConsumerOffsetInterval and at the end.

    Args:
        file: `config/consumerOffset.json`; None keeps the table in memory only.
        resets: the times of resets, which `merge` uses to find the newer offset; None merges as RocketMQ 4.9 does.
        limit_bytes: memory for offsets; beyond it `commit` and `clone` refuse offsets of further queues.

    Attributes:
        held_bytes: approximate memory of the offsets; counted again with each write of the file.
    """

    def __init__(
        self, file: ConfigFile | None, *, resets: Resets | None = None, limit_bytes: int = UNLIMITED_BYTES
    ) -> None:
        self._file = file
        self.resets = resets
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._refused = Repeats()
        self.table: dict[str, dict[int, int]] = {}
        """`topic@group` to queue id to offset, the file's own form."""
        self.changed = False
        self._snapshots = Snapshots(lambda: self.table)
        self._writing = trio.Lock()
        self.unexpected = 0
        """Offsets taken for groups, topics or queues that the broker does not know."""

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, always: bool = False, as_reset: bool = True
    ) -> bool:
        """Set one offset; any value, known queue or not, also a lower one (code 15, pull with the commit flag).

        Args:
            group: whose offset it is.
            topic: of the queue.
            queue_id: of the queue.
            offset: the new one.
            always: also when the offsets take too much memory; for the broker's own.
            as_reset: whether a lower offset than before is a reset, which other brokers of the set take over.

        Returns:
            False if the group had no offset of the queue, and the memory for offsets is used up: nothing is set.
        """
        key = f"{topic}@{group}"
        queues = self.table.get(key)
        if queues is None or queue_id not in queues:
            size_bytes = cost_bytes(key, 1) if queues is None else QUEUE_BYTES
            if self.held_bytes + size_bytes > self.limit_bytes and not always:
                self._note_refused(group)
                return False
            self.held_bytes += size_bytes
        self._snapshots.keep(key)
        if queues is None:
            queues = self.table[key] = {}
        elif as_reset and self.resets is not None and offset < queues.get(queue_id, offset):
            self.resets.note(key, queue_id)
        queues[queue_id] = offset
        self.changed = True
        return True

    def _note_refused(self, group: str) -> None:
        if due := self._refused.add(group):
            _log.warning(
                "%d offsets of groups %s are not kept: all offsets take %d bytes (consumerOffsetsLimitBytes)",
                *due, self.limit_bytes,
            )  # fmt: skip

    def _count_bytes(self) -> Generator[None, None, None]:
        """Count `held_bytes` again; in slices."""
        before, total = self.held_bytes, 0
        for number, key in enumerate(list(self.table), 1):
            queues = self.table.get(key)
            if queues is not None:
                total += cost_bytes(key, len(queues))
            if not number % KEYS_PER_SLICE:
                yield
        self.held_bytes = total + self.held_bytes - before  # with offsets committed in the meantime

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or UNKNOWN_OFFSET (-1)."""
        queues = self.table.get(f"{topic}@{group}")
        return UNKNOWN_OFFSET if queues is None else queues.get(queue_id, UNKNOWN_OFFSET)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """A copy of the group's offsets of one topic by queue id; empty if there are none."""
        return dict(self.table.get(f"{topic}@{group}", ()))

    def topics_of(self, group: str) -> Generator[None, None, list[str]]:
        """The topics that the group has committed offsets of; in slices."""
        return [topic for topic, _ in (yield from self._where(lambda _topic, owner: owner == group))]

    def groups_of(self, topic: str) -> Generator[None, None, list[str]]:
        """The groups that have committed offsets of the topic; in slices."""
        return [owner for _, owner in (yield from self._where(lambda name, _owner: name == topic))]

    def topics_by_group(self) -> Generator[None, None, dict[str, list[str]]]:
        """`topics_of` for every group that has committed offsets; in slices."""
        found: dict[str, list[str]] = {}
        for topic, group in (yield from self._where(lambda _topic, _group: True)):
            found.setdefault(group, []).append(topic)
        return found

    def _where(self, matches: Callable[[str, str], bool]) -> Generator[None, None, list[tuple[str, str]]]:
        found = []
        for number, key in enumerate(list(self.table), 1):
            topic, group = _split(key)
            if matches(topic, group) and key in self.table:
                found.append((topic, group))
            if not number % KEYS_PER_SLICE:
                yield
        return found

    def clone(self, source_group: str, target_group: str, topic: str) -> Generator[None, None, bool]:
        """Give the target group the source group's offsets of one topic (code 314); nothing if there are none. Works in
        slices; the result has the source's offsets at the end of the call.

        Returns:
            False if the memory for offsets is used up: nothing is changed.
        """
        source, target = f"{topic}@{source_group}", f"{topic}@{target_group}"
        more_bytes = self._bytes_of(source) - self._bytes_of(target)
        if more_bytes > 0 and self.held_bytes + more_bytes > self.limit_bytes:
            self._note_refused(target_group)
            return False
        if self.resets is not None and source in self.table:
            for number, queue_id in enumerate({*self.table[source], *self.table.get(target, ())}, 1):
                self.resets.note(target, queue_id)
                if not number % CHANGED_PER_SLICE:
                    yield
        queues = self.table.get(source)
        if queues is not None:
            self._snapshots.keep(target)
            self.held_bytes -= self._bytes_of(target)
            self.table[target] = dict(queues)
            self.held_bytes += self._bytes_of(target)
            self.changed = True
        return True

    def _bytes_of(self, key: str) -> int:
        queues = self.table.get(key)
        return 0 if queues is None else cost_bytes(key, len(queues))

    def remove_group(self, group: str) -> Generator[None, None, None]:
        """Forget all offsets of a deleted group; in slices."""
        yield from self._remove((yield from self._where(lambda _topic, owner: owner == group)))

    def remove_topics(self, are_gone: Callable[[str], bool]) -> Generator[None, None, None]:
        """Forget the offsets of all groups in deleted topics; in slices."""
        yield from self._remove((yield from self._where(lambda topic, _owner: are_gone(topic))), are_gone)

    def _remove(
        self, offsets: Iterable[tuple[str, str]], are_gone: Callable[[str], bool] = lambda _topic: True
    ) -> Generator[None, None, None]:
        """Forget the offsets of these topics and groups, on other brokers of the set as well; in slices. A topic that is
        made again between slices keeps its own."""
        count = 0
        for topic, group in offsets:
            key = f"{topic}@{group}"
            count += 1 + len(self.table.get(key, ()))
            if count > CHANGED_PER_SLICE:
                count = 0
                yield
            queues = self.table.get(key)
            if queues is None or not are_gone(topic):
                continue
            if self.resets is not None:
                for number, queue_id in enumerate(tuple(queues), 1):
                    self.resets.note(key, queue_id)
                    if not number % CHANGED_PER_SLICE:
                        yield
            if not are_gone(topic):
                continue
            self._snapshots.keep(key)
            self.held_bytes -= self._bytes_of(key)
            self.table.pop(key, None)
            self.changed = True

    def lower_to_ends(self, end_of: QueueEnd, *, as_reset: bool = True) -> Generator[None, None, int]:
        """Set each offset beyond the end of its queue to that end.

        For a log that has lost its last messages: others get their numbers, which the group has not seen. In slices.

        Args:
            end_of: the ends of the queues.
            as_reset: so that no merge brings the offset back.

        Returns:
            How many there were.
        """
        lowered = count = 0
        for key in list(self.table):
            topic, group = _split(key)
            for queue_id in list(self.table.get(key, ())):
                queues = self.table.get(key, {})  # it may have been replaced or removed between slices
                offset = queues.get(queue_id, 0)
                if offset > 0 and (end := end_of(topic, queue_id)) is not None and offset > end:
                    self.commit(group, topic, queue_id, end, as_reset=as_reset)
                    lowered += 1
                count += 1
                if count >= MERGED_PER_SLICE:
                    count = 0
                    yield
            count += 1
        return lowered

    def merge(
        self,
        received: Mapping[str, Mapping[int, int]],
        times: Mapping[str, Mapping[int, int]] | None = None,
        before: Mapping[str, Mapping[int, int]] | None = None,
    ) -> Generator[None, None, None]:
        """Take over another broker's offsets (docs/protocol/ha.md §7.2). In slices: offsets that are committed in between
        take part in the rest of the merge.

        The newer one wins: the larger offset, unless one side knows of a later reset. Without `resets`, as in 4.9, each
        received key's queues are replaced and other keys stay.

        Args:
            received: its offsets.
            times: its resets; None from RocketMQ's brokers.
            before: the same master's previous answer, if it was never offline in between. If a master without `times`
                has a smaller offset than then, the offset was reset.
        """
        self.changed = True
        if self.resets is None:
            count = 0
            for key, queues in received.items():
                self._snapshots.keep(key)
                self.table[key] = dict(queues)
                count += 1 + len(queues)
                if count > KEYS_PER_SLICE:
                    count = 0
                    yield
                    self.changed = True  # the file may have been written in the meantime
        else:
            for _ in self.resets.merge_into(self.table, received, times, self._snapshots.keep):
                yield
                self.changed = True
            if times is None and before is not None:
                yield
                yield from self._follow_resets(received, before)

    def _follow_resets(
        self, received: Mapping[str, Mapping[int, int]], before: Mapping[str, Mapping[int, int]]
    ) -> Generator[None, None, None]:
        count = 0
        for key, queues in received.items():
            known = before.get(key, {})
            count += 1
            for queue_id, offset in queues.items():
                if offset < known.get(queue_id, offset):
                    topic, group = _split(key)
                    self.commit(group, topic, queue_id, offset)
                count += 1
                if count >= MERGED_PER_SLICE:
                    count = 0
                    yield

    # -- file and wire

    def encode(self) -> bytes:
        """The compact text that slaves fetch (code 43)."""
        return fastjson.dumps({"offsetTable": self.table})

    def for_slaves(self) -> Generator[None, None, tuple[bytes, str | None]]:
        """The compact text and `resets.FIELD`'s, which slaves fetch (code 43), both of this moment; in slices."""
        with self._snapshots.opened() as offsets:
            if self.resets is None:
                return (yield from fastjson.number_maps_in_slices("offsetTable", offsets.items(), pretty=False)), None
            with self.resets.snapshots.opened() as resets:
                times = yield from fastjson.number_maps_in_slices("", resets.items(), pretty=False)
                body = yield from fastjson.number_maps_in_slices("offsetTable", offsets.items(), pretty=False)
        # The field holds the table itself, without a member around it.
        return body, times[len(b'{"":') : -1].decode()

    def pretty(self) -> bytes:
        """The file's text."""
        return fastjson.dumps_pretty({"offsetTable": self.table})

    def load(self) -> None:
        """Read `consumerOffset.json`; a missing file is not an error.

        Raises:
            OSError: the file cannot be read.
            ConfigFileDamaged: neither the file nor its backup can be understood.
        """
        data = self._file.load() if self._file is not None else None
        if self._file is not None and isinstance(data, Mapping):
            try:
                self.table = offset_table_of(data)
            except (TypeError, ValueError, OverflowError) as error:
                raise damaged(self._file.path, f"does not hold what it should: {error}") from error
        for _ in self._count_bytes():
            pass
        if self.resets is not None:
            self.resets.load()

    def persist(self) -> None:
        """Write `consumerOffset.json` now, and then the times of resets; if the disk fails, it logs an error and the next
        call tries again."""
        for _ in self._count_bytes():
            pass
        if self._file is not None:
            try:
                self._file.save(self.pretty())
            except OSError as error:
                self.changed = True
                self._file.log_failure(error)
                return
            self.changed = False
        if self.resets is not None and self.resets.changed:
            for _ in self.resets.forget_long_gone(self.table):
                pass
            self.resets.persist()

    async def persist_in_background(self, flush: Callable[[], Awaitable[None]] | None = None) -> bool:
        """Write `consumerOffset.json`, and after it the times of resets, if anything has changed since the last time.

        Both files have the tables' content at one moment. They are encoded in slices, and written by a worker thread. In
        the other order a broker that is killed between the two would have the old offset with the time of its reset, and
        win against the slaves that have the new one.

        Args:
            flush: waits until the log is on disk, before the files are written: they must not count messages that a
                power failure can destroy. If it fails (OSError) they are written nevertheless: the start after that
                failure corrects offsets beyond the ends of the queues.

        Returns:
            Whether the files have the tables' content at the time of the call.
        """
        async with self._writing:
            changed = self.changed
            written = await self._write_if_changed(flush)
            if changed:
                for _ in self._count_bytes():
                    await trio.lowlevel.checkpoint()
            return written

    async def _write_if_changed(self, flush: Callable[[], Awaitable[None]] | None) -> bool:
        if self._file is None or not self.changed:
            await trio.lowlevel.checkpoint()
            return True
        resets = self.resets if self.resets is not None and self.resets.changed else None
        if resets is not None:
            for _ in resets.forget_long_gone(self.table):
                await trio.lowlevel.checkpoint()
        self.changed = False
        written = False
        try:
            with self._snapshots.opened() as snapshot:
                times = None
                if resets is not None:
                    resets.changed = False
                    times = await _encoded(resets.text_in_slices())  # of the same moment: nothing has waited since then
                slices = fastjson.number_maps_in_slices("offsetTable", snapshot.items(), pretty=True)
                text = await _encoded(slices)
            if flush is not None:
                with suppress(OSError):
                    await flush()
            await self._file.save_in_background(text)
            written = resets is None or times is None or await resets.save(times)
        except OSError as error:
            self._file.log_failure(error)
        finally:
            if not written:
                self.changed = True
                if resets is not None:
                    resets.changed = True
        return written


async def _encoded(slices: Generator[None, None, bytes]) -> bytes:
    """The result of sliced work, between whose slices other tasks run."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return bytes(end.value)
        await trio.lowlevel.checkpoint()


Received = tuple[dict[str, dict[int, int]], dict[str, dict[int, int]] | None]
"""Another broker's offsets and its resets, for `OffsetTable.merge`."""

SHORT_BYTES = 8192
"""A shorter answer is read at once, in a few milliseconds."""

_DECODING = trio.CapacityLimiter(1)


async def decode_received(body: bytes, times: str | None) -> Received:
    """Read another broker's answer to code 43; a long one in a worker thread, and in parts: a megabyte takes half a second
    and more.

    Args:
        body: the answer's body.
        times: its field `resets.FIELD`; None from RocketMQ's brokers.

    Raises:
        BodyError: one of them cannot be read.
    """
    if len(body) + len(times or "") <= SHORT_BYTES:
        return _decode_received(body, times)
    return await trio.to_thread.run_sync(_decode_received, body, times, limiter=_DECODING)


def _decode_received(body: bytes, times: str | None) -> Received:
    return to_the_end(ConsumerOffsetTable.decode_in_slices(body)).offset_table, (
        None if times is None else decode_times(times)
    )


def offset_table_of(data: Mapping[object, object]) -> dict[str, dict[int, int]]:
    """Read the `offsetTable` of a decoded JSON object; other entries are left out."""
    tables = data.get("offsetTable")
    found: dict[str, dict[int, int]] = {}
    if isinstance(tables, Mapping):
        for key, queues in tables.items():
            if isinstance(queues, Mapping):
                found[str(key)] = {int(queue): int(offset) for queue, offset in queues.items()}
    return found


def _split(key: str) -> tuple[str, str]:
    """Topic and group of a `topic@group` key."""
    topic, _, group = key.partition("@")
    return topic, group
