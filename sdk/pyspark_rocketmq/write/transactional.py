"""Transactional writes of streams: tasks send half messages, and the driver commits those of a trigger.

Only the driver commits, and only messages named in the topic of decisions. A restarted driver finds out which of the
named messages are already in their queues, and commits the others; messages of its own new tasks are rolled back.
Answers to brokers that check a half message only roll back messages that no decision names, so no message is
committed by the driver and an answer at the same time.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import msgspec
import trio
from cachetools import TTLCache

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.rows.row_messages import RowMessage
from pyspark_rocketmq.write.decisions import PAGE, PIECE_BYTES, Decision, messages_of, newest_decision, read_between
from pyspark_rocketmq.write.sending import cause_of
from triomq import (
    HalfMessage,
    MessageQueue,
    MQError,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TransactionState,
)
from triomq.errors import RouteNotFound

ATTEMPT: Final = "spark_attempt"
"""The property with the task attempt: query/trigger/partition/name."""

_ATTEMPT_FORM: Final = re.compile(r"([^/]+)/([0-9]{1,19})/[0-9]+/[^/]+")
"""Matches query and trigger; other programs of the producer group may write anything."""

COMMIT_LIMIT_S: Final = 120.0
"""How long committing a trigger may take while masters are down; then the trigger fails, and is finished after a
restart."""

PAUSE_S: Final = 2.0
"""How long a commit or rollback without an answer may still be in progress at its broker."""

CHECK_AGE_S: Final = 5.0
"""The maximum age of a decision with which brokers are answered; with an old one, more answers are undecided."""

CHECKED_QUERIES: Final = 64
ENDS_AT_ONCE: Final = 64
TRIES: Final = 4

_log = logging.getLogger(__name__)


@attrs.frozen
class TaskHalves:
    """The half messages that one task attempt sent.

    Args:
        query: the id in the checkpoint.
        attempt: the value of :data:`ATTEMPT`.
        halves: the half messages.
    """

    query: str
    attempt: str
    halves: tuple[HalfMessage, ...]


def attempt_name(query: str, batch: str, partition: int) -> str:
    """A name for one attempt of a task."""
    return f"{query}/{batch}/{partition}/{uuid.uuid4().hex}"


def answer_about(attempt: str, decision: Decision | None) -> TransactionState:
    """The answer to a broker that checks a half message.

    Args:
        attempt: the task attempt that sent it.
        decision: the newest decision of the query.
    """
    named = _ATTEMPT_FORM.fullmatch(attempt)
    if named is None or decision is None or (batch := int(named[2])) > decision.batch:
        return TransactionState.UNKNOWN
    # A decision about a later trigger is made after this one's messages have all been delivered.
    if batch < decision.batch or attempt not in decision.attempts:
        return TransactionState.ROLLBACK
    return TransactionState.UNKNOWN


def checker(consumer: PullConsumer, topic: str) -> Callable[[ReceivedMessage], Awaitable[TransactionState]]:
    """Return a function that answers brokers with the decisions in a topic.

    Args:
        consumer: reads the topic.
        topic: the topic of decisions.
    """

    known: TTLCache[str, Decision | None] = TTLCache(CHECKED_QUERIES, CHECK_AGE_S, timer=trio.current_time)

    async def check(message: ReceivedMessage) -> TransactionState:
        named = _ATTEMPT_FORM.fullmatch(message.properties.get(ATTEMPT, ""))
        if named is None:
            return TransactionState.UNKNOWN
        query = named[1]
        if query not in known:
            queue = await decision_queue(consumer, topic)
            known[query] = await newest_decision(consumer, queue, query)
        return answer_about(named[0], known.get(query))

    return check


async def decision_queue(consumer: PullConsumer, topic: str) -> MessageQueue:
    """The one queue of the topic of decisions.

    Raises:
        WriteFailed: there is none, or more than one.
        MQError: no name server answers.
    """
    try:
        queues = await consumer.fetch_queues(topic)
    except RouteNotFound:
        queues = []
    if len(queues) != 1:
        raise WriteFailed(
            f"transactional=true needs the topic {topic} with one queue on one master, and it has {len(queues)}; "
            f'create it: client.admin.create_topic("{topic}", queues=1, brokers=["NAME OF A BROKER"]). If it was '
            "there before, its broker is away, or another broker has created it too: put that right first"
        )
    return queues[0]


async def send_halves(
    producer: Producer, rows: Iterable[RowMessage], attempt: str, in_flight: int
) -> list[HalfMessage]:
    """Send rows as half messages.

    Args:
        producer: a producer of the group that ends them.
        rows: the rows.
        attempt: the task attempt.
        in_flight: how many are sent at the same time.

    Raises:
        WriteFailed: one was not stored; the stored ones are rolled back when brokers check them.
    """
    halves: list[HalfMessage] = []

    async def send(row: RowMessage) -> None:
        message = row.message
        properties = {**(message.properties or {}), ATTEMPT: attempt}
        halves.append(
            await _retried(partial(producer.send_half, msgspec.structs.replace(message, properties=properties)))
        )

    failure = await _all([partial(send, row) for row in rows], in_flight)
    if failure is not None:
        raise WriteFailed(f"{cause_of(failure)}; Spark runs the task again, and readers see no row of this attempt")
    return halves


async def commit_trigger(
    consumer: PullConsumer,
    producer: Producer,
    topic: str,
    batch: int,
    tasks: Sequence[TaskHalves],
    *,
    max_body_bytes: int = PIECE_BYTES,
) -> None:
    """Commit the messages of a trigger's tasks, or finish the commit that an earlier run of it decided.

    Args:
        consumer: reads from masters.
        producer: a producer of the group that sent the half messages.
        topic: the topic of decisions.
        batch: the trigger's number.
        tasks: the half messages of each of its tasks.
        max_body_bytes: the producer refuses larger bodies.

    Raises:
        WriteFailed: a message could not be committed in time; the trigger is finished after a restart.
        MQError: a master does not answer.
    """
    if not tasks:
        return
    query = tasks[0].query
    queue = await decision_queue(consumer, topic)
    decision = await newest_decision(consumer, queue, query)
    if decision is not None and decision.batch > batch:
        raise WriteFailed(
            f"trigger {batch} of query {query} comes after trigger {decision.batch} was committed: the checkpoint is an "
            "old copy, or another driver runs the query too"
        )
    ours = None
    if decision is None or decision.batch < batch:
        ours = await _decide(consumer, producer, queue, batch, tasks, min(PIECE_BYTES, max_body_bytes))
        decision = await newest_decision(consumer, queue, query)
        assert decision is not None
    is_new = ours is not None and decision.run == ours.run
    if not is_new:
        _log.warning("trigger %d of query %s was decided by an earlier run, and is finished as decided", batch, query)
        left_out = [half for task in tasks if task.attempt not in decision.attempts for half in task.halves]
        await _end_all(producer, left_out, TransactionState.ROLLBACK)
    await _finish(consumer, producer, decision, is_new=is_new)


async def _decide(
    consumer: PullConsumer,
    producer: Producer,
    queue: MessageQueue,
    batch: int,
    tasks: Sequence[TaskHalves],
    max_bytes: int,
) -> Decision:
    halves = tuple(half for task in tasks for half in task.halves)
    before = {
        each: await consumer.max_offset(each, only_master=True) for each in sorted({half.queue for half in halves})
    }
    attempts = frozenset(task.attempt for task in tasks)
    decision = Decision(tasks[0].query, batch, uuid.uuid4().hex, attempts, before, halves)
    for message in messages_of(decision, queue.topic, max_bytes):
        await _retried(partial(producer.send, message, queue=queue))
    return decision


async def _finish(consumer: PullConsumer, producer: Producer, decision: Decision, *, is_new: bool) -> None:
    """Commit all messages of a decision that are not delivered yet."""
    left = {half.message_id: half for half in decision.halves}
    deadline = trio.current_time() + COMMIT_LIMIT_S
    failure: MQError | None = None
    looks = not is_new
    while left:
        try:
            if looks:
                for message_id in await _delivered(consumer, decision, left.keys()):
                    del left[message_id]
            ended, failure = await _end_all(producer, list(left.values()), TransactionState.COMMIT)
            for message_id in ended:
                del left[message_id]
        except MQError as error:
            failure = error
        if left:
            if trio.current_time() > deadline:
                raise WriteFailed(
                    f"{len(left)} of {len(decision.halves)} messages of trigger {decision.batch} are not committed after "
                    f"{COMMIT_LIMIT_S:g} s: {cause_of(failure) if failure else 'no master answered'}; they are committed "
                    "when the query is started again"
                )
            looks = True
            await trio.sleep(PAUSE_S)


async def _delivered(consumer: PullConsumer, decision: Decision, wanted: Collection[str]) -> set[str]:
    """Which of the wanted ids are those of messages that were stored in the decision's queues since.

    Other programs write to the queues, too: their bodies are neither kept nor decompressed.
    """
    found: set[str] = set()
    for queue, start in decision.before.items():
        end = await consumer.max_offset(queue, only_master=True)
        for at in range(start, end, PAGE):
            page = await read_between(consumer, queue, at, min(at + PAGE, end))
            found.update(each.message_id for each in page if each.message_id in wanted)
    return found


async def _end_all(
    producer: Producer, halves: Sequence[HalfMessage], state: TransactionState
) -> tuple[list[str], MQError | None]:
    """End half messages; returns the ids of those that a broker has ended, and one failure."""
    ended: list[str] = []
    failures: list[MQError] = []

    async def end(half: HalfMessage) -> None:
        try:
            await producer.end_half(half, state)
        except MQError as error:
            failures.append(error)
        else:
            ended.append(half.message_id)

    await _all([partial(end, half) for half in halves], ENDS_AT_ONCE)
    return ended, failures[0] if failures else None


async def _retried(call: Callable[[], Awaitable[Any]]) -> Any:
    for tries_left in reversed(range(TRIES)):
        try:
            return await call()
        except MQError as error:
            if not tries_left or not error.retriable:
                raise
            await trio.sleep(PAUSE_S / 4)
    raise AssertionError("a request is tried at least once")


async def _all(calls: Sequence[Callable[[], Awaitable[None]]], at_once: int) -> MQError | None:
    """Make all calls, `at_once` concurrently; returns the first failure, which ends the others."""
    failures: list[MQError] = []
    waiting = list(reversed(calls))
    async with trio.open_nursery() as nursery:

        async def lane() -> None:
            while waiting:
                try:
                    await waiting.pop()()
                except MQError as error:
                    failures.append(error)
                    nursery.cancel_scope.cancel()

        for _ in range(min(at_once, len(calls))):
            nursery.start_soon(lane)
    return failures[0] if failures else None
