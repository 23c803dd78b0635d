"""The result of a pull (docs/protocol/consumer.md §2.6 and §3; upstream ``PullResult``, ``PullStatus``)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from triomq._message.message import MessageQueue
from triomq._message.namespace import Namespace
from triomq._message.received import Page, ReceivedMessage, received_messages
from triomq_protocol.filters.tags import TagFilter
from triomq_protocol.record.view import record_starts


class PullStatus(enum.IntEnum):
    """How a pull ended; the value is the response code."""

    FOUND = 0
    """The broker returned messages; the client's exact comparison of tags may leave none of them."""

    NO_NEW_MESSAGE = 19
    """The broker has no message at or after this offset yet."""

    NO_MATCHED_MESSAGE = 20
    """No message that the broker examined matches; continue at ``next_offset`` at once."""

    OFFSET_ILLEGAL = 21
    """The offset is outside the queue; ``next_offset`` is inside."""


class PullResult:
    """The answer to one pull.  It keeps the answer's bytes; records are decoded when :attr:`messages` is read.

    Attributes:
        status: see :class:`PullStatus`.
        queue: the pulled queue.
        next_offset: where the next pull should start, whatever the status.
        min_offset: first offset of the queue.
        max_offset: offset after its last message.
        suggested_broker_id: the broker to ask next, as suggested by the one that answered.
        broker_address: the broker that answered.
        lacks_offset: whether the offset is outside the broker's range, and the broker, a slave, cannot decide whether
            it exists: its master may have it. The status is then ``NO_NEW_MESSAGE``.
        missing: messages before ``next_offset`` that the broker did not return although there was no filter: it has
            deleted them from its log, while its queue still lists them. 0 with a filter, which also leaves out messages.
        was_reset: whether an operator has reset the group, to ``next_offset``, as a broker of RocketMQ 5 reports at the next
            pull of each queue. The status is then ``OFFSET_ILLEGAL``.
        taken: whether a consumer's own pull loop has taken its messages; always False for results of ``pull()``.
        body: the records' bytes, one after the other.
        namespace: the namespace whose prefix the stored topics may have.
    """

    __slots__ = (
        "_messages",
        "_starts",
        "_tags",
        "_wanted",
        "body",
        "broker_address",
        "lacks_offset",
        "max_offset",
        "min_offset",
        "missing",
        "namespace",
        "next_offset",
        "queue",
        "status",
        "suggested_broker_id",
        "taken",
        "was_reset",
    )  # fmt: skip

    def __init__(
        self,
        status: PullStatus,
        queue: MessageQueue,
        *,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        suggested_broker_id: int,
        broker_address: str,
        body: bytes = b"",
        tags: TagFilter | None = None,
        lacks_offset: bool = False,
        starts: list[int] | None = None,
        wanted: Callable[[list[ReceivedMessage]], list[ReceivedMessage]] | None = None,
        namespace: Namespace | None = None,
        missing: int = 0,
        was_reset: bool = False,
    ) -> None:
        self.status: PullStatus = status
        self.queue: MessageQueue = queue
        self.next_offset: int = next_offset
        self.min_offset: int = min_offset
        self.max_offset: int = max_offset
        self.suggested_broker_id: int = suggested_broker_id
        self.broker_address: str = broker_address
        self.body: bytes = body
        self.lacks_offset: bool = lacks_offset
        self.missing: int = missing
        self.was_reset: bool = was_reset
        self.taken: bool = False
        self._starts = starts
        self._tags = tags if tags is not None and tags.tags else None
        self._wanted = wanted
        self.namespace: Namespace | None = namespace
        self._messages: list[ReceivedMessage] | None = None

    @property
    def record_starts(self) -> list[int]:
        """Where each record starts in :attr:`body`."""
        if self._starts is None:
            self._starts = record_starts(self.body)
        return self._starts

    @property
    def messages(self) -> list[ReceivedMessage]:
        """The messages, in order; without those whose tag only shares a hash with a wanted one, and those that a filter
        hook does not want."""
        if self._messages is None:
            messages: list[ReceivedMessage] = []
            if self.status is PullStatus.FOUND:
                page = Page(self.body, self.queue, self.min_offset, self.max_offset, self.namespace)
                messages = received_messages(page, self.record_starts)
                if (tags := self._tags) is not None:
                    # The broker compares 32-bit hashes only.
                    messages = [message for message in messages if tags.matches_tag(message.tags)]
                if self._wanted is not None:
                    messages = self._wanted(messages)
            self._messages = messages
        return self._messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        """Whether there are messages, as for every sequence: ``while result := await consumer.pull(queue)`` ends.

        Decodes them, as :attr:`messages` does.
        """
        return self.status is PullStatus.FOUND and bool(self.messages)

    def __repr__(self) -> str:
        return (
            f"<PullResult {self.status.name} {self.queue.topic}@{self.queue.broker_name}:{self.queue.queue_id} "
            f"next {self.next_offset} of {self.min_offset}..{self.max_offset} from {self.broker_address}>"
        )
