"""The batch and the streaming write: every task sends its rows and ends when all of them are acknowledged.

Rows are written at least once: a task that fails, or is run a second time, may have sent some of its rows already,
which cannot be undone. The property `spark_row_key` is the same both times.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_rocketmq.clients import ClientKey, PooledClient, Session, borrowed
from pyspark_rocketmq.errors import BadOption, ShortStack, WriteFailed
from pyspark_rocketmq.options import WriteOptions
from pyspark_rocketmq.rows.batch_elements import ElementEncoder, Elements
from pyspark_rocketmq.rows.message_ids import MessageIds
from pyspark_rocketmq.rows.row_keys import RowKeys
from pyspark_rocketmq.rows.row_messages import RowMessage, RowReader, utf8_rows
from pyspark_rocketmq.write.sending import BATCH_BYTES, RowSender, Sent, wait_replicated
from pyspark_rocketmq.write.topic_creation import TopicCreation
from pyspark_rocketmq.write.transactional import (
    TaskHalves,
    attempt_name,
    checker,
    commit_trigger,
    send_halves,
)
from triomq import HalfMessage, Producer
from triomq._companions import UniqueKeys, local_ip, wall_ms

MAX_BODY_BYTES: Final = 4 * 1024 * 1024

LONG_BODY_BYTES: Final = 128 * 1024
"""Rows with longer bodies are sent one by one: single messages are compressed, batches are not."""

_ELEMENT_SPARE_BYTES: Final = 1024
"""Bytes left free in a batch request of one row for everything except the body."""

SEND_TIMEOUT_S: Final = 10.0
"""Longer than the SDK's default: a task that fails repeats all its rows, so waiting costs less."""

_log = logging.getLogger(__name__)


class WrittenRows(WriterCommitMessage):
    """The rows that one task sent.

    Args:
        partition: the task's number.
        sent: the counts of acknowledged rows.
    """

    def __init__(self, partition: int, sent: Sent) -> None:
        self.partition = partition
        self.rows = sent.rows
        self.body_bytes = sent.body_bytes
        self.requests = sent.requests
        self.statuses = dict(sent.statuses)

    def __repr__(self) -> str:
        return f"<WrittenRows {self.rows} of partition {self.partition} in {self.requests} requests>"


