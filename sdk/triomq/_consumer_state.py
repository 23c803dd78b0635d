"""A push consumer as operators see it: its running info, and one message handled on demand (consumer.md §14.2, §14.3)."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from triomq._delivery import later_in
from triomq._handlers import Handlers
from triomq._message import MessageQueue
from triomq._ordered import OrderedDispatch
from triomq._positions import Positions
from triomq._process_queue import HeldMessage
from triomq._pull_engine import PulledQueue, PullEngine
from triomq._subscription import RETRY_PREFIX, Subscription
from triomq_protocol.errors import BodyError
from triomq_protocol.record import RecordView
from triomq_protocol.requests import ConsumerRunningInfo
from triomq_protocol.requests.group_admin import ConsumeMessageDirectlyResult, ProcessQueueInfo


def running_info(
    engine: PullEngine,
    positions: Positions,
    subscriptions: Mapping[str, Subscription],
    ordered: OrderedDispatch | None,
    properties: Mapping[str, str],
    wall_ms: int,
) -> ConsumerRunningInfo:
    """The answer to code 307, the client's own properties aside."""
    engine.note_positions()
    # Operators see wall clock times; inside, only trio's clock counts.
    zero_ms = wall_ms - int(trio.current_time() * 1000)
    return ConsumerRunningInfo(
        properties=dict(properties),
        subscription_set=[each.data() for each in subscriptions.values()],
        mq_table={queue: _queue_info(source, positions, ordered, zero_ms) for queue, source in engine.queues.items()},
        status_table={topic: engine.statistics.status(topic) for topic in subscriptions},
    )


def _queue_info(
    source: PulledQueue, positions: Positions, ordered: OrderedDispatch | None, zero_ms: int
) -> ProcessQueueInfo:
    process = source.process
    first = process.first
    state = ordered.states.get(source.queue) if ordered is not None else None
    return ProcessQueueInfo(
        cached_msg_count=process.count,
        cached_msg_max_offset=process.last_offset if first is not None else 0,
        cached_msg_min_offset=first.queue_offset if first is not None else 0,
        cached_msg_size_in_mib=process.size_bytes >> 20,
        commit_offset=positions.get(source.queue) or 0,
        droped=process.dropped,
        last_consume_timestamp=zero_ms + int(source.consumed_s * 1000),
        last_lock_timestamp=zero_ms + int(state.locked_s * 1000) if state is not None else 0,
        last_pull_timestamp=zero_ms + int(source.pulled_s * 1000),
        locked=state.locked if state is not None else False,
    )


async def consume_directly(
    handlers: Handlers | None, data: bytes, broker_name: str, *, ordered: bool
) -> ConsumeMessageDirectlyResult:
    """The answer to code 309: call the handler once, whatever the message's queue and its state."""
    result = ConsumeMessageDirectlyResult(order=ordered, auto_commit=True)
    if handlers is None:
        result.consume_result = "CR_THROW_EXCEPTION"
        result.remark = "the consumer has no handler now; it is read by `async for`, or not yet"
        return result
    started_s = trio.current_time()
    try:
        record = RecordView(data)
        topic = record.topic
        original = record.properties.get("RETRY_TOPIC") if topic.startswith(RETRY_PREFIX) else None
        queue = MessageQueue(original or topic, broker_name, record.queue_id)
        await handlers.call(HeldMessage(record, queue, original))
        result.consume_result = "CR_SUCCESS"
    except BodyError as error:
        result.consume_result, result.remark = "CR_THROW_EXCEPTION", str(error)
    except Exception as error:  # noqa: BLE001 - the user's code: its failure is the answer
        if later_in(error) is not None:
            result.consume_result = "CR_LATER"
        else:
            result.consume_result, result.remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    result.spent_time_mills = int((trio.current_time() - started_s) * 1000)
    return result
