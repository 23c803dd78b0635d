"""The table of a store's consume queues, and their directories on the disk: one per topic, in it one per queue id.

A queue that has been removed is in the table of `removed_queues`, so that its next life continues its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import tee

from triomq_server.disk import Disk
from triomq_server.store.consume_queue import READ_BYTES, ConsumeQueue, ignore_damage
from triomq_server.store.files.segments import Segments
from triomq_server.store.removed_queues import RemovedQueue, RemovedQueues

_LOADED_PER_STEP = 64
_NO_NAMES = frozenset({"", ".", ".."})


def can_have_directory(topic: str) -> bool:
    """Whether a topic's name can be that of a directory: as a path it might lead out of the store."""
    return topic not in _NO_NAMES and "/" not in topic and "\0" not in topic


class UnusableTopic(Exception):  # noqa: N818 - named after the state one is in
    """A topic whose name cannot be used for a directory."""


class ConsumeQueues:
    """All queues of a store, by topic and queue id."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file_bytes: int,
        removed: RemovedQueues,
        *,
        damage_found: Callable[[int], None] = ignore_damage,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._damage_found = damage_found
        self.removed = removed
        self.table: dict[tuple[str, int], ConsumeQueue] = {}

    def load(self) -> Generator[None, None, None]:
        """Load the queues on the disk and the table of removed queues. Yields between pieces of work.

        Raises StoreDamaged, ConfigFileDamaged.
        """
        self.removed.load()
        self._disk.make_directory(self._directory)
        unusable: list[str] = []
        emptied = []
        places, looked_at = tee(self._places())
        paths = (self._path(*place) for place in looked_at)
        with closing(self._disk.only_files(paths, self._file_bytes, READ_BYTES)) as only_files:
            for number, (only_file, place) in enumerate(zip(only_files, places, strict=True)):
                if only_file is not None or self._disk.is_directory(self._path(*place)):
                    queue = self.obtain(*place)
                    unusable += queue.load(self._disk, only_file)
                    if not queue.segments.items and queue.known_end > queue.start_offset:
                        emptied.append(RemovedQueue(*place, queue.known_end, queue.removed_before))
                if number % _LOADED_PER_STEP == _LOADED_PER_STEP - 1:
                    yield
        if emptied:
            self.removed.note(emptied)  # for a start that follows a kill, which finds no files
        for path in unusable:
            self._disk.remove(path)

    def are_on_disk(self) -> bool:
        """Whether the disk has any queue with entries. Changes nothing, and loads nothing."""
        for path in (self._path(*place) for place in self._places()):
            for name, is_directory, _ in self._disk.entries(path):
                if not is_directory and any(self._disk.content(f"{path}/{name}", self._file_bytes)[0]):
                    return True
        return False

    def _places(self) -> Iterator[tuple[str, int]]:
        """Topics and queue ids that seem to have queues on the disk."""
        for topic in self._disk.list(self._directory):
            for name in self._disk.list(f"{self._directory}/{topic}"):
                if name.isascii() and name.isdigit():
                    yield topic, int(name)

    def _path(self, topic: str, queue_id: int) -> str:
        return f"{self._directory}/{topic}/{queue_id}"

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None if it has never been written."""
        return self.table.get((topic, queue_id))

    def obtain(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created if need be; its first entry creates its files. Raises UnusableTopic."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            if not can_have_directory(topic):
                raise UnusableTopic(f"topic {topic[:100]!r} cannot have a directory")
            segments = Segments(self._disk, self._path(topic, queue_id), self._file_bytes)
            removed = self.removed.get(topic, queue_id)
            start, log_offset = (0, 0) if removed is None else (removed.next_offset, removed.log_offset)
            queue = ConsumeQueue(topic, queue_id, segments, start_offset=start, removed_before=log_offset)
            queue.damage_found = self._damage_found
            self.table[topic, queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue for a reader. For a removed queue it is empty and ends at the queue's next offset."""
        queue = self.table.get((topic, queue_id))
        if queue is None and (topic, queue_id) in self.removed.table:
            queue = self.obtain(topic, queue_id)
        return queue

    def max_physical_offset(self) -> int:
        """The largest over all queues, -1 without any."""
        return max((q.max_physical_offset for q in self.table.values()), default=-1)

    def entries(self) -> int:
        """The sum of the numbers at which the queues with files end."""
        return sum(queue.max_offset for queue in self.table.values() if queue.segments.items)

    def has_topic(self, topic: str) -> bool:
        """Whether the topic has any queue on the disk."""
        return can_have_directory(topic) and self._disk.exists(f"{self._directory}/{topic}")

    def forget(self, queue: ConsumeQueue) -> None:
        """Forget a queue without files; its next use begins at the offset in `removed`."""
        del self.table[queue.topic, queue.queue_id]

    def destroy(self, queue: ConsumeQueue) -> None:
        """Remove one queue with its files; the topic's directory too when it was the last."""
        queue.segments.destroy()
        del self.table[queue.topic, queue.queue_id]
        directory = f"{self._directory}/{queue.topic}"
        if not self._disk.list(directory):
            self._disk.remove_tree(directory)

    def close(self) -> None:
        """Unmap everything."""
        for queue in self.table.values():
            queue.publish_position()
            queue.segments.close()
