"""Queues that no other process reads, such as those of ``celery inspect`` and its replies.

They have no topic of their own: their process reads the topic of the exchange, starting at the time the queue was
declared, and takes the messages that its binding matches.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Final

import triomq

WAITING_MAX: Final = 50_000
"""The most messages that wait in a transient queue; when more arrive, the oldest ones are dropped. Each takes about 2 KB
in addition to its bytes."""

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of these messages, as they are stored."""

LastRead = dict[triomq.MessageQueue, tuple[int, int]]
"""The last message that was read of each queue of a topic: its offset, and the latest time at which one was stored."""


class TransientQueue:
    """A queue that no other process reads: the messages it waits with, and how far topics are read for it.

    Args:
        since_ms: when it was declared, in ms since 1970.
        read: what had been read for other queues by then, by queue of a topic: nothing of it is for this one.
    """

    def __init__(self, since_ms: int, read: LastRead | None = None) -> None:
        self.since_ms = since_ms
        self.waiting: deque[tuple[dict[str, Any], int]] = deque()
        """Messages, each with its stored size in bytes; 0 if it was put back."""
        self._size_bytes = 0
        self._drops = False
        """Whether messages were dropped."""
        self.declarations = 0
        """How many connections have declared it."""
        self._read: LastRead = {} if read is None else read
        self.unlock()

    def unlock(self) -> None:
        """Let no thread hold its lock."""
        self._lock = threading.Lock()

    def put(self, message: dict[str, Any], size_bytes: int) -> bool:
        """Add a message; the oldest ones are dropped if there are too many.

        Returns:
            Whether one was dropped for the first time.
        """
        with self._lock:
            self.waiting.append((message, size_bytes))
            self._size_bytes += size_bytes
            dropped = False
            while len(self.waiting) > WAITING_MAX or (self._size_bytes > WAITING_BYTES_MAX and len(self.waiting) > 1):
                self._take()
                dropped = True
            is_first = dropped and not self._drops
            self._drops = self._drops or dropped
            return is_first

    def put_back(self, message: dict[str, Any]) -> None:
        """Make a message that was taken the next one again."""
        with self._lock:
            self.waiting.appendleft((message, 0))

    def take(self) -> dict[str, Any] | None:
        """The next message; None if there is none."""
        with self._lock:
            return self._take() if self.waiting else None

    def _take(self) -> dict[str, Any]:
        message, size_bytes = self.waiting.popleft()
        self._size_bytes -= size_bytes
        return message

    def last_read(self) -> LastRead:
        """What has been read for it."""
        with self._lock:
            return dict(self._read)

    def next_offset(self, queue: triomq.MessageQueue) -> int | None:
        """The first offset of a topic's queue that was not read for it; None if nothing was read."""
        read = self._read.get(queue)
        return None if read is None else read[0] + 1

    def is_new(self, message: triomq.ReceivedMessage) -> bool:
        """Whether a message has not been read for it; from now on it has."""
        offset, stored_ms = message.queue_offset, message.stored_ms
        with self._lock:  # connections of other threads read for it, too
            last_offset, last_ms = self._read.get(message.queue, (-1, -1))
            # In a topic that was deleted and created again, later messages have earlier offsets.
            if offset <= last_offset and stored_ms <= last_ms:
                return False
            # A broker's clock may be set back.
            self._read[message.queue] = (offset, max(stored_ms, last_ms))
        return True


class TransientQueues:
    """The transient queues of a process, which outlive its connections, as queues of a message broker do.

    Celery declares the queue of its results on the connection that sends a task, and reads it on another one, which it opens
    when the program asks for a result: what has arrived by then must be found. So must what arrives while a connection is
    established again. The queues that were used last are kept.
    """

    _MAX = 1000

    def __init__(self) -> None:
        self._queues: dict[tuple[str, ...], TransientQueue] = {}
        """The one that was declared last is the last."""
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        # Of the threads of its parent, a child has only the one that forked: nothing would release another one's lock.
        self._lock = threading.Lock()
        for queue in list(self._queues.values()):
            queue.unlock()

    def declare(self, key: tuple[str, ...], now_ms: int) -> TransientQueue:
        """The queue of a name at a cluster, for one more connection."""
        with self._lock:
            queue = self._queues.pop(key, None) or TransientQueue(now_ms, self._read_at(key[:-1]))
            self._queues[key] = queue
            if len(self._queues) > self._MAX:
                del self._queues[next(iter(self._queues))]
            queue.declarations += 1
            return queue

    def _read_at(self, cluster: tuple[str, ...]) -> LastRead:
        """How far the topics of a cluster have been read by now."""
        read: LastRead = {}
        for key, queue in list(self._queues.items()):
            if key[:-1] == cluster:
                for place, last in queue.last_read().items():
                    read[place] = max(last, read.get(place, last), key=lambda each: (each[1], each[0]))
        return read

    def delete(self, key: tuple[str, ...]) -> None:
        """Forget a queue and its messages."""
        with self._lock:
            self._queues.pop(key, None)
