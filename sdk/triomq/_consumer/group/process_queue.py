"""Messages of one assigned queue, from the pull until they are done (docs/protocol/consumer.md §7).

Pure: no waiting, no clock.  It answers two questions: whether more may be pulled, and up to which offset everything is
done.  Upstream: ``ProcessQueue``.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import attrs

from triomq._arguments.numbers import counts
from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq._message.received import Page, ReceivedMessage
from triomq_protocol.record.view import RecordView

OBJECT_BYTES: Final = 250
"""What the object of a held message costs beside its bytes, with a part of its page: 180 were measured with 80,000
messages of 1 KiB (``triomq bench consume --stalled``), and handlers decode some fields."""


_AT_LEAST_ONE: Final = counts(1)
_NONE_OR_AT_LEAST_ONE: Final = attrs.validators.optional(_AT_LEAST_ONE)


@attrs.frozen(kw_only=True)
class FlowLimits:
    """How much one queue may hold before its pulling pauses; a limit counts when it is exceeded, as in Java's client.

    Args:
        count: messages (``pullThresholdForQueue``).
        size_bytes: memory that is kept for them: whole pulled answers, and their objects
            (``pullThresholdSizeForQueue``).
        span: from the first offset held to the last (``consumeConcurrentlyMaxSpan``); not for ordered consumers.
        topic_count: messages of all of a topic's queues that are this member's; each may hold its part of it, instead
            of ``count`` (``pullThresholdForTopic``). None: no such limit.
        topic_size_bytes: the same for memory, instead of ``size_bytes`` (``pullThresholdSizeForTopic``).

    Raises:
        InvalidCall: a limit is not a whole number of at least 1.
    """

    count: int = attrs.field(default=1000, validator=_AT_LEAST_ONE)
    size_bytes: int = attrs.field(default=100 * 1024 * 1024, validator=_AT_LEAST_ONE)
    span: int = attrs.field(default=2000, validator=_AT_LEAST_ONE)
    topic_count: int | None = attrs.field(default=None, validator=_NONE_OR_AT_LEAST_ONE)
    topic_size_bytes: int | None = attrs.field(default=None, validator=_NONE_OR_AT_LEAST_ONE)

    @property
    def covers_topics(self) -> bool:
        """Whether there are limits for whole topics."""
        return self.topic_count is not None or self.topic_size_bytes is not None

    def of_one(self, queues: int) -> FlowLimits:
        """The limits of each queue, when so many of its topic are this member's."""
        return attrs.evolve(
            self,
            count=self.count if self.topic_count is None else max(1, self.topic_count // queues),
            size_bytes=self.size_bytes if self.topic_size_bytes is None else max(1, self.topic_size_bytes // queues),
        )


class Stage(enum.Enum):
    """The state of a held message."""

    WAITING = "waiting"
    """No handler has it."""

    STARTED = "started"
    """A handler has it."""

    ENDED = "ended"
    """Consumed, sent back, or given up with its queue: what comes of it no longer counts."""


WAITING, STARTED, ENDED = Stage.WAITING, Stage.STARTED, Stage.ENDED
"""The same by short names: looking a member up in its class costs as much as all the rest of some methods here."""


class HeldPage(Page):
    """One pulled answer: its bytes stay in memory as long as one of its messages is held.

    Args:
        body: records, one behind the other.
        queue: where they were pulled from.
        min_offset: first offset of the queue when it was pulled.
        max_offset: offset behind the last one then.
        namespace: whose prefix the stored topics may have; None: there is none.

    Attributes:
        holder: who keeps the messages.
        messages: those that are kept, in order; empty when all have ended: they know their page, and a circle of
            objects would outlive its time.
        passed: messages at the beginning that have ended, as far as was looked.
        left: messages that have not ended.
        size_bytes: what it adds to its holder's.
    """

    __slots__ = ("holder", "left", "messages", "passed", "size_bytes")

    holder: ProcessQueue

    def __init__(
        self,
        body: bytes,
        queue: MessageQueue,
        min_offset: int = -1,
        max_offset: int = -1,
        namespace: Namespace | None = None,
    ) -> None:
        super().__init__(body, queue, min_offset, max_offset, namespace)
        self.messages: Sequence[HeldMessage] = ()
        self.passed = 0
        self.left = 0
        self.size_bytes = 0


class HeldMessage(ReceivedMessage):
    """A message of a consumer group's member; see :class:`ReceivedMessage` for its fields.

    Its topic is the one it was sent to, also when it was delivered by the group's retry topic.
    """

    # One object for handler and bookkeeping both: at 100,000 messages a second a second one would show.
    __slots__ = ("extra_times", "original_topic", "stage", "started_s")

    page: HeldPage

    def __init__(self, record: RecordView, queue: MessageQueue, original_topic: str | None = None) -> None:
        super().__init__(record, queue)
        self.page = HeldPage(b"", queue)
        self.original_topic = original_topic
        self.extra_times = 0
        self.stage = WAITING
        self.started_s = 0.0

    @property
    def holder(self) -> ProcessQueue:
        """Who keeps it."""
        return self.page.holder

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self.original_topic if self.original_topic is not None else super().topic

    @property
    def reconsume_times(self) -> int:
        """How often it failed before: what the broker counted, and retries in place since."""
        return self.record.reconsume_times + self.extra_times


def held_messages(page: HeldPage, starts: list[int]) -> list[HeldMessage]:
    """The messages of a pulled answer, in order, given where their records start."""
    make = HeldMessage.__new__
    waiting = WAITING
    messages = []
    for at in starts:
        # Not by the constructor: that would be a third of what it all costs.
        message = make(HeldMessage)
        message.page = page
        message._at = at  # noqa: SLF001
        message._record = message._body = message._properties = None  # noqa: SLF001
        message.original_topic = None
        message.extra_times = 0
        message.stage = waiting
        message.started_s = 0.0
        messages.append(message)
    return messages


class ProcessQueue:
    """The messages of one queue that were pulled and have not ended, in the order of their offsets.

    Args:
        queue: the queue.
        owner: what keeps it; not looked at here.

    Attributes:
        count: messages held.
        size_bytes: memory they pin: a pulled answer counts whole until its last message has ended.
        dropped: the queue was given away, or starts again elsewhere: results no longer count.
        last_offset: of the last message put; -1 before.
        scanned: everything below it was pulled, or did not match; -1 before the first answer.
        backlog: messages behind the last one pulled, by the last answer (``msgAccCnt``).
    """

    __slots__ = ("_pages", "backlog", "count", "dropped", "last_offset", "owner", "queue", "scanned", "size_bytes")

    def __init__(self, queue: MessageQueue, owner: Any = None) -> None:
        self.queue = queue
        self.owner = owner
        self.count = 0
        self.size_bytes = 0
        self.dropped = False
        self.backlog = 0
        self.last_offset = -1
        self.scanned = -1
        # Pages with messages that have not ended. They leave it from anywhere: one slow message is not to keep
        # the bytes of all that came after it.
        self._pages: OrderedDict[HeldPage, None] = OrderedDict()

    def put(self, page: HeldPage, messages: list[HeldMessage]) -> list[HeldMessage]:
        """Keep a pulled answer.

        Args:
            page: what they have in common.
            messages: its messages, or some of them, by ascending offsets.

        Returns:
            Those that were not held before.
        """
        last = self.last_offset
        if messages and messages[0].queue_offset <= last:
            messages = [message for message in messages if message.queue_offset > last]
        if not messages:
            return messages
        count = len(messages)
        page.holder = self
        page.messages = messages
        page.left = count
        page.size_bytes = len(page.body) + OBJECT_BYTES * count
        self._pages[page] = None
        self.last_offset = last = messages[-1].queue_offset
        if last >= self.scanned:
            self.scanned = last + 1
        self.count += count
        self.size_bytes += page.size_bytes
        self.backlog = max(0, page.max_offset - 1 - last)
        return messages

    def scan(self, next_offset: int) -> None:
        """An answer says where the next pull starts: what lies before and is not held is done."""
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
            self._leave(page)
        return True

    def finish_page(self, messages: Sequence[HeldMessage]) -> None:
        """Messages of one page have ended."""
        ended = 0
        for message in messages:
            if message.stage is not ENDED:
                message.stage = ENDED
                ended += 1
        if ended:
            self.count -= ended
            page = messages[0].page
            page.left -= ended
            if not page.left:
                self._leave(page)

    def _leave(self, page: HeldPage) -> None:
        self.size_bytes -= page.size_bytes
        page.messages = ()
        del self._pages[page]

    @property
    def commit_point(self) -> int | None:
        """The smallest offset that has not ended, or where the next pull starts; None before the first answer."""
        first = self.first
        if first is not None:
            return first.queue_offset
        return self.scanned if self.scanned >= 0 else None

    @property
    def first(self) -> HeldMessage | None:
        """The message that holds the commit point."""
        for page in self._pages:
            messages, at = page.messages, page.passed
            while messages[at].stage is ENDED:
                at += 1
            page.passed = at
            return messages[at]
        return None

    @property
    def span(self) -> int:
        """From the first offset held to the last.

        Stricter than Java's, which forgets messages that ended behind a stuck one and so pulls on for ever.
        """
        first = self.first
        return self.last_offset - first.queue_offset if first is not None else 0

    def exceeds(self, limits: FlowLimits, *, ordered: bool = False) -> str | None:
        """The name of a limit that is exceeded, or None."""
        if self.count > limits.count:
            return "count"
        if self.size_bytes > limits.size_bytes:
            return "size_bytes"
        if not ordered and self.span > limits.span:
            return "span"
        return None

    def drop(self) -> list[HeldMessage]:
        """Give everything up: nothing that becomes of the messages counts any more.

        Returns:
            Those that had not ended.
        """
        self.dropped = True
        given_up = [message for page in self._pages for message in page.messages if message.stage is not ENDED]
        for message in given_up:
            message.stage = ENDED
        for page in self._pages:
            page.messages = ()
        self._pages.clear()
        self.count = self.size_bytes = 0
        return given_up
