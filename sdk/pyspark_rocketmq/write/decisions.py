"""Records which triggers of transactional streams are committed, in a topic of one queue with a record per trigger.

The first record of a trigger counts: it is stored before any message of the trigger is committed, it names all of them,
and a restarted driver commits those that are left. A long record is several messages; the last one decides.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

import attrs
import msgspec

from pyspark_rocketmq.errors import WriteFailed
from triomq import HalfMessage, Message, MessageQueue, MQError, PullResult, PullStatus, ReceivedMessage
from triomq_protocol.checksum import crc32

PIECE_BYTES: Final = 1 << 20
"""The longest body of a record's message, in bytes."""

PAGE: Final = 32

_log = logging.getLogger(__name__)

Positions = dict[MessageQueue, int]


@attrs.frozen
class Decision:
    """The messages of a trigger that are committed.

    Args:
        query: the id in the checkpoint.
        batch: the number of the trigger.
        run: a unique name of this attempt to decide.
        attempts: the task attempts whose messages are committed.
        before: the ends of the queues before any message of the trigger was committed.
        halves: the messages.
    """

    query: str
    batch: int
    run: str
    attempts: frozenset[str]
    before: Positions
    halves: tuple[HalfMessage, ...]


def messages_of(decision: Decision, topic: str, max_bytes: int = PIECE_BYTES) -> list[Message]:
    """The messages of a record, in the order in which they must be stored.

    Args:
        decision: the record.
        topic: the topic of the messages.
        max_bytes: the longest body of one message.

    Raises:
        WriteFailed: not even one half message fits in addition to the names of the tasks.
    """
    most = len(decision.halves)
    left = free = max_bytes - len(json.dumps(_piece(decision, most, most, ())))
    pieces: list[list[HalfMessage]] = [[]]
    for half in decision.halves:
        size = len(json.dumps(_half(half))) + len(", ")
        if size > left and pieces[-1]:
            pieces.append([])
            left = free
        left -= size
        pieces[-1].append(half)
    messages = [
        Message(topic, json.dumps(_piece(decision, number, len(pieces), halves)).encode(), keys=decision.query)
        for number, halves in enumerate(pieces)
    ]
    longest = max(len(message.body) for message in messages)
    if longest > max_bytes:
        limit = (
            f"rocketmq.max_body_bytes is {max_bytes}: set it higher, as the brokers' maxMessageSize allows, or write"
            if max_bytes < PIECE_BYTES
            else f"such a message may have {max_bytes}: write"
        )
        raise WriteFailed(
            f"the decision about trigger {decision.batch} needs messages of {longest} bytes, because it names "
            f"{len(decision.attempts)} tasks, and {limit} fewer partitions"
        )
    return messages


def _half(half: HalfMessage) -> list[Any]:
    return [*_place(half.queue), half.message_id, half.half_offset, half.commit_log_offset]


def _piece(decision: Decision, number: int, pieces: int, halves: Sequence[HalfMessage]) -> dict[str, Any]:
    return {
        "query": decision.query,
        "batch": decision.batch,
        "run": decision.run,
        "piece": number,
        "pieces": pieces,
        "attempts": sorted(decision.attempts),
        "before": [[*_place(queue), offset] for queue, offset in decision.before.items()],
        "halves": [_half(each) for each in halves],
    }


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


class _Named(msgspec.Struct, frozen=True):
    """The query of a record; its other fields are not read."""

    query: str


class _Piece(_Named, frozen=True):
    """One message of a record, as :func:`_piece` writes it."""

    batch: int
    run: str
    piece: int
    pieces: int
    attempts: frozenset[str]
    before: tuple[tuple[str, str, int, int], ...]
    halves: tuple[tuple[str, str, int, str, int, int], ...]


_query_of = msgspec.json.Decoder(_Named).decode
_piece_of = msgspec.json.Decoder(_Piece).decode


