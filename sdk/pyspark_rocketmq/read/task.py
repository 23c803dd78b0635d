"""The work of a task: one range of offsets in, Arrow record batches out.

Pulling runs in the client's thread while the task's thread makes batches and writes them to Spark. When reading ends,
for any reason, its trio tasks in the client's thread are cancelled.
"""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterator
from typing import Final, TypeAlias

import pyarrow as pa
import trio
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.clients import ClientKey, PooledClient, Session, borrowed, only_brokers
from pyspark_rocketmq.errors import ShortStack, SourceError
from pyspark_rocketmq.filters import expression_for
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.read.planning import QueueRange
from pyspark_rocketmq.read.pulling import PullPlan, Strides, report_gone
from pyspark_rocketmq.rows import compiled
from pyspark_rocketmq.rows.arrow_batches import BatchMaker
from pyspark_rocketmq.rows.schema import arrow_schema
from pyspark_rocketmq.rows.stored_frames import BrokenFramesError

Inbox: TypeAlias = "queue.SimpleQueue[list[bytes] | BaseException | object]"
"""Answers, and the object that ends them."""


class RangePartition(InputPartition):  # type: ignore[misc,unused-ignore]
    """One task's part of a read.

    Args:
        part: the offsets; None reads nothing.
    """

    def __init__(self, part: QueueRange | None) -> None:
        super().__init__(part)
        self.part = part


def key_of(options: ReadOptions) -> ClientKey:
    """The client that a read uses."""
    scan = compiled.records.whole_records if compiled.USED else None
    return ClientKey(options.client, options.group, options.preference, scan)


def read_range(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of the queue.

    Args:
        options: the options of the read.
        schema: the columns wanted.
        partition: a :class:`RangePartition`; any other is Spark's own for a read without partitions, and has no rows.

    Raises:
        SourceError: rows have been deleted or cannot be read.
        MQError: no broker could answer.
    """
    if not isinstance(partition, RangePartition) or partition.part is None:
        return
    plan = PullPlan(
        partition.part,
        tags=expression_for(options.tags),
        sql=options.sql,
        fail_on_data_loss=options.fail_on_data_loss,
        only=only_brokers(options.preference),
    )
    maker = BatchMaker(plan.queue, arrow_schema(schema), options.tags)
    rows = 0
    with ShortStack(), borrowed(key_of(options)) as client:
        inbox: Inbox = queue.SimpleQueue()
        strides = Strides(client.session, plan, inbox.put)
        for pages in _bundles(client, strides, plan.part, inbox):
            try:
                for batch in maker.batches(pages, partition.part.start, partition.part.end):
                    rows += batch.num_rows
                    if batch.num_rows:
                        yield batch
            except BrokenFramesError as error:
                raise SourceError(
                    f"a broker's answer for {partition.part} holds bytes that are not a message: {error}"
                ) from error
        if not plan.is_filtered and options.tags is None:
            check_whole(plan, rows + strides.skipped)


def check_whole(plan: PullPlan, rows: int) -> None:
    """Check that a range without a filter had a row for each offset.

    Brokers leave out messages within an answer if they delete them while they compose it, or cannot read them.

    Args:
        plan: the plan of the range.
        rows: how many rows there were, or were known to be deleted.

    Raises:
        DataLoss: there were fewer, and lost rows are an error.
    """
    missing = len(plan.part) - rows
    if missing > 0:
        report_gone(plan, f"{missing} of {plan.part} are gone: brokers have left them out between others")


_END: Final = object()


def _bundles(
    client: PooledClient, strides: Strides, part: QueueRange, inbox: Inbox
) -> Generator[list[bytes], None, None]:
    """Answers as they are pulled in the client's loop."""
    scope = trio.CancelScope()

    async def serve() -> None:
        end: BaseException | object = _END
        try:
            with scope:
                await strides.pull()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
            end = error
        except BaseException:
            end = SourceError(f"the client was closed while {part} was read")
            raise
        finally:
            inbox.put(end)

    async def begin(session: Session) -> None:
        await trio.lowlevel.checkpoint()
        session.nursery.start_soon(serve)

    client.call(begin)
    over = False
    try:
        while True:
            item = inbox.get()
            if isinstance(item, list):
                yield item
                size = sum(map(len, item))
                client.call_soon(lambda size=size: strides.taken(size))  # type: ignore[misc]
                continue
            over = True
            if isinstance(item, BaseException):
                raise item
            return
    finally:
        client.call_soon(scope.cancel)
        while not over:
            over = not isinstance(inbox.get(), list)
