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
"""Bytes of a held message's object in addition to its own, with a part of its page: 180 were measured with 80,000
messages of 1 KiB (``triomq bench consume --stalled``), and handlers decode some fields."""


_AT_LEAST_ONE: Final = counts(1)
_NONE_OR_AT_LEAST_ONE: Final = attrs.validators.optional(_AT_LEAST_ONE)


@attrs.frozen(kw_only=True)
class FlowLimits:
    """How much one queue may hold before its pulling pauses; a limit counts when it is exceeded, as in Java's client.

    Args:
        count: number of messages (``pullThresholdForQueue``).
        size_bytes: memory held for them: whole pulled answers, and their objects
            (``pullThresholdSizeForQueue``).
        span: from the first offset held to the last (``consumeConcurrentlyMaxSpan``); not for ordered consumers.
        topic_count: messages of all of this member's queues of a topic; each queue may hold its part of it, instead
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
        """The limits of each queue, if this member has this number of the topic's queues."""
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
    """Consumed, sent back, or given up with its queue: its result no longer counts."""


WAITING, STARTED, ENDED = Stage.WAITING, Stage.STARTED, Stage.ENDED
"""Short names for the same: looking up a member in its class costs as much as the rest of some methods here."""


class HeldPage(Page):
    """One pulled answer: its bytes stay in memory as long as one of its messages is held.

    Args:
        body: records, one after the other.
        queue: the queue they were pulled from.
        min_offset: first offset of the queue at the time of the pull.
        max_offset: offset after its last message at that time.
        namespace: the namespace whose prefix the stored topics may have; None: no namespace.

    Attributes:
        holder: the process queue that keeps the messages.
        messages: the kept messages, in order; empty when all have ended: they refer to their page, and a cycle of
            objects would be freed late.
        passed: messages at the beginning that are known to have ended.
        left: number of messages that have not ended.
        size_bytes: the bytes that it adds to its holder's.
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
        self.passed: int = 0
        self.left: int = 0
        self.size_bytes: int = 0


class HeldMessage(ReceivedMessage):
    """A message held by a consumer group's member; see :class:`ReceivedMessage` for its fields.

    Its topic is the one it was sent to, even if it was delivered through the group's retry topic.
    """

    # One object for both handler and bookkeeping: at 100,000 messages per second a second one is a measurable cost.
    __slots__ = ("extra_times", "original_topic", "stage", "started_s")

    page: HeldPage

    def __init__(self, record: RecordView, queue: MessageQueue, original_topic: str | None = None) -> None:
        super().__init__(record, queue)
        self.page = HeldPage(b"", queue)
        self.original_topic: str | None = original_topic
        self.extra_times: int = 0
        self.stage: Stage = WAITING
        self.started_s: float = 0.0

    @property
    def holder(self) -> ProcessQueue:
        """The process queue that keeps it."""
        return self.page.holder

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self.original_topic if self.original_topic is not None else super().topic

    @property
    def reconsume_times(self) -> int:
        """How often it failed before: the broker's count, plus retries in place since then."""
        return self.record.reconsume_times + self.extra_times


def held_messages(page: HeldPage, starts: list[int]) -> list[HeldMessage]:
    """The messages of a pulled answer, in order, from the positions of their records."""
    make = HeldMessage.__new__
    waiting = WAITING
    messages = []
    for at in starts:
        # Not by the constructor: that would be a third of the whole cost.
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
        owner: the object that keeps it; not used here.

    Attributes:
        count: number of messages held.
        size_bytes: memory they occupy: a pulled answer counts in full until its last message has ended.
        dropped: the queue was given away, or starts again elsewhere: results no longer count.
        last_offset: offset of the last message that was put; -1 before.
        scanned: the offset below which everything was pulled, or did not match; -1 before the first answer.
        backlog: messages after the last one pulled, according to the last answer (``msgAccCnt``).
    """

    __slots__ = ("_pages", "backlog", "count", "dropped", "last_offset", "owner", "queue", "scanned", "size_bytes")

    def __init__(self, queue: MessageQueue, owner: Any = None) -> None:
        self.queue: MessageQueue = queue
        self.owner: Any = owner
        self.count: int = 0
        self.size_bytes: int = 0
        self.dropped: bool = False
        self.backlog: int = 0
        self.last_offset: int = -1
        self.scanned: int = -1
        # Pages with messages that have not ended. They may leave from any position: one slow message must not keep
        # the bytes of all later ones.
        self._pages: OrderedDict[HeldPage, None] = OrderedDict()

    def put(self, page: HeldPage, messages: list[HeldMessage]) -> list[HeldMessage]:
        """Keep a pulled answer.

        Args:
            page: the answer.
            messages: its messages, or some of them, in ascending order of offsets.

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
        """Record where the next pull starts, according to an answer: messages before it that are not held are done."""
        if next_offset > self.scanned:
            self.scanned = next_offset

    def finish(self, message: HeldMessage) -> bool:
        """Record that a message has ended.

        Returns:
            Whether that counts: False if it had ended before, or its queue was given up.
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
        """Record that messages of one page have ended."""
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
        """The lowest offset that has not ended, or the start of the next pull; None before the first answer."""
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
        """The distance from the first offset held to the last.

        Stricter than Java's, which forgets messages that ended after a stuck one and so never stops pulling.
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
        """Give everything up: results of the messages no longer count.

        Returns:
            The messages that had not ended.
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