class DecisionReader:
    """Finds the newest decision of a query; it is given the topic's messages from the last one backwards.

    Only drivers write records. So a message that is none, though it names the query, has committed nothing: it comes
    from another program, and is skipped.

    Args:
        query: the id in the checkpoint.

    Attributes:
        skipped: how many messages named the query and were not records.
        why: what is wrong with the last of them.
    """

    def __init__(self, query: str) -> None:
        self._query = query
        self._runs: dict[str, dict[int, _Piece]] = {}
        self._order: list[str] = []
        self._newest = -1
        self.skipped = 0
        self.why = ""

    def takes(self, body: bytes) -> bool:
        """Take a message; returns False if no earlier one can matter."""
        if len(body) > PIECE_BYTES:
            # No record is as long: it is not even parsed.
            return True
        try:
            if _query_of(body).query != self._query:
                return True
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Another program also writes to the topic.
            return True
        try:
            piece = _piece_of(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self._skip(str(error))
        if piece.batch < 0 or not 0 <= piece.piece < piece.pieces:
            return self._skip(f"it is piece {piece.piece} of {piece.pieces} about trigger {piece.batch}")
        if piece.piece == piece.pieces - 1 and piece.run not in self._runs:
            if piece.batch < self._newest:
                return False
            self._newest = piece.batch
            self._order.append(piece.run)
            self._runs[piece.run] = {}
        # A run that did not reach its end has decided nothing.
        if piece.run in self._runs:
            self._runs[piece.run][piece.piece] = piece
        return True

    def _skip(self, why: str) -> bool:
        self.skipped += 1
        self.why = why
        return True

    def decision(self) -> Decision | None:
        """The first record of the newest trigger; None if there is none.

        Raises:
            WriteFailed: the start of the record is missing.
        """
        if not self._order:
            return None
        pieces = self._runs[self._order[-1]]
        last = pieces[max(pieces)]
        if len(pieces) != last.pieces:
            raise WriteFailed(
                f"the decision about trigger {last.batch} of query {self._query} has {len(pieces)} of its "
                f"{last.pieces} messages: the others have expired; keep messages longer than a stream is stopped"
            )
        return Decision(
            self._query,
            last.batch,
            last.run,
            last.attempts,
            {MessageQueue(topic, broker, number): offset for topic, broker, number, offset in last.before},
            tuple(
                HalfMessage(MessageQueue(topic, broker, number), message_id, half_offset, commit_log_offset)
                for at in sorted(pieces)
                for topic, broker, number, message_id, half_offset, commit_log_offset in pieces[at].halves
            ),
        )


class Queues(Protocol):
    """The methods of a client that reading the topic uses."""

    async def pull(self, queue: MessageQueue, offset: int, *, max_messages: int) -> PullResult:
        """Pull once."""

    async def max_offset(self, queue: MessageQueue, *, only_master: bool) -> int:
        """The queue's end."""

    async def min_offset(self, queue: MessageQueue) -> int:
        """The queue's start."""


async def newest_decision(consumer: Queues, queue: MessageQueue, query: str) -> Decision | None:
    """The decision about the newest trigger of a query that has one.

    Raises:
        MQError: the topic's master does not answer.
        WriteFailed: a record is incomplete or damaged.
    """
    reader = DecisionReader(query)
    skipped_at = -1
    end = await consumer.max_offset(queue, only_master=True)
    begin = await consumer.min_offset(queue)
    while end > begin:
        start = max(begin, end - PAGE)
        for message in reversed(await read_between(consumer, queue, start, end)):
            before = reader.skipped
            if not reader.takes(_body_of(message, query)):
                begin = start
                break
            if reader.skipped > before:
                skipped_at = message.queue_offset
        end = start
    if reader.skipped:
        # One line, however many messages there are: any program may have written them.
        _log.warning(
            "%d messages of %s name query %s and are not the sink's, the first is at offset %d: %s; they are skipped. "
            "Allow only the accounts of sinks to write to the topic",
            reader.skipped, queue, query, skipped_at, reader.why,
        )  # fmt: skip
    return reader.decision()


def _body_of(message: ReceivedMessage, query: str) -> bytes:
    """A message's body; nothing if it cannot be decompressed, which the SDK's own can.

    Raises:
        WriteFailed: it is the query's, and damaged: what it decided is unknown.
    """
    # Brokers compute the checksum when they store a message, so another program cannot write one that is wrong.
    if query in message.keys and crc32(message.record.body) != message.record.body_crc:
        raise WriteFailed(
            f"the decision of query {query} at offset {message.queue_offset} of {message.queue} is damaged: its bytes "
            "have changed since the broker stored them, so the rows that it commits are unknown. Restore the broker's "
            "store from its slave; or start with a new checkpoint, which sends the rows of the last trigger again"
        )
    try:
        return message.body
    except MQError:
        return b""


async def read_between(consumer: Queues, queue: MessageQueue, start: int, end: int) -> list[ReceivedMessage]:
    """The messages of a queue from `start` up to `end`.

    Raises:
        MQError: the broker does not answer.
        WriteFailed: some of them no longer exist.
    """
    found: list[ReceivedMessage] = []
    at = start
    while at < end:
        result = await consumer.pull(queue, at, max_messages=PAGE)
        if result.status is not PullStatus.FOUND or result.messages[0].queue_offset > at:
            raise WriteFailed(
                f"offsets {at} to {end} of {queue} cannot be read: {result.broker_address} holds {result.min_offset} "
                f"to {result.max_offset}, and answers {result.status.name}"
            )
        found += [each for each in result if each.queue_offset < end]
        at = result.next_offset
    return found
