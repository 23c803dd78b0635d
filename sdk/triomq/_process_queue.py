"""What one assigned queue holds between the pull and the end of its messages (consumer.md §7).

Pure: no waiting, no clock.  It answers two questions: may more be pulled, and up to which offset is
everything done.  Upstream: ``ProcessQueue``.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import attrs

from triomq._message import MessageQueue
from triomq._received import ReceivedMessage
from triomq_protocol.record import RecordView

OBJECT_BYTES: Final = 400
"""What the two objects of a held message cost beside its bytes; measured with a million messages of 1 KiB."""


@attrs.frozen(kw_only=True)
class FlowLimits:
    """How much one queue may hold before its pulling pauses; a limit counts when it is exceeded, as in Java's client.

    Args:
        count: messages (``pullThresholdForQueue``).
        size_bytes: memory that is kept for them: whole pulled answers, and their objects (``pullThresholdSizeForQueue``).
        span: from the first offset held to the last (``consumeConcurrentlyMaxSpan``); not for ordered consumers.
    """

    count: int = attrs.field(default=1000, validator=attrs.validators.ge(1))
    size_bytes: int = attrs.field(default=100 * 1024 * 1024, validator=attrs.validators.ge(1))
    span: int = attrs.field(default=2000, validator=attrs.validators.ge(1))


class Stage(enum.Enum):
    """Where a held message stands."""

    WAITING = "waiting"
    """Nobody has it in hand."""

    STARTED = "started"
    """A handler has it in hand."""

    ENDED = "ended"
    """Consumed, sent back, or given up with its queue: what comes of it no longer counts."""


WAITING, STARTED, ENDED = Stage.WAITING, Stage.STARTED, Stage.ENDED
"""The same by short names: looking a member up in its class costs as much as all the rest of some methods here."""


class Page:
    """One pulled answer: its bytes stay in memory as long as one of its messages is held.

    Args:
        size_bytes: length of the answer's body.
        left: messages that have not ended.
    """

    __slots__ = ("left", "size_bytes")

    def __init__(self, size_bytes: int, left: int) -> None:
        self.size_bytes = size_bytes
        self.left = left


class HeldMessage(ReceivedMessage):
    """A message that a consumer group member was given; see :class:`ReceivedMessage` for its fields.

    Its topic is the one it was sent to, also when it comes back by the group's retry topic.
    """

    # One object for handler and bookkeeping both: at 100,000 messages a second a second one would show.
    __slots__ = ("extra_times", "holder", "original_topic", "page", "place", "stage", "started_s")

    def __init__(
        self, record: RecordView, queue: MessageQueue, min_offset: int, max_offset: int, original_topic: str | None
    ) -> None:
        self.record = record
        self.queue: MessageQueue = queue
        self.min_offset = min_offset
        self.max_offset = max_offset
        self._body = None
        self._properties = None
        self.place = record.queue_offset
        self.original_topic = original_topic
        self.extra_times = 0
        self.stage = WAITING
        self.started_s = 0.0

    page: Page
    holder: ProcessQueue

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self.original_topic if self.original_topic is not None else self.record.topic

    @property
    def reconsume_times(self) -> int:
        """How often it failed before: what the broker counted, and retries in place since."""
        return self.record.reconsume_times + self.extra_times


class ProcessQueue:
    """The messages of one queue that were pulled and have not ended, in the order of their offsets.

    Args:
        queue: which.
        owner: whoever keeps it; not looked at here.

    Attributes:
        count: messages held.
        size_bytes: memory they pin: a pulled answer counts whole until its last message has ended.
        dropped: the queue was given away, or starts anew elsewhere: results no longer count.
        last_offset: of the last message put; -1 before.
        scanned: everything below it was pulled, or did not match; -1 before the first answer.
        backlog: messages behind the last one pulled, as the last answer told (``msgAccCnt``).
    """

    __slots__ = ("_order", "backlog", "count", "dropped", "last_offset", "owner", "queue", "scanned", "size_bytes")

    def __init__(self, queue: MessageQueue, owner: Any = None) -> None:
        self.queue = queue
        self.owner = owner
        self.count = 0
        self.size_bytes = 0
        self.dropped = False
        self.backlog = 0
        self.last_offset = -1
        self.scanned = -1
        # Ended messages stay until they are the first, so that the first is always the commit point.
        self._order: deque[HeldMessage] = deque()

    def put(self, messages: Iterable[HeldMessage], page_bytes: int) -> list[HeldMessage]:
        """Keep a pulled answer.

        Args:
            messages: by ascending offsets.
            page_bytes: length of the answer they pin together.

        Returns:
            Those that were not held before.
        """
        last = self.last_offset
        fresh = [message for message in messages if message.place > last]
        if not fresh:
            return fresh
        page_bytes += OBJECT_BYTES * len(fresh)
        page = Page(page_bytes, len(fresh))
        for message in fresh:
            message.page = page
            message.holder = self
        self._order.extend(fresh)
        self.last_offset = fresh[-1].place
        self.scanned = max(self.scanned, self.last_offset + 1)
        self.count += len(fresh)
        self.size_bytes += page_bytes
        self.backlog = max(0, fresh[-1].max_offset - 1 - self.last_offset)
        return fresh

    def scan(self, next_offset: int) -> None:
        """An answer says where the next pull starts: what lies before and is not held needs nobody."""
        if next_offset > self.scanned:
            self.scanned = next_offset

    def finish(self, message: HeldMessage) -> bool:
        """A message has ended.

        Returns:
            Whether that counts: False when it had ended before, or its queue is gone.
        """
        if message.stage is ENDED:
            return False
        message.stage = ENDED
        self.count -= 1
        page = message.page
        page.left -= 1
        if not page.left:
            self.size_bytes -= page.size_bytes
        order = self._order
        if order[0] is message:
            order.popleft()
            while order and order[0].stage is ENDED:
                order.popleft()
        return True

    @property
    def commit_point(self) -> int | None:
        """The smallest offset that has not ended, or where the next pull starts; None before the first answer."""
        if self._order:
            return self._order[0].place
        return self.scanned if self.scanned >= 0 else None

    @property
    def first(self) -> HeldMessage | None:
        """The message that holds the commit point."""
        return self._order[0] if self._order else None

    @property
    def span(self) -> int:
        """From the first offset held to the last.

        Stricter than Java's, which forgets messages that ended behind a stuck one and so pulls on for ever.
        """
        return self.last_offset - self._order[0].place if self._order else 0

    def exceeds(self, limits: FlowLimits, *, ordered: bool = False) -> str | None:
        """The name of a limit that is exceeded, or None."""
        if self.count > limits.count:
            return "count"
        if self.size_bytes > limits.size_bytes:
            return "size_bytes"
        if not ordered and self._order and self.last_offset - self._order[0].place > limits.span:
            return "span"
        return None

    def drop(self) -> list[HeldMessage]:
        """Give everything up: nothing that becomes of the messages counts any more.

        Returns:
            Those that had not ended.
        """
        self.dropped = True
        given_up = [message for message in self._order if message.stage is not ENDED]
        for message in given_up:
            message.stage = ENDED
        self._order.clear()
        self.count = self.size_bytes = 0
        return given_up