class WrittenHalves(WriterCommitMessage):
    """The half messages that one task of a transactional stream sent.

    Args:
        partition: the task's number.
        task: the half messages to commit.
    """

    def __init__(self, partition: int, task: TaskHalves) -> None:
        self.partition = partition
        self.task = task

    def __repr__(self) -> str:
        return f"<WrittenHalves {len(self.task.halves)} of partition {self.partition}>"


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of one job.

    Args:
        options: the options of the write.
        overwrite: whether the mode is `overwrite`.

    Attributes:
        job: the prefix of the keys of all its rows; a task that is run again has the same one. It is the option
            `writeName`; without that, each write has another.

    Raises:
        BadOption: the mode is `overwrite`.
    """

    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise BadOption("a topic cannot be overwritten: use mode('append')")
        if options.decisions is not None:
            raise BadOption(
                "transactional=true is for streams: a batch job that is run again is another job to a topic"
            )
        self._options = options
        self.job = options.name or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        partition = _partition()
        return _write(self._options, iterator, f"{self.job}/{partition}", partition)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Called when all tasks have succeeded."""
        _log.info("%d rows are written", _rows(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Called when a task has failed; the rows that others have sent remain."""
        _log.warning(
            "the write has failed; the %d rows of the tasks that succeeded and perhaps some of the others remain stored. "
            "A new job sends all rows again, with %s values of spark_row_key",
            _rows(messages),
            "other" if self._options.name is None else "the same",
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of every trigger; in output mode `complete` these are the whole table each time.

    Args:
        options: the options of the write.
        overwrite: whether the output mode is `complete`.

    Raises:
        BadOption: the write has a name: the keys of a stream's rows start with the query's id.
    """

    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        if options.name is not None:
            raise BadOption("writeName is for batches: the keys of a stream's rows begin with the query's id")
        self._options = options
        self._complete = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        context = TaskContext.get()
        partition = _partition()
        query = batch = None
        if context is not None:
            query = context.getLocalProperty("sql.streaming.queryId")
            batch = context.getLocalProperty("streaming.sql.batchId")
        if self._options.decisions is not None:
            if query is None or batch is None:
                raise WriteFailed("transactional=true needs to know the query and its trigger, and Spark names neither")
            return _write_halves(self._options, self._options.decisions, iterator, query, batch, partition)
        return _write(self._options, iterator, f"{query or 'query'}/{batch or 0}/{partition}", partition)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Called when all tasks of a trigger have succeeded; commits the messages of a transactional stream."""
        if self._options.decisions is not None:
            _commit(self._options, self._options.decisions, batchId, messages)
        _log.info("trigger %d: %d rows are written", batchId, _rows(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Called when a task of a trigger has failed; the trigger is run again, so the others' rows are sent twice.

        In a transactional stream no consumer gets them; they stay half messages until brokers check them, because Spark
        also calls this when a commit has failed, and then they may be decided.
        """
        if self._options.decisions is not None:
            _log.warning("trigger %d has failed, and is finished or run again after a restart", batchId)
            return
        _log.warning(
            "trigger %d has failed; %d rows of it remain, and are sent again with it", batchId, _rows(messages)
        )


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _rows(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(
        each.rows if isinstance(each, WrittenRows) else len(each.task.halves)
        for each in messages
        if isinstance(each, WrittenRows | WrittenHalves)
    )


def _producer_settings(options: WriteOptions) -> Any:
    return {"max_body_bytes": MAX_BODY_BYTES, "send_timeout_s": SEND_TIMEOUT_S, **dict(options.client.producer)}


def _write_halves(
    options: WriteOptions, decisions: str, batches: Iterator[pa.RecordBatch], query: str, batch: str, partition: int
) -> WrittenHalves:
    """Send the rows of one task as half messages."""
    settings = _producer_settings(options)
    scope = f"{query}/{batch}/{partition}"
    attempt = attempt_name(query, batch, partition)
    reader = RowReader(scope, options.topic, settings["max_body_bytes"], RowKeys(scope))
    topics = TopicCreation(options.create_queues)
    halves: list[HalfMessage] = []
    first_row = 0

    async def open_producer(session: Session) -> Producer:
        check = checker(session.consumer, decisions)
        return session.client.producer(options.group, transactions=check, **settings)

    async def send(session: Session, rows: list[RowMessage]) -> None:
        for topic in {row.message.topic for row in rows}:
            await topics.ensure(session.client.admin, topic)
        halves.extend(await send_halves(producer, rows, attempt, options.in_flight))

    with ShortStack(), borrowed(ClientKey(options.client, options.group, "master")) as client:
        producer = client.call(open_producer)
        try:
            for batch_of_rows in batches:
                some = utf8_rows(batch_of_rows, scope, first_row)
                rows = list(reader.messages(some, range(first_row, first_row + some.num_rows)))
                client.call(lambda session, rows=rows: send(session, rows))  # type: ignore[misc]
                first_row += some.num_rows
        finally:
            client.call(lambda _: producer.aclose())
    return WrittenHalves(partition, TaskHalves(query, attempt, tuple(halves)))


def _commit(options: WriteOptions, decisions: str, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    settings = _producer_settings(options)
    tasks = [each.task for each in messages if isinstance(each, WrittenHalves)]

    async def commit(session: Session) -> None:
        check = checker(session.consumer, decisions)
        async with session.client.producer(options.group, transactions=check, **settings) as producer:
            most = settings["max_body_bytes"]
            await commit_trigger(session.consumer, producer, decisions, batch, tasks, max_body_bytes=most)

    with ShortStack(), borrowed(ClientKey(options.client, options.group, "master")) as client:
        client.call(commit)


def _write(options: WriteOptions, batches: Iterator[pa.RecordBatch], scope: str, partition: int) -> WrittenRows:
    key = ClientKey(
        options.client, options.group if options.replicated else None, "slave" if options.replicated else "suggested"
    )
    settings = _producer_settings(options)
    keys = RowKeys(scope)
    ids = MessageIds(UniqueKeys(local_ip()), wall_ms)
    most = settings["max_body_bytes"]
    long_bytes = min(LONG_BODY_BYTES, max(0, most - _ELEMENT_SPARE_BYTES))
    encoder = ElementEncoder(options.topic, long_bytes, keys, ids.column, max_element_bytes=most)
    reader = RowReader(scope, options.topic, most, keys)
    first_row = 0
    with ShortStack(), borrowed(key) as client:
        sender = _open_sender(client, options, settings)
        topics = TopicCreation(options.create_queues)

        async def put(session: Session, rows: Elements | RowMessage) -> None:
            await topics.ensure(session.client.admin, rows.topic)
            await sender.put(rows)

        try:
            for rows in batches:
                batch = utf8_rows(rows, scope, first_row)
                sender.look_up_again()
                elements, alone = encoder.encode(batch)
                for some in elements:
                    client.call(lambda session, some=some: put(session, some))  # type: ignore[misc]
                for row in reader.messages(batch.take(pa.array(alone)), (alone + first_row).tolist()):
                    client.call(lambda session, row=row: put(session, row))  # type: ignore[misc]
                first_row += batch.num_rows
            client.call(lambda _: sender.finish())
            if options.replicated:
                client.call(lambda session: wait_replicated(session.consumer, sender.sent.last))
        finally:
            client.call(lambda _: sender.aclose())
    return WrittenRows(partition, sender.sent)


def _open_sender(client: PooledClient, options: WriteOptions, settings: Any) -> RowSender:
    async def open_sender(session: Session) -> RowSender:
        sender = RowSender(
            session.client.producer(options.group, **settings),
            options.batch_rows,
            options.in_flight,
            min(BATCH_BYTES, settings["max_body_bytes"]),
        )
        await session.nursery.start(sender.run)
        return sender

    return client.call(open_sender)
