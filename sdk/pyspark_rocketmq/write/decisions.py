"""Records which triggers of transactional streams are committed, in a topic of one queue with a record per trigger.

The first record of a trigger counts: it is stored before any message of the trigger is committed, it names all of them,
and a restarted driver commits those that are left. A long record is several messages; the last one decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import attrs

from pyspark_rocketmq.errors import WriteFailed
from triomq import HalfMessage, Message, MessageQueue, PullResult, PullStatus

PIECE_BYTES: Final = 1 << 20
"""The longest body of a record's message, in bytes."""

PAGE: Final = 32

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
        raise WriteFailed(
            f"the decision about trigger {decision.batch} needs messages of {longest} bytes, because it names "
            f"{len(decision.attempts)} tasks, and rocketmq.max_body_bytes is {max_bytes}: set it higher, as the brokers' "
            "maxMessageSize allows, or write fewer partitions"
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


class DecisionReader:
    """Finds the newest decision of a query; it is given the topic's messages from the last one backwards.

    Args:
        query: the id in the checkpoint.
    """

    def __init__(self, query: str) -> None:
        self._query = query
        self._runs: dict[str, dict[int, dict[str, Any]]] = {}
        self._order: list[str] = []
        self._newest = -1

    def takes(self, body: bytes) -> bool:
        """Take a message; returns False if no earlier one can matter."""
        try:
            piece = json.loads(body)
        except ValueError:
            # Another program also writes to the topic.
            return True
        if not isinstance(piece, dict) or piece.get("query") != self._query:
            return True
        if piece["piece"] == piece["pieces"] - 1 and piece["run"] not in self._runs:
            if piece["batch"] < self._newest:
                return False
            self._newest = piece["batch"]
            self._order.append(piece["run"])
            self._runs[piece["run"]] = {}
        # A run that did not reach its end has decided nothing.
        if piece["run"] in self._runs:
            self._runs[piece["run"]][piece["piece"]] = piece
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
        if len(pieces) != last["pieces"]:
            raise WriteFailed(
                f"the decision about trigger {last['batch']} of query {self._query} has {len(pieces)} of its "
                f"{last['pieces']} messages: the others have expired; keep messages longer than a stream is stopped"
            )
        halves = [half for number in sorted(pieces) for half in pieces[number]["halves"]]
        return Decision(
            self._query,
            last["batch"],
            last["run"],
            frozenset(last["attempts"]),
            {MessageQueue(*place): offset for *place, offset in last["before"]},
            tuple(HalfMessage(MessageQueue(*place), *rest) for *place, rest in _split(halves)),
        )


def _split(halves: Iterable[list[Any]]) -> Iterable[list[Any]]:
    return ([*half[:3], half[3:]] for half in halves)


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
        WriteFailed: a record is incomplete.
    """
    reader = DecisionReader(query)
    end = await consumer.max_offset(queue, only_master=True)
    begin = await consumer.min_offset(queue)
    while end > begin:
        start = max(begin, end - PAGE)
        bodies = [body for _, body in await read_between(consumer, queue, start, end)]
        if not all(reader.takes(body) for body in reversed(bodies)):
            break
        end = start
    return reader.decision()


async def read_between(consumer: Queues, queue: MessageQueue, start: int, end: int) -> list[tuple[str, bytes]]:
    """The ids and bodies of a queue's messages from `start` up to `end`.

    Raises:
        MQError: the broker does not answer.
        WriteFailed: some of them no longer exist.
    """
    found: list[tuple[str, bytes]] = []
    at = start
    while at < end:
        result = await consumer.pull(queue, at, max_messages=PAGE)
        if result.status is not PullStatus.FOUND or result.messages[0].queue_offset > at:
            raise WriteFailed(
                f"offsets {at} to {end} of {queue} cannot be read: {result.broker_address} holds {result.min_offset} "
                f"to {result.max_offset}, and answers {result.status.name}"
            )
        found += [(each.message_id, each.body) for each in result if each.queue_offset < end]
        at = result.next_offset
    return found
